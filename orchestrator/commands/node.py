"""`haloctl node`."""

from pathlib import Path

import typer


def node(
    head: str = typer.Option(..., "--head", help="Where the head's Ray listens: it says so.", metavar="HOST:PORT"),
    name: str = typer.Option(None, "--name", help="What the node is called; default: the machine's name."),
    address: str = typer.Option(
        None, "--address", help="Where the others reach it; default: what the head sees.", metavar="IP"
    ),
    token_file: Path = typer.Option(
        None, "--token-file", help="The head's token; default: HALOCTL_RAY_TOKEN_FILE.", metavar="FILE"
    ),
    hand_back: bool = typer.Option(
        False, "--hand-back", help="When told to leave, hand back what runs, instead of letting it finish."
    ),
) -> None:
    """Join a cluster and run what its head asks for, until a signal comes.

    SIGTERM or Ctrl-C lets what runs finish; another one hands it back to the queue.
    """
    import socket
    from dataclasses import replace

    from orchestrator import output
    from orchestrator.cluster import ray_token
    from orchestrator.cluster.node import Joining, NodeDaemon, checked_name, own_address
    from orchestrator.settings import from_environment, make_data_folder
    from workers.devices import describe_node
    from workers.draining import Drain

    settings = from_environment()
    make_data_folder(settings)
    described = describe_node(checked_name(name or socket.gethostname()))
    described = replace(described, address=address or own_address(head))
    token = ray_token.given(settings.data, token_file, output.note)
    leaves = Drain.HAND_BACK if hand_back else Drain.FINISH
    NodeDaemon(Joining(described, head, token, settings.data, leaves), output.note).run()
