"""Job files: every key with every nasty value, products and nesting without bounds, and text that is no YAML."""

import os
import random
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from jobs.job_file.spec import JobSpec
from jobs.models import RECIPES
from jobs.variants import AXES
from tests.fuzz.harness import REFUSED, Case
from tests.fuzz.nasty_values import YAML_VALUES

BASE: dict[str, Any] = {"name": "fuzz", "model": "tiny-llama", "stages": ["export", "compile"]}
PLACE = "THE_PLACE_OF_THE_VALUE"
MAX_REFUSAL_S = 2.0
MAX_REFUSAL_MIB = 300
ALIASES_DEEP = 9
MUTATIONS = 700


def cases(chance: random.Random) -> Iterator[Case]:
    """Yield all job files."""
    for key in keys():
        for what, value in YAML_VALUES.items():
            yield submit_case(f"{'.'.join(key)} is {what}", with_value(key, value), is_dry=chance.random() < 0.5)
    for what, text in BOMBS.items():
        yield submit_case(what, text, codes=REFUSED, max_wall_s=MAX_REFUSAL_S, max_peak_mib=MAX_REFUSAL_MIB)
    for what, content in TEXTS.items():
        yield submit_case(what, content)
    for number in range(MUTATIONS):
        yield submit_case(f"mutation {number}", mutated(chance))


def keys(model: type[BaseModel] = JobSpec, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key of a job file, sections included."""
    for name, field in model.model_fields.items():
        yield (*at, name)
        parts = (field.annotation, *getattr(field.annotation, "__args__", ()))
        for section in parts:
            if isinstance(section, type) and issubclass(section, BaseModel):
                yield from keys(section, (*at, name))
    if model is JobSpec:
        yield from (("unknown",), ("variants", "exclude", "0"), ("overrides", "num_hidden_layers"))
        yield from (("overrides", "rope_theta"), ("quantize", "options", "haloctl"), ("torch", "inductor", "freezing"))


def with_value(key: tuple[str, ...], value: str) -> str:
    """Return a job file whose `key` is a YAML text."""
    at: Any = PLACE
    for part in reversed(key):
        at = [at] if part.isdigit() else {part: at}
    return yaml.safe_dump({**BASE, **at}, sort_keys=False).replace(PLACE, value)


def submit_case(name: str, text: str | bytes, *, is_dry: bool = True, **options: Any) -> Case:
    """Return the submission of a job file, with the links and pipes that values name beside it."""
    argv = ("submit", "job.yaml", *(["--dry-run"] if is_dry else []))
    return Case(name, argv, {"job.yaml": text}, prepare=make_odd_files, **options)


def make_odd_files(folder: Path) -> None:
    """Make a loop of links, and a pipe that nobody writes to."""
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")


def mutated(chance: random.Random) -> bytes:
    """Return a recipe in which some bytes are changed, lost, doubled or cut."""
    text = bytearray(chance.choice(sorted(RECIPES.glob("*.yaml"))).read_bytes())
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        begin = chance.randrange(len(text))
        end = min(len(text), begin + chance.choice((1, 1, 3, 30)))
        change = chance.randrange(5)
        if change == 0:
            text[begin:end] = chance.randbytes(end - begin)
        elif change == 1 and len(text) > 60:
            del text[begin:end]
        elif change == 2:
            text[begin:begin] = text[begin:end]
        elif change == 3:
            text[begin:begin] = chance.choice(list(YAML_VALUES.values())).encode("utf-8", "surrogatepass")
        else:
            text[begin:end] = chance.choice(b":[]{}&*!|>'\"%@#-,?\n\t 0").to_bytes(1, "big")
    return bytes(text)


def _job(**changes: Any) -> str:
    return yaml.safe_dump({**BASE, **changes}, sort_keys=False)


def _aliases(depth: int, width: int) -> str:
    """Return the billion laughs: each list has the one before it `width` times."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]" for level in range(1, depth)]
    return "\n".join(["name: x", "model: tiny-llama", *lines, ""])


def _every_axis() -> Mapping[str, Any]:
    values = {name: [value.value for value in kind] for name, kind in AXES.items() if issubclass(kind, StrEnum)}
    return {
        **values,
        "target": ["cpu", "mi300x", "mi325x", "mi350x", "h100", "h200"],
        "tp": list(range(1, 65)),
        "pp": list(range(1, 65)),
        "nodes": list(range(1, 65)),
        "engine": ["iree", "torch", "torch-compile", "vllm"],
        "quantizer": ["haloctl", "llm-compressor", "quark", "brevitas", "gptqmodel", "torchao", "gguf"],
        "exporter": ["haloctl", "sharktank"],
    }


_MANY = list(range(1, 1001))

