"""`haloctl serve`."""

from typing import Annotated

import typer

from orchestrator.commands import options


def serve(
    name: Annotated[str, typer.Argument(help="A variant's name, as in the matrix.", metavar="VARIANT")],
    target: options.Target = None,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on. Others than loopback need HALOCTL_SERVE_KEY on the node."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes any.", min=0, max=65535)] = 8000,
    replicas: Annotated[
        int, typer.Option("--replicas", help="Copies of the program, each on devices of its own.", min=1, max=64)
    ] = 1,
    detach: Annotated[bool, typer.Option("--detach", help="Leave the server to the head, and print its job.")] = False,
    json: options.Json = False,
) -> None:
    """Serve a compiled variant over OpenAI's API until it is cancelled.

    The variant needs a paged KV cache. What is not compiled yet for serving is compiled first. The address is printed
    once the server answers; Ctrl-C ends it, and so does `haloctl cancel`. `haloctl list` shows servers.
    """
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.follow import servers, waiting
    from orchestrator.submission import preparation, serving

    if not detach:
        output.warn_of_held_back_variables()
    with open_context() as context:
        settings = {"host": host, "port": port, "replicas": replicas}
        planned = serving.serving_job(context, name, target, settings)
        job = preparation.store_job(context.store, planned.spec, planned.model, planned.plan)
        if detach:
            output.print_json({"job": job}) if json else output.print_line(job)
            return
        output.print_message(f"job {job}: serves {name}")
        with servers.announced(context, job, json=json):
            waiting.wait_for_server(context, job)
