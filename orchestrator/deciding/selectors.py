"""What `compare` calls its sides: `engine:torch`, `7f3a`, `variant:*-FP8-TP8,2026-11-01..2026-11-08`. Pure."""

import re
from dataclasses import replace
from datetime import datetime

from db.runs import Chosen
from jobs.errors import BadSetting
from jobs.metrics import METRICS, metrics_like
from jobs.variants import Engine
from orchestrator.showing.rows import DAY, end_in_time, point_in_time

#: The words before a colon, each with what may follow it.
KEYS = {
    "job": "a name, an id or the start of it",
    "variant": "a name or pattern",
    "toolchain": "a name or pattern",
    "engine": ", ".join(Engine),
    "model": "a name or pattern",
    "target": "cpu, mi300x, ...",
    "node": "a name",
    "result": "a task's or attempt's id",
}
JOB = re.compile(r"[0-9a-f]{2,8}")
RESULT = re.compile(r"[0-9a-f]{1,8}-\d+(-\d+)?")
FORMS = (
    "a job's id, a task's or attempt's id, a variant's name, an engine, a day (2026-11-20), a time from..until, or "
    + ", ".join(f"{key}:..." for key in KEYS)
)


def metrics(pattern: str | None) -> tuple[str, ...]:
    """Those that a name or pattern stands for, without one all timings of a benchmark; raises BadSetting."""
    if pattern is None:
        return tuple(name for name, metric in METRICS.items() if metric.unit == "ms")
    if not (found := metrics_like(pattern)):
        raise BadSetting("--metric", f"no metric is called {pattern!r}: there are {', '.join(METRICS)}")
    return found


def parse(text: str, common: Chosen, now: datetime) -> Chosen:
    """The runs that a side of a comparison names, among those that both have in common; raises BadSetting."""
    chosen = common
    for term in (part.strip() for part in text.split(",")):
        found = _term(term, text, now)
        for name, value in found.items():
            if getattr(chosen, name) is not None:
                raise BadSetting(text, f"{name} is said twice: {getattr(chosen, name)} and {value}")
        chosen = replace(chosen, **found)  # type: ignore[arg-type]
    return chosen


def _term(term: str, text: str, now: datetime) -> dict[str, object]:
    key, colon, value = term.partition(":")
    if ".." in term:
        begin, _, end = term.partition("..")
        return _times(begin.strip(), end.strip(), text, now)
    if colon and key in KEYS and value:
        return {key: _known(key, value.strip(), text)}
    if colon and not DAY.match(term):
        raise BadSetting(text, f"{term!r} is none of {FORMS}")
    if DAY.fullmatch(term):
        return {"since": point_in_time(term, now, text), "until": end_in_time(term, now, text)}
    if term in tuple(Engine):
        return {"engine": term}
    if JOB.fullmatch(term):
        return {"job": term}
    if RESULT.fullmatch(term):
        return {"result": term}
    if not term:
        raise BadSetting(text or "A, B", f"a part of it is empty: it is {FORMS}")
    return {"variant": term}


def _known(key: str, value: str, text: str) -> str:
    if key == "engine" and not set("*?[") & set(value) and value not in tuple(Engine):
        raise BadSetting(text, f"no engine is called {value!r}: there are {', '.join(Engine)}")
    return value


def _times(begin: str, end: str, text: str, now: datetime) -> dict[str, object]:
    """From a day or time until another one, of which either may be left out; an end that is a day is all of it."""
    found: dict[str, object] = {}
    if begin:
        found["since"] = point_in_time(begin, now, text)
    if end:
        found["until"] = end_in_time(end, now, text)
    if not found:
        raise BadSetting(text, "a time is from..until, such as 2026-11-01..2026-11-08 or 7d..")
    return found
