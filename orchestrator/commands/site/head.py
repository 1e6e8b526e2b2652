"""`haloctl head`."""

from typing import Annotated

import typer

from orchestrator.commands import options

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
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", help="Serve metrics for Prometheus at this port.", min=1, max=65535),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Address at which metrics are served.", metavar="IP")
    ] = "127.0.0.1",
    log_json: options.LogJson = False,
) -> None:
    """Run a cluster's head until SIGTERM or Ctrl-C.

    On a signal it requeues running tasks and stops the Ray that it started.
    """
    import os
    import sys
    from typing import NoReturn

    from orchestrator import process_secrets
    from orchestrator.context import open_context
    from orchestrator.leader import daemon
    from orchestrator.leader.statistics import Statistics
    from workers import daemon_log

    daemon_log.configure("head", is_json=log_json)
    logger = daemon_log.logger(__name__)
    kept_lock = os.environ.pop(LOCK_VARIABLE, None)
    environment = dict(os.environ)

    def restart(reason: str, lock: int | None) -> NoReturn:
        """Restart in the same process: its service manager does not notice, and no other head takes the lead."""
        logger.warning("%s: restarting the head", reason)
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, environment | ({} if lock is None else {LOCK_VARIABLE: f"{lock}"}))

    with daemon_log.logged_to_the_end(__name__), open_context() as context:
        process_secrets.hide()
        statistics = Statistics()
        if metrics_port:
            from orchestrator.leader import metrics

            context.database.observe = statistics.observe
            metrics.serve(statistics, context.settings, metrics_host, metrics_port)
        ray = daemon.choose_ray(context.settings, host, port, ray_address)
        daemon.run_head(
            *(context, ray, restart),
            standby=standby,
            leaves_running=leave_running,
            kept_lock=None if kept_lock is None else int(kept_lock),
            statistics=statistics,
        )
