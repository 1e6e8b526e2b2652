r"""Time whole generations of a model on several ranks, in torch, eager or compiled, with a static KV cache.

    python -m workers.llm.programs.torch_benchmark --model tiny-llama --precision f16 --tp 8 --new-tokens 32 \
        --repetitions 6

Each repetition is a prefill and a greedy decode step for each further token; all ranks begin it together. A rank
measures the time until the next tokens are known on the host. Writes the report on the first node:
{"backend", "threads_per_rank", "workloads": [{"batch", "prompt_tokens", "new_tokens"}], "ranks": [{"rank", "host",
"device", "load_s", "host_memory_bytes", "device_memory_bytes", "times": [{"ttft_ms": [...], "steps_ms": [[...], ...],
"begin_s": [...]}, one for each workload]}]}, warm-up repetitions included; they begin at Unix times.
"""

import argparse
import json
import resource
import socket
import time
from argparse import Namespace
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

from workers.llm.command_line import positive_int, run
from workers.llm.torch_ranks.rank import BACKENDS, TorchRank
from workers.llm.torch_ranks.ranks import add_rank_arguments, run_ranks
from workers.llm.torch_ranks.torch_session import TorchSession

TOKEN = 5  #: every input token: times do not depend on it


def main() -> None:
    """Time every workload."""
    run_ranks(measure, parse_arguments())


def parse_arguments() -> Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.llm.programs.torch_benchmark", description=__doc__.split("\n")[0]
    )
    add_rank_arguments(parser)
    parser.add_argument("--new-tokens", type=positive_int, default=32, help="of each row, the first one included")
    parser.add_argument("--repetitions", type=positive_int, default=6, help="warm-up included")
    parser.add_argument("--report", type=Path, default=Path("outputs/benchmark.json"))
    return parser.parse_args()


def measure(rank: TorchRank, session: TorchSession, args: Namespace) -> None:
    """Time every workload on this rank; the first rank writes the measurements of all."""
    workloads = [
        {"batch": batch, "prompt_tokens": prompt, "new_tokens": args.new_tokens}
        for batch, prompt in product(sorted(args.batch), sorted(args.prompt_tokens))
    ]
    measurements = {
        "rank": rank.number,
        "host": socket.gethostname(),
        "device": str(rank.torch_device),
        "load_s": session.load_s,
        "times": [time_workload(rank, session, workload, args.repetitions) for workload in workloads],
        **peak_memory(rank),
    }
    of_all_ranks: list[Any] = [None] * rank.size
    dist.all_gather_object(of_all_ranks, measurements)
    if rank.number == 0:
        report = {"backend": BACKENDS[rank.device], "threads_per_rank": torch.get_num_threads()}
        report |= {"workloads": workloads, "ranks": of_all_ranks}
        args.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


@torch.inference_mode()
def time_workload(
    rank: TorchRank, session: TorchSession, workload: dict[str, int], repetitions: int
) -> dict[str, list[Any]]:
    """Time the repetitions of a workload on this rank."""
    batch, prompt, new = workload["batch"], workload["prompt_tokens"], workload["new_tokens"]
    tokens = torch.full((batch, prompt), TOKEN, device=rank.torch_device)
    positions = torch.arange(prompt + new, device=rank.torch_device)[None]
    cache = session.new_cache(batch, prompt + new)
    ttft_ms, steps_ms, begin_s = [], [], []
    for _ in range(repetitions):
        cache.reset()
        dist.barrier()
        begin_s.append(time.time())
        times = [now_ms(rank)]
        chosen = session.step(tokens, positions[:, :prompt], cache).argmax(-1)
        times.append(now_ms(rank))
        for position in range(prompt, prompt + new - 1):
            chosen = session.step(chosen, positions[:, position, None], cache).argmax(-1)
            times.append(now_ms(rank))
        ttft, *steps = (after - before for before, after in pairwise(times))
        ttft_ms.append(ttft)
        steps_ms.append(steps)
    summary = f"prefill {ttft_ms[-1]:.2f} ms" + (f", decode {fmean(steps_ms[-1]):.2f} ms" if new > 1 else "")
    print(f"batch {batch}, {prompt} prompt tokens: {summary}", flush=True)
    return {"ttft_ms": ttft_ms, "steps_ms": steps_ms, "begin_s": begin_s}


def now_ms(rank: TorchRank) -> float:
    """Return the time at which the rank's device has finished all its work."""
    if rank.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter_ns() / 1e6


def peak_memory(rank: TorchRank) -> dict[str, int]:
    """Return this rank's peak memory, with its share of the pages that several processes map."""
    rollup = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    others_bytes = 1024 * (int(rollup["Rss"].split()[0]) - int(rollup["Pss"].split()[0]))
    return {
        "host_memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - others_bytes,
        "device_memory_bytes": torch.cuda.max_memory_allocated() if rank.device != "cpu" else 0,
    }


if __name__ == "__main__":
    run(main, has_children=True)