#: What has to be refused within moments, whatever it would become.
BOMBS: dict[str, str] = {
    "nine aliases of nine": _aliases(ALIASES_DEEP, 9),
    "aliases in the name": _aliases(7, 9) + "name2: *a6\n",
    "aliases in exclusions": "name: x\nmodel: tiny-llama\nvariants:\n  tp: &a [1]\n  exclude:\n"
    + "    - &e {tp: 1}\n" + "    - *e\n" * 3000,
    "a merge bomb": "name: x\nmodel: tiny-llama\na: &a {x: 1}\n"
    + "".join(f"{name}: &{name} {{<<: [{', '.join(['*' + chr(ord(name) - 1)] * 9)}]}}\n" for name in "bcdefgh"),
    "every axis": _job(variants=_every_axis()),
    "5,000 exclusions": _job(variants={"tp": list(range(1, 65)), "exclude": [{"tp": 1 + i % 64} for i in range(5000)]}),
    "1,000 x 1,000 workloads": _job(workload={"batch": _MANY, "prompt_tokens": _MANY}, stages=["export"]),
    "1,000 x 1,000 benchmarks": _job(
        workload={"batch": _MANY, "prompt_tokens": _MANY}, variants={"engine": "torch"}, stages=["benchmark"]
    ),
    "a billion processes": _job(variants={"engine": "torch"}, stages=["benchmark"], benchmark={"processes": 10**9}),
    "a billion repetitions": _job(variants={"engine": "torch"}, stages=["benchmark"], benchmark={"repetitions": 10**9}),
    "a million models": _job(model=[f"./m{number}" for number in range(80_000)]),
    "a thousand flags": _job(compile={"flags": ["--iree-opt-level=O3"] * 20_000}),
    "deep lists": "name: x\nmodel: " + "[" * 50_000 + "]" * 50_000,
    "deep mappings": "name: x\nmodel: " + "{a: " * 20_000 + "1" + "}" * 20_000,
    "deep blocks": "name: x\nmodel:\n" + "".join(" " * depth + "-\n" for depth in range(1, 1200)),
    "a wide mapping": "name: x\nmodel: tiny-llama\n" + "".join(f"k{number}: 1\n" for number in range(60_000)),
    "two megabytes": "name: x\nmodel: tiny-llama\n#" + "x" * (2 << 20),
    "deep overrides": _job().replace("name: fuzz", "name: fuzz\noverrides: {x: " + "[" * 900 + "]" * 900 + "}"),
    "wide overrides": _job(overrides={f"key{number}": number for number in range(20_000)}),
}  # fmt: skip

#: Texts that are hardly job files.
TEXTS: dict[str, str | bytes] = {
    "empty": b"",
    "only a NUL": b"\0",
    "a byte order mark": b"\xef\xbb\xbfname: x\nmodel: tiny-llama\n",
    "UTF-16": "name: x\nmodel: tiny-llama\n".encode("utf-16"),
    "Latin-1": b"name: caf\xe9\nmodel: tiny-llama\n",
    "an overlong sequence": b"name: \xc0\x80\nmodel: tiny-llama\n",
    "a control character": b"name: a\x01b\nmodel: tiny-llama\n",
    "a form feed": b"name: a\x0cb\nmodel: tiny-llama\n",
    "DEL": b"name: a\x7fb\nmodel: tiny-llama\n",
    "NEL": "name: a\x85b\nmodel: tiny-llama\n",
    "carriage returns": b"name: x\rmodel: tiny-llama\r",
    "JSON": b'{"name": "x", "model": "tiny-llama", "stages": ["export"]}',
    "a number": b"7",
    "text": b"hello",
    "two documents": b"name: x\nmodel: tiny-llama\n---\nname: y\n",
    "directives": b"%YAML 9.9\n---\nname: x\nmodel: tiny-llama\n",
    "a wrong directive": b"%TAG ! \n---\nname: x\n",
    "a list as key": b"[1]: 2\nname: x\nmodel: tiny-llama\n",
    "a mapping as key": b"? {a: 1}\n: 2\nname: x\nmodel: tiny-llama\n",
    "null as key": b"~: 2\nname: x\nmodel: tiny-llama\n",
    "a number as key": b"1: 2\nname: x\nmodel: tiny-llama\n",
    "infinity as key": b".inf: 2\nname: x\nmodel: tiny-llama\n",
    "a date as key": b"2001-01-01: 2\nname: x\nmodel: tiny-llama\n",
    "a wrong date as key": b"2001-99-99: 2\nname: x\nmodel: tiny-llama\n",
    "an anchor as key": b"&a name: x\nmodel: tiny-llama\n",
    "an alias as key": b"name: &a x\n*a : 2\nmodel: tiny-llama\n",
    "a merge at the top": b"<<: {name: x}\nmodel: tiny-llama\n",
    "a tagged document": b"!!python/object:os.system {}\n",
    "a set": b"!!set {name, model}\n",
    "a self-reference": b"&a {name: x, model: tiny-llama, overrides: {x: *a}}\n",
    "a self-reference in a list": b"name: x\nmodel: &a [tiny-llama, *a]\n",
}
