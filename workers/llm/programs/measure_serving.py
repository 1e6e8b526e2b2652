r"""Serve a compiled program, check that what is served is what the model says, then measure it under load.

    python -m workers.llm.programs.measure_serving --model tiny-llama --program inputs/export/config.json \
        --module inputs/compile/model.vmfb --device local-task --prompt-tokens 64 --new-tokens 32 --concurrency 1 4

Writes the report of workers.llm.serving_load.measuring to outputs/serving.json.
"""

import argparse
import secrets
from pathlib import Path

from workers.llm.command_line import add_model_arguments, parse_overrides, run, write_json
from workers.llm.models.model_source import load_model
from workers.llm.programs.invoke import add_program_arguments
from workers.llm.programs.serve import KEY_VARIABLE, server_command
from workers.llm.runtime.iree_session import read_program
from workers.llm.serving.packages import packages_for_serving
from workers.llm.serving_load.arguments import add_load_arguments
from workers.llm.serving_load.server_process import announced_url, running_server

REPORT = Path("outputs/serving.json")
READY = Path("server.json")


def main() -> None:
    """Check and measure the program of the command line."""
    args = parse_arguments()
    with packages_for_serving():
        from workers.llm.serving_load.measuring import RunningServer, check_and_measure
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    program = read_program(args.program)
    largest = max(entry["batch"] for entry in program["entry_points"] if entry["kind"] == "decode")
    key = secrets.token_urlsafe(24)  # other users of the machine reach loopback, too
    READY.unlink(missing_ok=True)
    command = [*server_command(args, args.device, model.source.name), f"--ready={READY}"]
    with running_server(command, {KEY_VARIABLE: key}, lambda: announced_url(READY)) as url:
        server = RunningServer(url, key, largest, max(program["prompt_tokens"]), program["cache_length"])
        report = check_and_measure(args, model, server)
    write_json(REPORT, report)


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.llm.programs.measure_serving", description=__doc__.split("\n")[0]
    )
    add_model_arguments(parser)
    add_program_arguments(parser)
    add_load_arguments(parser)
    return parser.parse_args()


if __name__ == "__main__":
    run(main, has_children=True)
