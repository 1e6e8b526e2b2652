r"""Serve a compiled program: OpenAI's API over HTTP, with continuous batching.

    python -m workers.llm.programs.serve --model tiny-llama --program inputs/export/config.json \
        --module inputs/compile/model.vmfb --device local-task --port 8000

The program's cache must be paged. Prints the address once a first completion has been computed. SIGTERM and Ctrl-C let
requests end for some seconds, then end the server. With HALOCTL_SERVE_KEY set, requests must bring it as their API key.
"""

import argparse
import asyncio
import ipaddress
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers.llm.command_line import (
    EXIT_FAILED,
    BadInput,
    ProgramFailed,
    add_model_arguments,
    parse_overrides,
    positive_int,
    run,
    write_json,
)
from workers.llm.models.model_source import load_model
from workers.llm.programs.invoke import add_program_arguments

if TYPE_CHECKING:
    from workers.llm.serving.app import Service

KEY_VARIABLE = "HALOCTL_SERVE_KEY"


def main() -> None:
    """Serve until a signal."""
    args = parse_arguments()
    try:
        from workers.llm.serving.http_server import serve
    except ModuleNotFoundError as problem:
        raise BadInput(f"serving needs the package {problem.name}: pip install 'haloctl[serve]'") from None
    listening = listen(args.host, args.port, has_key=KEY_VARIABLE in os.environ)
    try:
        serve(listening, lambda *hooks: load(args, *hooks), lambda: announce(listening, args.ready))
    except BadInput:
        raise
    except Exception as problem:
        traceback.print_exc()
        raise ProgramFailed(f"the program failed: {str(problem).splitlines()[0]}", EXIT_FAILED) from None


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.serve", description=__doc__.split("\n")[0])
    add_arguments(parser)
    return parser.parse_args()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a server."""
    add_model_arguments(parser)
    add_program_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--name", help="of the model in the API")
    parser.add_argument("--max-waiting", type=positive_int, default=1024, help="requests that may wait for room")
    parser.add_argument("--ready", type=Path, help="a file that is written once the server answers: its address")


def listen(host: str, port: int, *, has_key: bool) -> socket.socket:
    """Listen on an address. Raises BadInput when it can't, and for others than loopback without a key."""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise BadInput(f"--host {host}: expected an address, such as 127.0.0.1 or 0.0.0.0") from None
    if not is_loopback and not has_key:
        raise BadInput(
            f"--host {host}: others reach this address: set {KEY_VARIABLE} to a key that requests must bring"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as problem:
        raise BadInput(f"--port {port}: cannot listen on {host}: {problem}") from None


def load(args: argparse.Namespace, loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> "Service":
    """Load tokenizer, program and parameters, and start the engine."""
    from workers.llm.serving.app import Service
    from workers.llm.serving.compiled_program import CompiledProgram
    from workers.llm.serving.engine import Engine
    from workers.llm.serving.generation import OutputSpreader
    from workers.llm.serving.texts import TextCodec

    model = load_model(args.model, args.revision, parse_overrides(args.override))
    codec = TextCodec(model)
    program = CompiledProgram(args.program, args.module, args.device)
    engine = Engine(program, OutputSpreader(loop), on_failure=end, max_waiting=args.max_waiting)
    engine.start()
    return Service(engine, codec, args.name or model.source.name, os.environ.get(KEY_VARIABLE))


def announce(listening: socket.socket, ready: Path | None) -> None:
    """Tell where the server answers."""
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
    facts: dict[str, Any] = {"url": url, "pid": os.getpid()}
    print(f"serving at {url}", flush=True)
    if ready:
        partial = ready.with_name(f"{ready.name}.partial")
        write_json(partial, facts)
        partial.replace(ready)


if __name__ == "__main__":
    run(main)
