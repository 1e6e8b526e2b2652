"""Checkpoints: configs, tokenizers, headers and indexes with every nasty value, and folders that are odd."""

import json
import os
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jobs.models import SHIPPED
from tests.fuzz.harness import Case
from tests.fuzz.nasty_values import JSON_VALUES

TINY = SHIPPED / "tiny-llama"
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
JOB = "name: fuzz\nmodel: ./model\nvariants: {tp: [1, 2]}\nstages: [export, compile, numerics]\n"
PLACE = "THE PLACE OF THE VALUE"
PWNED = "pwned"

#: Sizes of a small model of any family.
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

#: Keys that families read beside those of SIZES.
FAMILY_KEYS: dict[str, tuple[str, ...]] = {
    "llama": (
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "quantization_config",
        "auto_map",
        "num_labels",
        "dtype",
    ),
    "mixtral": ("num_local_experts", "num_experts_per_tok", "sliding_window"),
    "gemma2": ("sliding_window", "layer_types", "query_pre_attn_scalar", "attn_logit_softcapping"),
    "gpt_neox": ("rotary_pct", "hidden_act"),
    "phi3": ("original_max_position_embeddings", "rope_scaling", "partial_rotary_factor"),
    "qwen3": ("layer_types", "max_window_layers", "use_sliding_window"),
}

TOKENIZER_KEYS = (
    "tokenizer_class",
    "auto_map",
    "bos_token",
    "added_tokens_decoder",
    "model_max_length",
    "extra_special_tokens",
)
TOKENIZER_PARTS = ("model", "added_tokens", "normalizer", "pre_tokenizer", "decoder", "post_processor", "version")
HEADER_FIELDS = ("dtype", "shape", "data_offsets")

#: Code that must never run: it would leave a file beside the job file.
EVIL_CODE = f"open({PWNED!r}, 'w').close()\n"
EVIL_CLASS = EVIL_CODE + "class Evil:\n    def __init__(self, *args, **kwargs): ...\n    from_pretrained = __init__\n"


def cases(chance: random.Random) -> Iterator[Case]:
    """Yield all checkpoints."""
    for family, more in FAMILY_KEYS.items():
        for key in (*SIZES, *more):
            for what in _values(chance, of_all=family == "llama"):
                yield _case(f"{family}: {key} is {what}", {"config.json": _config(family, key, JSON_VALUES[what])})
    for key in TOKENIZER_KEYS:
        for what in _values(chance):
            yield _case(
                f"tokenizer: {key} is {what}", {"tokenizer_config.json": _replaced("tokenizer_config.json", key, what)}
            )
    for key in TOKENIZER_PARTS:
        for what in _values(chance):
            yield _case(f"tokenizer.json: {key} is {what}", {"tokenizer.json": _replaced("tokenizer.json", key, what)})
    for key in HEADER_FIELDS:
        for what in _values(chance):
            yield _case(f"header: {key} is {what}", {"model.safetensors": _header({key: what})})
    for what, make in ODD_FILES.items():
        yield _case(what, make())
    for what, prepare in ODD_FOLDERS.items():
        yield _case(what, {}, prepare=prepare)
    for what, files in EVIL.items():
        yield _case(what, files, codes=frozenset({0, 2}))


def _values(chance: random.Random, *, of_all: bool = False) -> list[str]:
    """Return which values a key is given: all of them, or some."""
    return list(JSON_VALUES) if of_all else chance.sample(sorted(JSON_VALUES), 9)


def _case(
    name: str, files: Mapping[str, str | bytes], prepare: Callable[[Path], None] | None = None, **options: Any
) -> Case:
    """Return the submission of a checkpoint whose other files are those of the shipped model."""

    def complete(folder: Path) -> None:
        (folder / "model").mkdir(exist_ok=True)
        for file in FILES:
            if file not in files:
                (folder / "model" / file).symlink_to(TINY / file)
        if prepare:
            prepare(folder / "model")

    inside = {f"model/{file}": content for file, content in files.items()}
    return Case(name, ("submit", "job.yaml"), {"job.yaml": JOB, **inside}, complete, check=_nothing_ran, **options)


def _nothing_ran(result: object, folder: Path) -> str:
    return f"code of the checkpoint ran: it made {PWNED}" if any(folder.rglob(PWNED)) else ""


@cache
def _shipped(file: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((TINY / file).read_text())
    return values


def _config(family: str, key: str, value: str) -> str:
    base = _shipped("config.json") if family == "llama" else {**SIZES, "model_type": family}
    return json.dumps({**base, key: PLACE}).replace(json.dumps(PLACE), value)


def _replaced(file: str, key: str, what: str) -> str:
    return json.dumps({**_shipped(file), key: PLACE}).replace(json.dumps(PLACE), JSON_VALUES[what])


def _header(changes: Mapping[str, str]) -> bytes:
    """Return a safetensors file of one tensor some of whose fields are nasty."""
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    text = json.dumps({"model.norm.weight": {**entry, **dict.fromkeys(changes, PLACE)}})
    for what in changes.values():
        text = text.replace(json.dumps(PLACE), JSON_VALUES[what])
    return _safetensors(text.encode())


def _safetensors(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + b"\0" * 4


def _index(weight_map: Any) -> dict[str, str | bytes]:
    return {"model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": weight_map})}


