"""Selectors of `compare`'s sides: `engine:torch`, `7f3a`, `variant:*-FP8-TP8,2026-11-01..2026-11-08`. Pure."""

import re
from dataclasses import replace
from datetime import datetime

from db.reads.run_filter import RunFilter
from jobs.engines import ENGINES
from jobs.errors import BadSetting
from jobs.metrics import METRICS, metrics_like
from orchestrator.times import DAY, parse_end_time, parse_time

#: The keys before a colon, each with what may follow it.
KEYS = {
    "job": "a name, an id or the start of it",
    "variant": "a name or pattern",
    "toolchain": "a name or pattern",
    "engine": ", ".join(ENGINES),
    "model": "a name or pattern",
    "target": "cpu, mi300x, ...",
    "node": "a name",
    "result": "a task's or attempt's id",
}
JOB_ID = re.compile(r"[0-9a-f]{2,8}")
RESULT_ID = re.compile(r"[0-9a-f]{1,8}-\d+(-\d+)?")
FORMS = (
    "a job's id, a task's or attempt's id, a variant's name, an engine, a day (2026-11-20), a time from..until, or "
    + ", ".join(f"{key}:..." for key in KEYS)
)


def metrics(pattern: str | None) -> tuple[str, ...]:
    """Return the metrics that a name or pattern stands for, without one all timings; raise BadSetting."""
    if pattern is None:
        return tuple(name for name, metric in METRICS.items() if metric.unit == "ms")
    if not (names := metrics_like(pattern)):
        raise BadSetting("--metric", f"no metric is called {pattern!r}: choose one of {', '.join(METRICS)}")
    return names


def parse(text: str, common: RunFilter, now: datetime) -> RunFilter:
    """Return the filter for one side's runs, within the filter of both; raise BadSetting."""
    run_filter = common
    for term in (part.strip() for part in text.split(",")):
        fields = _fields(term, text, now)
        for name, value in fields.items():
            if (earlier := getattr(run_filter, name)) is not None:
                raise BadSetting(text, f"{name} is given twice: {earlier} and {value}")
        run_filter = replace(run_filter, **fields)  # type: ignore[arg-type]
    return run_filter


def _fields(term: str, text: str, now: datetime) -> dict[str, object]:
    """Return the fields of a filter that one term of a selector sets."""
    key, colon, value = term.partition(":")
    if ".." in term:
        begin, _, end = term.partition("..")
        return _times(begin.strip(), end.strip(), text, now)
    if colon and key in KEYS and value:
        return {key: _checked(key, value.strip(), text)}
    if colon and not DAY.match(term):
        raise BadSetting(text, f"{term!r} is none of {FORMS}")
    if DAY.fullmatch(term):
        return {"since": parse_time(term, now, text), "until": parse_end_time(term, now, text)}
    if term in ENGINES:
        return {"engine": term}
    if JOB_ID.fullmatch(term):
        return {"job": term}
    if RESULT_ID.fullmatch(term):
        return {"result": term}
    if not term:
        raise BadSetting(text or "A, B", f"a part of it is empty: give {FORMS}")
    return {"variant": term}


def _checked(key: str, value: str, text: str) -> str:
    if key == "engine" and not set("*?[") & set(value) and value not in ENGINES:
        raise BadSetting(text, f"no engine is called {value!r}: choose one of {', '.join(ENGINES)}")
    return value


def _times(begin: str, end: str, text: str, now: datetime) -> dict[str, object]:
    """Parse `from..until`, of which either may be left out; a day as the end is included."""
    fields: dict[str, object] = {}
    if begin:
        fields["since"] = parse_time(begin, now, text)
    if end:
        fields["until"] = parse_end_time(end, now, text)
    if not fields:
        raise BadSetting(text, "give a time as from..until, such as 2026-11-01..2026-11-08 or 7d..")
    return fields
