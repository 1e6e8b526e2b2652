"""`haloctl web`."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_PORT = 8780


def web(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.", metavar="IP")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="Port to listen on; 0: any that is free.", min=0, max=65535)
    ] = DEFAULT_PORT,
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", help="A certificate, in PEM, with its chain.", dir_okay=False)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="The certificate's key.", dir_okay=False)] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Allow others than loopback without TLS, behind a proxy that has it.")
    ] = False,
    readable: Annotated[
        list[Path] | None,
        typer.Option(
            "--models", help="A folder with models and files that jobs sent to the server may name.", file_okay=False
        ),
    ] = None,
) -> None:
    """Serve the matrix, jobs and results over HTTP, with pages for people, until SIGTERM or Ctrl-C.

    It reads the database as other commands do; a head need not run. The token to log in with is in the file that it
    names.
    """
    from jobs.errors import BadSetting
    from orchestrator import output
    from orchestrator.context import open_context

    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise BadSetting("haloctl web", f"{error.name} is missing: run pip install 'haloctl[web]'") from None

    from orchestrator.submission.readable_folders import ReadableFolders
    from orchestrator.web import local_token, server

    if (tls_certificate is None) != (tls_key is None):
        raise BadSetting("--tls-certificate, --tls-key", "give both or none")
    tls = server.Tls(tls_certificate, tls_key) if tls_certificate and tls_key else None
    folders = ReadableFolders(tuple(folder.resolve() for folder in readable or ()))
    with open_context() as context, server.listen(host, port, is_private=bool(tls) or plain_http) as listening:
        site = server.make_site(context, folders)
        address = server.address_of(listening, has_tls=tls is not None)

        def announce() -> None:
            output.print_line(f"serving at {address}")
            output.print_message(f"log in with the token in {local_token.token_file(context.settings.data)}")

        server.serve(site, listening, tls, announce)
