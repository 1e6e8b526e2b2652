"""What `haloctl head` does: leads, on a Ray of its own or on one that others run."""

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from typing import NoReturn

from jobs.errors import BadSetting
from jobs.task import Node
from orchestrator.cluster import ray_commands, ray_token
from orchestrator.cluster.head_ray import ClusterRay, HeadRay, OthersRay
from orchestrator.context import Context
from orchestrator.leading.driver import lead_forever
from orchestrator.ray_executor import RayExecutor
from orchestrator.settings import Settings
from orchestrator.submitting.interrupts import noticed

Say = Callable[[str], None]
BeginAnew = Callable[[str], NoReturn]  #: told why


class Executor(RayExecutor):
    """On a Ray that is started again when a process of it is gone; what agents run goes on meanwhile."""

    def __init__(self, settings: Settings, ray: ClusterRay, begin_anew: BeginAnew) -> None:
        """`begin_anew` is called where Ray has forgotten this process, and does not return."""
        super().__init__(settings.data, ray.address, settings.artifacts)
        self._ray, self._begin_anew = ray, begin_anew

    def nodes(self) -> Sequence[Node]:
        """The live nodes. Raises ClusterUnreachable."""
        self._ray.ensure()
        return super().nodes()

    def _lose_ray(self, error: BaseException) -> None:
        """Ray can't be left here: in 2.60 an answer that comes while it shuts down ends this process."""
        self._begin_anew(str(error))


def ray_of(settings: Settings, host: str, port: int, address: str | None, say: Say) -> ClusterRay:
    """The Ray to lead on; this process's Ray uses its token from now on. Raises BadSetting for a host that is none."""
    if not any(name in os.environ for name in (ray_token.FILE_VARIABLE, *ray_token.VARIABLES)):
        ray_token.made(settings.data)
    token = ray_token.given(settings.data, None, say)
    ray_token.use(token)
    os.environ.update(ray_commands.FIXED)
    if address := address or settings.ray_address:
        return OthersRay(address)
    host = own_host(host)
    if ipaddress.ip_address(host).is_loopback:
        os.environ |= ray_commands.LOOPBACK
    return HeadRay(settings.data, host, port, token)


def own_host(given: str) -> str:
    """An address of this machine by its number; raises BadSetting for what nodes can't be told to join."""
    try:
        address = socket.gethostbyname(given)
    except OSError as error:
        raise BadSetting("--host", f"{given}: {error.strerror}; give an address of this machine") from error
    if ipaddress.ip_address(address).is_unspecified:
        raise BadSetting("--host", f"{given} is every address and none: give the one that nodes reach this machine at")
    return address


def lead(
    context: Context, ray: ClusterRay, say: Say, begin_anew: BeginAnew, *, standby: bool, leaves_running: bool
) -> None:
    """Lead until a signal comes. Raises AlreadyLed where somebody else does, and may not be waited for."""
    has_led = False

    def make_executor() -> Executor:
        nonlocal has_led
        ray.ensure()
        has_led = True
        for line in welcome(ray.address, context.settings):
            say(line)
        return Executor(context.settings, ray, begin_anew)

    try:
        with noticed() as interrupts:
            lead_forever(context, make_executor, interrupts, say, standby=standby, leaves_running=leaves_running)
            if has_led and not leaves_running:
                ray.end()
    finally:
        ray.leave()


def welcome(address: str, settings: Settings) -> list[str]:
    """What a person does next."""
    file = os.environ.get("RAY_AUTH_TOKEN_PATH")
    where = "on this machine" if address.startswith("127.") else "on each machine that is to run tasks"
    token = f"the token is in {file}, which a node is told of by --token-file or {ray_token.FILE_VARIABLE}"
    return [
        f"Ray runs at {address}; {where}: haloctl node --head {address}",
        token if file else "the token is what RAY_AUTH_TOKEN says here: a node needs it in its environment too",
    ]
