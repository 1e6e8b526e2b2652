r"""Time whole generations of a compiled program: a prefill, then a greedy decode step for each further token.

    python -m workers.llm.programs.generate --program inputs/export/config.json --module inputs/compile/model.vmfb \
        --device local-task --batch 1 --prompt-tokens 64 --new-tokens 32 --repetitions 4 --report outputs/times.json

Each time ends when the next tokens are known on the host, as for a caller. Writes {"load_s", "generations":
[{"ttft_ms", "steps_ms", "begin_s"}]}, warm-up included; generations begin at Unix times.
"""

import argparse
import json
import time
from itertools import pairwise
from typing import Any

import torch

from workers.llm.command_line import add_generation_arguments, run
from workers.llm.programs.invoke import add_program_arguments
from workers.llm.runtime.iree_session import IreeSession, set_runtime_flags
from workers.llm.runtime.shark_session import load_session
from workers.llm.runtime.waking import let_workers_finish

TOKEN = 5  #: every token of the prompt: times do not depend on it


def main() -> None:
    """Time the workload of the command line."""
    args = parse_arguments()
    started = time.perf_counter()
    set_runtime_flags(args.runtime_flag)
    session = load_session(args.program, args.module, args.device)
    load_s = time.perf_counter() - started
    let_workers_finish()
    generations = [generate(session, args.batch, args.prompt_tokens, args.new_tokens) for _ in range(args.repetitions)]
    total_ms = generations[-1]["ttft_ms"] + sum(generations[-1]["steps_ms"])
    print(f"batch {args.batch}, {args.prompt_tokens} prompt tokens: {total_ms:.2f} ms", flush=True)
    args.report.write_text(
        json.dumps({"load_s": load_s, "generations": generations}, indent=1) + "\n", encoding="utf-8"
    )


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.generate", description=__doc__.split("\n")[0])
    add_program_arguments(parser)
    add_generation_arguments(parser)
    parser.add_argument("--runtime-flag", action="append", default=[], help="a flag of IREE's runtime; may be repeated")
    return parser.parse_args()


def generate(session: IreeSession, batch: int, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
    """Time one generation."""
    prompts, lengths = torch.full((batch, prompt_tokens), TOKEN), torch.full((batch,), prompt_tokens)
    begin_s, began = time.time(), time.perf_counter_ns()
    chosen = session.prefill_greedily(prompts, lengths)
    times_ns = [time.perf_counter_ns()]
    for position in range(prompt_tokens, prompt_tokens + new_tokens - 1):
        chosen = session.decode_greedily(chosen, torch.full((batch,), position))
        times_ns.append(time.perf_counter_ns())
    steps_ms = [(after - before) / 1e6 for before, after in pairwise(times_ns)]
    return {"ttft_ms": (times_ns[0] - began) / 1e6, "steps_ms": steps_ms, "begin_s": begin_s}


if __name__ == "__main__":
    run(main)
