"""`ray`, with what its command line has no option for: `python -m orchestrator.cluster.ray_program start ...`.

- Loopback stays loopback. Ray 2.60 turns 127.0.0.1 into the host's outer address, and listens everywhere then.
- No Ray Client, which would be one more port for everybody on the machine to try.
- A token that the cluster does not know is refused at once; `ray start` itself asks again for 20 s.
- Where no Ray answers that is told by an exit code, and not by a traceback.
"""

import sys
from typing import Any

REFUSED = 77  #: exit code: the cluster asks for another token
SILENT = 78  #: exit code: what listens where the cluster should be does not answer as Ray does
NO_CLIENT = "haloctl has no use for it"


def _expect_welcome(argv: list[str]) -> None:
    """End with `REFUSED` where the cluster that is to be joined does not know our token, with `SILENT` without one."""
    from ray._private import services
    from ray.exceptions import AuthenticationError, RpcError

    for argument in argv:
        if argument.startswith("--address="):
            try:
                services.GcsClient(address=argument.partition("=")[2])
            except AuthenticationError:
                sys.exit(REFUSED)
            except RpcError:
                sys.exit(SILENT)


def _as_it_is(host: str) -> bool:
    """Whether an address is loopback, as far as Ray is to know: then it does not look for another."""
    return False


def main() -> None:
    """Be `ray`."""
    from ray._private import services
    from ray.scripts import scripts

    changed: Any = services
    changed.is_localhost = _as_it_is
    changed = scripts
    changed.get_ray_client_dependency_error = lambda: NO_CLIENT
    _expect_welcome(sys.argv)
    scripts.main()


if __name__ == "__main__":
    main()
