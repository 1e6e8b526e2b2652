r"""Load a compiled program on its devices and call every entry point once: does it run, and are its numbers finite?

    python -m workers.llm.programs.invoke --program inputs/export/config.json --module inputs/compile/model.vmfb \
        --device local-task

Writes outputs/invoke.json: {"load_s", "calls": [{"entry_point", "seconds", "finite", "max_abs_logit"}]}; the largest
logit is null when some are not finite.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from workers.llm.command_line import run
from workers.llm.runtime.iree_session import IreeSession
from workers.llm.runtime.shark_session import load_session

REPORT = Path("outputs/invoke.json")


def main() -> None:
    """Call every entry point once."""
    args = parse_arguments()
    started = time.monotonic()
    session = load_session(args.program, args.module, args.device)
    load_s = time.monotonic() - started
    print(f"loaded in {load_s:.2f} s", flush=True)
    calls = [invoke(session, entry) for entry in in_order(session.program["entry_points"])]
    REPORT.write_text(json.dumps({"load_s": load_s, "calls": calls}, indent=2) + "\n", encoding="utf-8")


def add_program_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every program that runs a compiled one."""
    parser.add_argument("--program", type=Path, required=True, help="config.json from export, parameters beside it")
    parser.add_argument("--module", type=Path, required=True, help="the compiled program, a vmfb")
    parser.add_argument(
        "--device", action="append", required=True, help="IREE device URI; one for each logical device, in order"
    )


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.invoke", description=__doc__.split("\n")[0])
    add_program_arguments(parser)
    return parser.parse_args()


def in_order(entry_points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entry points with prefills first, so that decodes read a written cache."""
    return sorted(entry_points, key=lambda entry: entry["kind"] != "prefill")


def arguments_for(entry: dict[str, Any], vocab_size: int) -> list[torch.Tensor]:
    """Return the arguments but the block table: different tokens, and lengths or positions that fit every bucket.

    Token 0 is left out: as padding its embedding is zero, and so would be everything computed from it.
    """
    batch, width = entry["batch"], entry.get("prompt_tokens", 1)
    tokens = 1 + torch.arange(batch * width).view(batch, width) % (vocab_size - 1)
    full = torch.full((batch,), width)
    if entry["kind"] == "sample":
        logits = torch.arange(batch * vocab_size).view(batch, 1, vocab_size).float().sin()
        return [logits, torch.ones(batch), full * 40, torch.full((batch,), 0.9), torch.arange(batch)]
    if "starts" in (argument["name"] for argument in entry["arguments"]):
        return [tokens, full, torch.zeros_like(full), *([tokens] if entry["kind"] == "score" else [])]
    return [tokens, full]


def invoke(session: IreeSession, entry: dict[str, Any]) -> dict[str, Any]:
    """Call an entry point once and describe the result: numbers should be finite, and tokens some."""
    arguments = arguments_for(entry, session.program["vocab_size"])
    started = time.monotonic()
    outputs = session.outputs(entry, *arguments)
    seconds = time.monotonic() - started
    finite = all(map(_is_sound, outputs.values()))
    largest = float(next(iter(outputs.values())).abs().max()) if finite else None
    name = entry.get("label", entry["name"])
    print(f"{name}: {seconds:.3f} s, {'finite' if finite else 'NOT FINITE'}", flush=True)
    return {"entry_point": name, "seconds": seconds, "finite": finite, "max_abs_logit": largest}


def _is_sound(values: torch.Tensor) -> bool:
    return bool((values.isfinite() if values.is_floating_point() else values >= 0).all())


if __name__ == "__main__":
    run(main)