def _without_weights(files: Mapping[str, str | bytes]) -> dict[str, str | bytes]:
    return {**files, "model.safetensors": b""}


#: What an index of shards has in place of the file of each tensor.
MAPS: dict[str, Any] = {
    "null": None,
    "a list": [],
    "a number": 1,
    "of numbers": {"a": 1},
    "of lists": {"a": []},
    "of a path upwards": {"a": "../x"},
    "of a path": {"a": "/etc/passwd"},
    "of a NUL": {"a": "a\0b"},
    "of an over-long name": {"a": "x" * 5000},
    "empty": {},
    "of dots": {"a": ".."},
    "of a mix": {"a": "b", "c": 1},
}

#: Files in place of those of the shipped model.
ODD_FILES: dict[str, Callable[[], Mapping[str, str | bytes]]] = {
    **{
        f"{file} is {what}": lambda file=file, text=text: {file: text}  # type: ignore[misc]
        for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
        for what, text in {
            "empty": b"",
            "a NUL": b"\0",
            "no UTF-8": b"\xff\xfe\x00",
            "a list": b"[]",
            "null": b"null",
            "a number": b"1",
            "cut": b'{"a": ',
            "deep": b"[" * 100_000,
            "closed and deep": b"[" * 20_000 + b"]" * 20_000,
            "a long number": b'{"vocab_size": ' + b"9" * 10_000 + b"}",
            "equal keys": b'{"vocab_size": 1, "vocab_size": 512}',
            "with a byte order mark": b"\xef\xbb\xbf{}",
        }.items()
    },
    **{
        f"a header that is {what}": lambda content=content: {"model.safetensors": content}  # type: ignore[misc]
        for what, content in {
            "empty": b"",
            "one byte": b"\0",
            "eight zeros": b"\0" * 8,
            "longer than the file": _safetensors(b"{}", 1 << 40),
            "of 2^64 - 1 bytes": _safetensors(b"{}", (1 << 64) - 1),
            "no JSON": _safetensors(b"hello"),
            "a list": _safetensors(b"[]"),
            "null": _safetensors(b"null"),
            "a number": _safetensors(b"1"),
            "deep": _safetensors(b"[" * 100_000),
            "deep objects": _safetensors(b'{"a":' * 50_000),
            "full of NULs": _safetensors(b"\0" * 100),
            "no UTF-8": _safetensors(b"\xff" * 10),
            "wide": _safetensors(
                json.dumps(
                    {f"t{number}": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for number in range(50_000)}
                ).encode()
            ),
        }.items()
    },
    **{
        f"an index whose map is {what}": lambda value=value: _without_weights(_index(value))  # type: ignore[misc]
        for what, value in MAPS.items()
    },
    "a pickle": lambda: {"model.safetensors": b"", "pytorch_model.bin": b"\x80\x04c" + b"os\nsystem\n"},
}


def _fifo(name: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return prepare


def _link(name: str, to: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)

    return prepare


def _folder(name: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return prepare


def _sparse(name: str, size_bytes: int) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        (folder / name).unlink()
        with (folder / name).open("wb") as file:
            file.truncate(size_bytes)

    return prepare


ODDITIES: dict[str, Callable[[str], Callable[[Path], None]]] = {
    "a pipe": _fifo,
    "a folder": _folder,
    "a link loop": lambda name: _link(name, name),
    "a link to nothing": lambda name: _link(name, "nowhere"),
    "a link to a device": lambda name: _link(name, "/dev/zero"),
    "a link to a process's memory": lambda name: _link(name, "/proc/self/mem"),
    "10 GB of nothing": lambda name: _sparse(name, 10 << 30),
}

#: Folders in which something is no plain file.
ODD_FOLDERS: dict[str, Callable[[Path], None]] = {
    f"{file} is {what}": make(file)
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    for what, make in ODDITIES.items()
}

#: Checkpoints that bring code along.
EVIL: dict[str, Mapping[str, str | bytes]] = {
    f"code by auto_map of {what}": {
        "evil.py": EVIL_CLASS,
        file: json.dumps({**_shipped(file), **more, "auto_map": auto_map}),
    }
    for what, file, more, auto_map in (
        ("a tokenizer", "tokenizer_config.json", {}, {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}),
        (
            "a tokenizer's class",
            "tokenizer_config.json",
            {"tokenizer_class": "Evil"},
            {"AutoTokenizer": ["evil.Evil", None]},
        ),
        ("a config", "config.json", {}, {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}),
        ("an unknown model", "config.json", {"model_type": "evil"}, {"AutoConfig": "evil.Evil"}),
        ("a config's tokenizer", "config.json", {}, {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}),
        ("another repository", "tokenizer_config.json", {}, {"AutoTokenizer": ["x/y--evil.Evil", None]}),
    )
}
