"""`haloctl node`."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.commands import options


def node(
    head: Annotated[
        str, typer.Option("--head", help="Address of the head's Ray, which the head prints.", metavar="HOST:PORT")
    ],
    name: Annotated[str | None, typer.Option("--name", help="Name of the node; default: the host name.")] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", help="Address that other nodes can reach; default: the one the head sees.", metavar="IP"
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="The head's token; default: HALOCTL_RAY_TOKEN_FILE.", metavar="FILE"),
    ] = None,
    requeue: Annotated[bool, typer.Option("--requeue", help="On a signal, requeue running tasks at once.")] = False,
    log_json: options.LogJson = False,
) -> None:
    """Join a cluster as a node until SIGTERM or Ctrl-C.

    On a signal it lets running tasks finish; a second signal requeues them.
    """
    import socket
    from dataclasses import replace

    from orchestrator.ray_cluster import ray_token
    from orchestrator.ray_cluster.node import JoinConfig, NodeDaemon, find_own_address, validate_node_name
    from orchestrator.settings import from_environment, make_data_folder
    from workers import daemon_log
    from workers.agent.draining import Drain
    from workers.environment import held_back_warning
    from workers.machine.devices import describe_node

    daemon_log.configure("node", is_json=log_json)
    with daemon_log.logged_to_the_end(__name__):
        settings = from_environment()
        make_data_folder(settings)
        described = describe_node(validate_node_name(name or socket.gethostname()))
        described = replace(described, address=address or find_own_address(head))
        token = ray_token.token_environment(settings.data, token_file)
        drain = Drain.REQUEUE if requeue else Drain.FINISH
        if warning := held_back_warning():
            daemon_log.logger(__name__).warning("%s", warning)
        NodeDaemon(JoinConfig(described, head, token, settings.data, drain)).run()
