"""The head daemon: leads on a Ray that it starts, or on an external one."""

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from typing import NoReturn

from db.connection.process_lock import ProcessLock
from jobs.errors import BadSetting
from jobs.task import Node
from orchestrator.context import Context
from orchestrator.interrupts import catch_signals
from orchestrator.leader.loop import run_leader
from orchestrator.leader.statistics import Statistics
from orchestrator.ray_cluster import ray_commands, ray_token
from orchestrator.ray_cluster.head_ray import ExternalRay, HeadRay, RayCluster
from orchestrator.ray_executor import RayExecutor
from orchestrator.settings import Settings
from workers import daemon_log

SIGNAL_S = 5.0  #: for a call of Ray to come back after a signal

logger = daemon_log.logger(__name__)

Restart = Callable[[str, int | None], NoReturn]  #: gets the reason, and what the leader's lock needs to be kept


class HeadExecutor(RayExecutor):
    """Restarts Ray when one of its processes is gone; what agents run goes on meanwhile."""

    def __init__(self, settings: Settings, ray: RayCluster, lock: ProcessLock, restart: Restart) -> None:
        """`restart` is called when Ray has forgotten this process, and does not return; the lead is kept over it."""
        super().__init__(settings.data, ray.address, settings.artifacts)
        self._ray, self._lock, self._restart = ray, lock, restart

    def nodes(self) -> Sequence[Node]:
        """Return the live nodes. Raises ClusterUnreachable."""
        if self._ray.ensure():
            logger.warning("Ray at %s had lost a process, and was restarted", self._ray.address)
        return super().nodes()

    def _lose_ray(self, error: BaseException) -> None:
        """Restart this process: in Ray 2.60 an answer that comes while the connection shuts down ends it anyway."""
        self._restart(str(error), self._lock.keep())

    def _ray_hangs(self) -> None:
        """Restart this process from another thread: its main thread is in a call that does not come back."""
        self._restart("Ray does not answer", self._lock.keep())


def choose_ray(settings: Settings, host: str, port: int, address: str | None) -> RayCluster:
    """Return the Ray to lead on, and use its token in this process. Raises BadSetting for an invalid host."""
    if not any(name in os.environ for name in (ray_token.FILE_VARIABLE, *ray_token.VARIABLES)):
        ray_token.ensure_token(settings.data)
    token = ray_token.token_environment(settings.data, None)
    ray_token.use(token)
    os.environ.update(ray_commands.FIXED)
    if address := address or settings.ray_address:
        return ExternalRay(address)
    host = resolve_host(host)
    if ipaddress.ip_address(host).is_loopback:
        os.environ |= ray_commands.LOOPBACK
    return HeadRay(settings.data, host, port, token)


def resolve_host(given: str) -> str:
    """Return a host's IP address. Raises BadSetting for one that nodes can't join."""
    try:
        address = socket.gethostbyname(given)
    except OSError as error:
        raise BadSetting("--host", f"{given}: {error.strerror}; give an address of this machine") from error
    if ipaddress.ip_address(address).is_unspecified:
        raise BadSetting("--host", f"{given} stands for every address: give the one at which nodes reach this machine")
    return address


def run_head(
    context: Context,
    ray: RayCluster,
    restart: Restart,
    *,
    standby: bool,
    leaves_running: bool,
    kept_lock: int | None,
    statistics: Statistics,
) -> None:
    """Lead until a signal comes. Raises AlreadyLeading when somebody leads and `standby` does not allow to wait.

    `kept_lock` is what `restart` was given, in a process that was restarted.
    """
    has_led = False

    def make_executor(lock: ProcessLock) -> HeadExecutor:
        nonlocal has_led
        ray.ensure()
        has_led = True
        for line in join_instructions(ray.address, context.settings):
            logger.info("%s", line)
        return HeadExecutor(context.settings, ray, lock, restart)

    try:
        with catch_signals(forces_end_after_s=SIGNAL_S) as interrupts:
            ray.is_interrupted = lambda: interrupts.came is not None
            run_leader(
                *(context, make_executor, interrupts),
                standby=standby,
                leaves_running=leaves_running,
                kept_lock=kept_lock,
                statistics=statistics,
            )
            if has_led and not leaves_running:
                ray.end()
    finally:
        ray.leave()


def join_instructions(address: str, settings: Settings) -> list[str]:
    """Return what to do next: how nodes join."""
    file = os.environ.get("RAY_AUTH_TOKEN_PATH")
    where = "on this machine" if address.startswith("127.") else "on each machine that is to run tasks"
    token = f"the token is in {file}: give a node a copy with --token-file or {ray_token.FILE_VARIABLE}"
    return [
        f"Ray runs at {address}; {where}: haloctl node --head {address}",
        token if file else "the token is in RAY_AUTH_TOKEN: a node needs the same in its environment",
    ]
