r"""Time whole generations of a compiled program: a prefill, then a decode step for each further token, chosen greedily.

    python -m workers.llm.generate --program inputs/export/config.json --module inputs/compile/model.vmfb \
        --device local-task --batch 1 --prompt-tokens 64 --new-tokens 32 --repetitions 4 --report outputs/times.json

As a caller has it: a time ends when the next tokens are known on the host. Writes {"load_s", "generations":
[{"ttft_ms", "steps_ms"}]}; warm-up is in it like all others.
"""

import argparse
import json
import time
from itertools import pairwise
from typing import Any

import torch

from workers.llm.invoke import add_program_arguments
from workers.llm.program import add_generation_arguments, run
from workers.llm.session import Session
from workers.llm.shark_session import load_session

TOKEN = 5  #: every token of the prompt: time does not depend on which


def main() -> None:
    """Time one workload."""
    args = _arguments()
    started = time.perf_counter()
    session = load_session(args.program, args.module, args.device)
    load_s = time.perf_counter() - started
    found = [generate(session, args.batch, args.prompt_tokens, args.new_tokens) for _ in range(args.repetitions)]
    print(f"batch {args.batch}, {args.prompt_tokens} prompt tokens: {total_ms(found[-1]):.2f} ms", flush=True)
    args.report.write_text(json.dumps({"load_s": load_s, "generations": found}, indent=1) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.llm.generate", description=__doc__.split("\n")[0])
    add_program_arguments(parser)
    add_generation_arguments(parser)
    return parser.parse_args()


def generate(session: Session, batch: int, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
    """The times of one generation."""
    prompts, lengths = torch.full((batch, prompt_tokens), TOKEN), torch.full((batch,), prompt_tokens)
    began = time.perf_counter_ns()
    chosen = session.prefill(prompts, lengths).argmax(-1)
    times_ns = [time.perf_counter_ns()]
    for position in range(prompt_tokens, prompt_tokens + new_tokens - 1):
        chosen = session.decode(chosen, torch.full((batch,), position)).argmax(-1)
        times_ns.append(time.perf_counter_ns())
    steps_ms = [(after - before) / 1e6 for before, after in pairwise(times_ns)]
    return {"ttft_ms": (times_ns[0] - began) / 1e6, "steps_ms": steps_ms}


def total_ms(generation: dict[str, Any]) -> float:
    """From the beginning to the last token."""
    return float(generation["ttft_ms"] + sum(generation["steps_ms"]))


if __name__ == "__main__":
    run(main, is_in_iree=True)
