"""`haloctl head`."""

import typer


def head(
    host: str = typer.Option("127.0.0.1", "--host", help="Address of this machine that nodes reach.", metavar="IP"),
    port: int = typer.Option(6379, "--port", help="Where Ray's control store listens.", min=1024, max=65535),
    ray_address: str = typer.Option(
        None, "--ray-address", help="A Ray to use that others run; default: HALOCTL_RAY_ADDRESS.", metavar="HOST:PORT"
    ),
    standby: bool = typer.Option(False, "--standby", help="Where another head leads, wait to take over from it."),
    leave_running: bool = typer.Option(
        False, "--leave-running", help="When told to end, leave Ray and what runs to the next head."
    ),
) -> None:
    """Run jobs on the nodes that join, until a signal comes.

    SIGTERM or Ctrl-C hands what runs back to the queue and ends the Ray that was started.
    """
    import os
    import sys
    from typing import NoReturn

    from orchestrator import output
    from orchestrator.cluster import leading
    from orchestrator.context import opened

    environment = dict(os.environ)

    def begin_anew(reason: str) -> NoReturn:
        """As after a kill, but in the same process, so that whoever watches it sees nothing of that."""
        output.note(f"{reason}: this head begins anew")
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, environment)

    with opened() as context:
        ray = leading.ray_of(context.settings, host, port, ray_address, output.note)
        leading.lead(context, ray, output.note, begin_anew, standby=standby, leaves_running=leave_running)
