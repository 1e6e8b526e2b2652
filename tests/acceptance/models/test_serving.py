"""A compiled program answers requests: `haloctl serve` and the stage `serve`, as their users meet them."""

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from jobs.stages.evaluate import EVALUATE
from jobs.state import Failure, FailureKind
from tests.acceptance.haloctl import Haloctl, Running, opened, short_folder, until
from tests.acceptance.models.evaluation_tasks import write_tasks

VARIANT = "tiny-llama-FP32-paged-TP1"
UNREACHABLE = 6  #: the exit code of a command that needs what a network has
PROMPT = "And the king said unto"
JOB = {
    "name": "serving",
    "model": "tiny-llama",
    "variants": {"precision": "f32", "kv_cache": "paged"},
    "stages": ["export", "compile", "serve"],
    "workload": {"batch": [1, 2], "prompt_tokens": 32, "new_tokens": 16},
    "serve": {
        "concurrency": [1, 3],
        "rates": [20.0],
        "slo": {"ttft_ms": 60_000},
        "requests": 2,
        "rounds": 1,
        "sequences": 12,
        "decode_batch": [1, 2],
        "prefill_batch": [1, 2],
        "chunk_tokens": 16,
    },
}


@dataclass(frozen=True)
class Served:
    """A job that has served a variant, and a server of the same variant."""

    haloctl: Haloctl
    job: list[dict[str, Any]]  #: its matrix
    command: Running
    url: str

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=60)

    def samples(self, name: str) -> list[Sample]:
        with urllib.request.urlopen(f"{self.url.removesuffix('/v1')}/metrics", timeout=10) as response:
            families = text_string_to_metric_families(response.read().decode())
        return [sample for family in families for sample in family.samples if sample.name == name]

    def metric(self, name: str) -> float:
        return self.samples(name)[0].value

    def replicas(self) -> tuple[set[str], float]:
        """The replicas that answer, and how often any was started."""
        up = {sample.labels["replica"] for sample in self.samples("haloctl:replica_up") if sample.value}
        return up, sum(sample.value for sample in self.samples("haloctl:replica_starts_total"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with short_folder() as temporary, opened(tmp_path_factory.mktemp("serving"), temporary) as haloctl:
        matrix = haloctl.json("submit", haloctl.job(**JOB), "--wait")
        command = haloctl.start("serve", VARIANT, "--port", "0")
        until(lambda: command.out.endswith("/v1\n") or command.process.poll() is not None, "an address")
        assert command.process.poll() is None, command.err
        yield Served(haloctl, matrix, command, command.out.strip())


def test_the_stage_holds_what_is_served_against_the_reference_and_measures_it(served: Served) -> None:
    (row,) = served.job
    assert row["stages"]["serve"]["state"] == "succeeded"
    rows = served.haloctl.json("results", "--variant", VARIANT)
    medians = {(row["metric"], row["batch"]): row["median"] for row in rows}
    assert medians["serving_other_tokens", None] == 0
    samples = {(row["metric"], row["batch"]): len(row["samples"]) for row in rows}
    for concurrency in (1, 3):
        assert samples["serving_ttft_ms", concurrency] == 2 * concurrency
        assert medians["serving_tokens_per_s", concurrency] > 0
    assert medians["serving_max_rate_rps", None] == 20.0
    assert "TPOT" in served.haloctl.answer("matrix")


def test_a_stream_is_the_whole_answer_in_pieces(served: Served) -> None:
    options: Any = {"model": "tiny-llama", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    whole = served.client.completions.create(**options)
    assert whole.usage is not None and whole.usage.completion_tokens == 12
    assert whole.choices[0].finish_reason == "length"
    pieces = list(served.client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole.choices[0].text
    assert sum(bool(piece.choices) for piece in pieces) == 12  # an event for each token
    assert pieces[-1].usage == whole.usage


def test_a_text_that_stops_is_not_told(served: Served) -> None:
    options: Any = {"model": "tiny-llama", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    whole = served.client.completions.create(**options).choices[0].text
    stop = whole[6:9]
    answer = served.client.completions.create(**options, stop=stop)
    stream = served.client.completions.create(**options, stop=stop, stream=True)
    for choices in ([answer.choices[0]], [piece.choices[0] for piece in stream]):
        assert "".join(choice.text for choice in choices) == whole[: whole.index(stop)]
        assert choices[-1].finish_reason == "stop"


def test_several_prompts_as_tokens_get_several_answers(served: Served) -> None:
    answer = served.client.completions.create(
        model="tiny-llama",
        prompt=[[1, 5, 9], [1, 7]],
        max_tokens=3,
        n=2,
        temperature=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    tokens = [choice.model_extra["token_ids"] for choice in answer.choices if choice.model_extra]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert tokens[0] == tokens[1] and tokens[2] == tokens[3] and all(len(each) == 3 for each in tokens)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 12)


def test_a_seed_repeats_a_sampled_answer(served: Served) -> None:
    def sampled(seed: int) -> str:
        answer = served.client.completions.create(
            model="tiny-llama", prompt=PROMPT, max_tokens=16, temperature=1.5, top_p=0.95, seed=seed
        )
        return answer.choices[0].text

    texts = {seed: sampled(seed) for seed in range(4)}
    assert texts == {seed: sampled(seed) for seed in range(4)}
    assert len(set(texts.values())) > 1


def test_a_prompt_is_scored_as_its_tokens_would_be(served: Served) -> None:
    """What lm-eval asks for: the log probabilities of a prompt that the model itself has made."""
    made = served.client.completions.create(
        model="tiny-llama", prompt=PROMPT, max_tokens=24, temperature=0, logprobs=1, extra_body={"ignore_eos": True}
    )
    told = made.choices[0].logprobs
    text = PROMPT + made.choices[0].text
    scored = served.client.completions.create(
        model="tiny-llama", prompt=text, max_tokens=1, temperature=0, logprobs=1, echo=True
    )
    logprobs = scored.choices[0].logprobs
    assert told is not None and logprobs is not None
    assert told.token_logprobs is not None and logprobs.token_logprobs is not None
    assert scored.choices[0].text.startswith(text)
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[-25:-1] == pytest.approx(told.token_logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("completions", b"no json", 400, "must be a JSON object"),
        ("completions", b'{"prompt": [], "max_tokens": 1}', 400, "prompt is empty"),
        ("completions", b'{"prompt": [1, 99999]}', 400, "token 99999 does not exist"),
        ("completions", b'{"prompt": "a", "max_tokens": 4000}', 400, "more than the"),
        ("completions", b'{"prompt": "a", "top_p": 1.5}', 400, "top_p"),
        ("completions", b'{"prompt": "a", "temperature": NaN}', 400, "temperature: Input should be a finite number"),
        ("completions", b'{"prompt": "a", "logit_bias": {"5": 100}}', 400, "logit_bias is not supported"),
        ("completions", b'{"prompt": "a", "model": "gpt-9"}', 404, "there is no model gpt-9"),
        ("completions", b'{"prompt": "' + b"a" * (17 << 20) + b'"}', 413, "more than 16 MiB"),
        ("chat/completions", b'{"messages": [{"role": "user", "content": "a"}]}', 400, "no chat template"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_request_is_told_what_is_wrong(
    served: Served, path: str, body: bytes, status: int, message: str
) -> None:
    request = urllib.request.Request(f"{served.url}/{path}", body, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == status
    assert message in json.loads(refused.value.read())["error"]["message"]


def test_a_client_that_leaves_frees_its_blocks(served: Served) -> None:
    stream = served.client.completions.create(
        model="tiny-llama", prompt=PROMPT, max_tokens=30, n=64, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    until(lambda: served.metric("vllm:num_requests_running") == 0, "the end of what nobody reads")
    assert served.metric("vllm:kv_cache_usage_perc") == 0


def test_a_port_in_use_is_told(served: Served) -> None:
    port = served.url.rpartition(":")[2].removesuffix("/v1")
    done = served.haloctl.run("serve", VARIANT, "--port", port)
    assert done.code == 3
    assert f"--port {port}: cannot listen on 127.0.0.1" in served.haloctl.answer("list") + done.err


def test_what_cannot_be_served_is_told(served: Served) -> None:
    done = served.haloctl.run("serve", "tiny-llama-FP32-TP1")
    assert done.code == 5
    assert f"did you mean {VARIANT}" in done.err


def test_the_program_is_evaluated_item_by_item_beside_the_reference(served: Served, tmp_path: Path) -> None:
    """Multiple choice, answers and whole texts; then with parameters of which a few are wrong."""
    built = served.haloctl.run("toolchains", "build", "lm-eval")
    if built.code == UNREACHABLE:
        pytest.skip(f"packages can't be fetched here: {built.err}")
    assert built.code == 0, built.err
    tasks = write_tasks(served.haloctl.folder / "tasks")
    stages = ["export", "compile", "reference", "evaluate"]
    job = {**JOB, "stages": stages, "evaluate": {"tasks": "tasks", "items": 64, "few_shot": 0}}
    done = served.haloctl.run("submit", served.haloctl.job(**job), "--wait")
    assert done.code == 0, done.err
    rows = served.haloctl.json("results", "--variant", VARIANT, "--metric", "eval_*")
    scores = {(row["evaluation"], row["metric"]): row["median"] for row in rows}
    assert scores["verse_ends acc", "eval_score"] > 0.25
    assert scores["texts word_perplexity", "eval_loss"] > 1
    assert scores["verse_ends acc", "eval_stderr"] == pytest.approx(0.06, abs=0.01)
    for evaluation in ("verse_ends acc", "verse_ends acc_norm", "next_words exact_match,word"):
        assert scores[evaluation, "eval_drop"] == 0
    assert abs(scores["texts word_perplexity", "eval_drop"]) < 1e-3 * scores["texts word_perplexity", "eval_loss"]
    assert "are longer than the 48 tokens of the workload" in done.err
    failure = spoiled_evaluation(served.haloctl, tasks, tmp_path)
    assert failure is not None
    assert failure.kind is FailureKind.WRONG_NUMBERS
    assert "texts word_perplexity" in failure.message


def spoiled_evaluation(haloctl: Haloctl, tasks: Path, folder: Path) -> Failure | None:
    """Return what the stage says of the same program with a part of its parameters set to zero."""
    haloctl.answer("artifacts", "get", VARIANT, "-o", str(folder / "program"))
    (parameters,) = (folder / "program").glob("*.irpa")
    content = bytearray(parameters.read_bytes())
    content[len(content) // 2 : len(content) // 2 + (200 << 10)] = bytes(200 << 10)
    parameters.unlink()
    parameters.write_bytes(content)
    (reference,) = (row["path"] for row in haloctl.json("artifacts") if row["name"] == "reference.json")
    (python,) = map(str, (haloctl.data / "toolchains").glob("*/bin/python"))
    (folder / "outputs").mkdir()
    program = [
        f"--program={folder}/program/config.json",
        f"--module={folder}/program/model.vmfb",
        "--device=local-task",
    ]
    files = [f"--task-file={path.relative_to(tasks)}={path}" for path in tasks.rglob("*") if path.is_file()]
    argv = [python, "-m", "workers.llm.programs.evaluate", "--model=tiny-llama", *program, f"--reference={reference}"]
    sizes = ["--items=64", "--few-shot=0", "--max-tokens=48", "--new-tokens=16"]
    subprocess.run([*argv, *files, *sizes], cwd=folder, env=haloctl.environment, stdin=subprocess.DEVNULL, check=True)
    return EVALUATE.parse({"max_drop_percent": 1.0, "max_tokens": 48}, folder).failure


def test_variables_that_the_server_does_not_see_are_told(served: Served) -> None:
    done = served.haloctl.but_with(MKL_CBWR="AVX2").run("serve", "tiny-llama-FP32-TP1")
    assert "MKL_CBWR" in done.err


def test_a_cancelled_server_lets_requests_end_and_is_gone(
    served: Served,
) -> None:  # it ends the server, whose core the last test needs
    (job,) = (row["job"] for row in served.haloctl.json("list") if row["state"] == "running")
    stream = served.client.completions.create(
        model="tiny-llama", prompt=PROMPT, max_tokens=40, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert "cancelled 1 task" in served.haloctl.answer("cancel", job)
    assert sum(1 for _ in stream) == 39
    assert served.command.end().code == 0
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(served.url.split(":")[2].removesuffix("/v1"))), 5)


def test_a_replica_that_dies_comes_back_and_the_other_goes_on(served: Served) -> None:
    command = served.haloctl.start("serve", VARIANT, "--port", "0", "--replicas", "2")
    until(lambda: command.out.endswith("/v1\n") or command.process.poll() is not None, "an address")
    copies = Served(served.haloctl, [], command, command.out.strip())
    until(lambda: copies.replicas() == ({"0", "1"}, 2), "both replicas")
    first = next(process for process in served.haloctl.processes() if "replica0.json" in " ".join(process.cmdline()))
    first.kill()
    for _ in range(20):  # what comes after its death is answered by the other
        with suppress(openai.APIStatusError):
            copies.client.completions.create(model="tiny-llama", prompt=PROMPT, max_tokens=2, temperature=0)
    until(lambda: copies.replicas() == ({"0", "1"}, 3), "the replica that was killed")
    answer = copies.client.completions.create(model="tiny-llama", prompt=PROMPT, max_tokens=2, temperature=0)
    assert answer.usage is not None and answer.usage.completion_tokens == 2
    command.signal(signal.SIGINT)
    assert command.end().code == 130
