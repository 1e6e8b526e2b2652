r"""Serve a compiled program: OpenAI's API over HTTP, with continuous batching.

    python -m workers.llm.programs.serve --model tiny-llama --program inputs/export/config.json \
        --module inputs/compile/model.vmfb --device local-task --port 8000

The program's cache must be paged. Prints the address once a first completion has been computed. SIGTERM and Ctrl-C let
requests end for some seconds, then end the server. With HALOCTL_SERVE_KEY set, requests must bring it as their API key.
"""

import argparse
import asyncio
import ipaddress
import json
import os
import socket
import traceback
from collections.abc import Callable, Sequence
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
    write_text,
)
from workers.llm.models.model_source import load_model
from workers.llm.programs.invoke import add_program_arguments
from workers.llm.serving.packages import packages_for_serving

if TYPE_CHECKING:
    from workers.llm.serving.app import Service

KEY_VARIABLE = "HALOCTL_SERVE_KEY"


def main() -> None:
    """Serve until a signal."""
    args = parse_arguments()
    with packages_for_serving():
        from workers.llm.serving.http_server import serve
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


def server_command(args: argparse.Namespace, devices: Sequence[str], name: str | None) -> list[str]:
    """Return the arguments of python that serve the same program on these devices, at any port that is free."""
    return [
        *("-m", "workers.llm.programs.serve", f"--model={args.model}", f"--program={args.program}"),
        *(f"--module={args.module}", *(f"--device={uri}" for uri in devices)),
        *([f"--name={name}"] if name else []),
        *([f"--revision={args.revision}"] if args.revision else []),
        *(f"--override={item}" for item in args.override),
    ]


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
        write_text(ready, json.dumps(facts))


if __name__ == "__main__":
    run(main)
