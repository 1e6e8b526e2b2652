r"""Serve several copies of a compiled program at one address, each on its own devices; see workers.llm.programs.serve.

    python -m workers.llm.programs.serve_replicas --replicas 2 --device local-task --device local-task ...

A replica that ends by itself is started again; meanwhile the others answer.
"""

import argparse
import asyncio
import os
import signal
import socket
from pathlib import Path

from workers.llm.command_line import BadInput, positive_int, run
from workers.llm.programs.serve import (
    KEY_VARIABLE,
    add_arguments,
    announce,
    listen,
    server_command,
)
from workers.llm.serving.packages import packages_for_serving


def main() -> None:
    """Serve until a signal."""
    args = parse_arguments()
    with packages_for_serving():
        from workers.llm.serving.proxy import run_proxy
        from workers.llm.serving.replicas import Replica
    listening = listen(args.host, args.port, has_key=KEY_VARIABLE in os.environ)
    options = [f"--max-waiting={args.max_waiting}"]
    replicas = [
        Replica(
            number,
            [*server_command(args, devices, args.name), *options],
            Path(f"replica{number}.json").absolute(),
        )
        for number, devices in enumerate(shares(args.device, args.replicas))
    ]

    async def serve() -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        serving = asyncio.create_task(run_proxy(replicas, listening, ended))
        await first_answer(replicas, serving, listening, args.ready)
        await serving

    async def first_answer(
        starting: list[Replica], serving: "asyncio.Task[None]", address: socket.socket, ready: Path | None
    ) -> None:
        while not serving.done():
            if any(replica.url for replica in starting):
                announce(address, ready)
                return
            await asyncio.wait((serving,), timeout=0.1)

    asyncio.run(serve())


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.serve_replicas", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--replicas", type=positive_int, required=True)
    return parser.parse_args()


def shares(devices: list[str], replicas: int) -> list[list[str]]:
    """Return the devices of each replica. Raises BadInput where they are not the same number for each."""
    if len(devices) % replicas:
        raise BadInput(f"{len(devices)} devices are no even share for {replicas} replicas")
    size = len(devices) // replicas
    return [devices[start : start + size] for start in range(0, len(devices), size)]


if __name__ == "__main__":
    run(main, has_children=True)
