"""`ray`, with what its command line has no option for: `python -m orchestrator.ray_cluster.ray_program start ...`.

- Loopback stays loopback. Ray 2.60 turns 127.0.0.1 into the host's outer address, and listens everywhere then.
- No Ray Client, which would be one more port for everybody on the machine to try.
- It imports no other command of `ray`: that would take longer than all else, as serve imports FastAPI.
- A token that the cluster does not know is refused at once; `ray start` itself retries for 20 s.
- When no Ray answers, the exit code says so instead of a traceback.
"""

import sys
from typing import Any

REFUSED = 77  #: exit code: the cluster asks for another token
SILENT = 78  #: exit code: what listens where the cluster should be does not answer as Ray does
NO_CLIENT = "haloctl does not use it"
OTHER_COMMANDS = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli")


def _expect_accepted(argv: list[str]) -> None:
    """Exit with `REFUSED` if the cluster does not know our token, with `SILENT` if there is no cluster."""
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


def _is_not_localhost(host: str) -> bool:
    """Tell Ray that no address is loopback, so that it does not look for another one."""
    return False


def main() -> None:
    """Be `ray`."""
    modules: Any = sys.modules
    modules.update(dict.fromkeys(OTHER_COMMANDS))  # None: importing them raises ImportError, which Ray expects
    from ray._private import services
    from ray.scripts import scripts

    changed: Any = services
    changed.is_localhost = _is_not_localhost
    changed = scripts
    changed.get_ray_client_dependency_error = lambda: NO_CLIENT
    _expect_accepted(sys.argv)
    scripts.main()


if __name__ == "__main__":
    main()
