"""`haloctl head`."""

from typing import Annotated

import typer

LOCK_VARIABLE = "HALOCTL_KEPT_LOCK"  #: in a head that was restarted: the descriptor of its leader's lock


def head(
    host: Annotated[
        str, typer.Option("--host", help="Address of this machine that nodes can reach.", metavar="IP")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port of Ray's control store.", min=1024, max=65535)] = 6379,
    ray_address: Annotated[
        str | None,
        typer.Option("--ray-address", help="Use this running Ray; default: HALOCTL_RAY_ADDRESS.", metavar="HOST:PORT"),
    ] = None,
    standby: Annotated[bool, typer.Option("--standby", help="Wait to take over while another head leads.")] = False,
    leave_running: Annotated[
        bool, typer.Option("--leave-running", help="On a signal, leave Ray and running tasks to the next head.")
    ] = False,
) -> None:
    """Run a cluster's head until SIGTERM or Ctrl-C.

    On a signal it requeues running tasks and stops the Ray that it started.
    """
    import os
    import sys
    from typing import NoReturn

    from orchestrator import output, process_secrets
    from orchestrator.context import open_context
    from orchestrator.leader import daemon

    kept_lock = os.environ.pop(LOCK_VARIABLE, None)
    environment = dict(os.environ)

    def restart(reason: str, lock: int | None) -> NoReturn:
        """Restart in the same process: its service manager does not notice, and no other head takes the lead."""
        output.print_message(f"{reason}: restarting the head")
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, environment | ({} if lock is None else {LOCK_VARIABLE: f"{lock}"}))

    with open_context() as context:
        process_secrets.hide()
        ray = daemon.choose_ray(context.settings, host, port, ray_address, output.print_message)
        daemon.run_head(
            *(context, ray, output.print_message, restart),
            standby=standby,
            leaves_running=leave_running,
            kept_lock=None if kept_lock is None else int(kept_lock),
        )
