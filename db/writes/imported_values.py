"""Checks of the rows of an imported database: only what haloctl itself could have stored is imported. Pure."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Float, Integer, String

from db.schema import values
from db.schema.tables import UtcDateTime
from jobs.axis_words import WORDS_OF_AXES
from jobs.errors import UnsafePath
from jobs.hashing import SHA256
from jobs.metrics import METRICS
from jobs.paths import path_part
from jobs.stages import STAGES
from jobs.state import FailureKind, TaskState
from jobs.task import Resources

MAX_QUOTED = 100  #: characters of a value in a message
MAX_INTEGER, MAX_BIG_INTEGER = 2**31 - 1, 2**63 - 1

Check = Callable[[Any], object]  #: raises one of REFUSALS
#: What is raised for a value that can't be.
REFUSALS = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, UnsafePath)


def _sha256(text: str) -> None:
    if not SHA256.fullmatch(text):
        raise ValueError("it is no sha256")


def _choice(names: Collection[str], name: str) -> None:
    if name not in names:
        raise ValueError(f"it is none of {', '.join(names)}")


def _optional_part(name: str) -> None:
    if name:
        path_part(name)


def _inputs(inputs: Mapping[str, Any]) -> None:
    for stage, artifacts in values.inputs_of(inputs).items():
        path_part(stage)
        for artifact in artifacts:
            path_part(artifact.name)
            _sha256(artifact.sha256)


def _instance(kind: type, value: object) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"it is no {'object' if kind is dict else 'list'}")


def _texts(texts: object) -> None:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TypeError("it is no list of texts")


def _numbers(numbers: object) -> None:
    if not isinstance(numbers, list) or not all(map(_is_number, numbers)):
        raise TypeError("it is no list of numbers")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


OBJECT, LIST = partial(_instance, dict), partial(_instance, list)
STAGE, METRIC = partial(_choice, STAGES), partial(_choice, METRICS)
STATE, FAILURE = partial(_choice, list(TaskState)), partial(_choice, list(FailureKind))

#: What is expected of a column's values beyond their type, by table: names that become parts of paths, states, and JSON
#: from which values are read back.
CHECKS: Mapping[str, Mapping[str, Check]] = {
    "jobs": {"id": path_part, "model_facts": OBJECT, "spec": OBJECT},
    "tasks": {
        "id": path_part, "stage": STAGE, "state": STATE, "settings": OBJECT, "needs": _texts,
        "resources": lambda resources: Resources(**resources), "pin": values.pin_of, "failure": values.own_failure_of,
    },
    "attempts": {
        "id": path_part, "lock": _optional_part, "inputs": _inputs, "places": values.places_of,
        "commands": values.commands_of, "processes": values.processes_of, "environment": OBJECT, "versions": OBJECT,
        "warnings": _texts, "failure_kind": FAILURE,
    },
    "artifacts": {"name": path_part, "sha256": _sha256},
    "cells": {"stage": STAGE, **{axis: partial(_choice, list(names)) for axis, names in WORDS_OF_AXES.items()}},
    "measurements": {"metric": METRIC, "samples": _numbers, "context": OBJECT},
    "events": {"from_state": STATE, "to_state": STATE},
    "durations": {"recent_s": _numbers},
    "nodes": {"versions": OBJECT, "checks": LIST, "toolchains": OBJECT},
    "toolchains": {"digest": path_part, "lines": _texts, "versions": OBJECT},
    "targets": {"metric": METRIC},
    "pins": {"sha256": _sha256},
    "schedules": {"spec": OBJECT, "model_facts": OBJECT},
}  # fmt: skip
#: The checks that hold for the schema before this one, too.
LASTING = (path_part, _optional_part, _sha256, _inputs)
OLD_CHECKS: Mapping[str, Mapping[str, Check]] = {
    table: {
        column: path_part if check is STAGE else check for column, check in checks.items() if check in (STAGE, *LASTING)
    }
    for table, checks in CHECKS.items()
}


def _json(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _integer(limit: int, number: int) -> int:
    if abs(number) > limit:
        raise ValueError("it is too large")
    return number


def _float(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("it is not finite")
    return float(number)


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError("it has a NUL")
    text.encode()  # no lone surrogates
    return text


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("it has no time zone")
    return time.astimezone(UTC)


@dataclass(frozen=True)
class ColumnKind:
    """What a line of an exported database has for the values of a column's type."""

    plain: tuple[type, ...]
    read: Check  #: returns the value, which every database takes


#: The first type that fits counts.
KINDS: Mapping[type, ColumnKind] = {
    UtcDateTime: ColumnKind((str,), _time),
    JSON: ColumnKind((str,), _json),
    Boolean: ColumnKind((bool,), bool),
    BigInteger: ColumnKind((int,), partial(_integer, MAX_BIG_INTEGER)),
    Integer: ColumnKind((int,), partial(_integer, MAX_INTEGER)),
    Float: ColumnKind((float, int), _float),
    String: ColumnKind((str,), _text),
}


def read_value(kind: type, check: Check | None, value: Any) -> Any:
    """Return a value for a column of a kind in KINDS; JSON stays text. Raises one of REFUSALS."""
    if value is None:
        return None
    if not isinstance(value, KINDS[kind].plain) or isinstance(value, bool) != (kind is Boolean):
        raise TypeError(f"it is {repr(value)[:MAX_QUOTED]}")
    parsed = KINDS[kind].read(value)
    if check:
        check(parsed)
    return value if kind is JSON else parsed
