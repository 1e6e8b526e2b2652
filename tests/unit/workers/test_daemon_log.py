"""One format for all daemons: times in UTC, levels, ids; no password, and no line that a message forged."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from workers.daemon_log import JsonFormatter, TextFormatter, logger

FORGED = "postgresql://me:hunter2@db/halo\n2026-11-22T00:00:00.000Z info head: leads \x1b[2J"


def record_of(message: str, caplog: pytest.LogCaptureFixture, **ids: Any) -> logging.LogRecord:
    """The record of a warning."""
    logger("orchestrator.somewhere").warning("%s", message, **ids)
    record = caplog.records[-1]
    record.created = datetime(2026, 11, 22, 18, 34, 58, 123_999, tzinfo=UTC).timestamp()
    return record


def test_a_line_has_time_level_daemon_and_the_ids_that_its_message_lacks(caplog: pytest.LogCaptureFixture) -> None:
    line = TextFormatter("head").format(record_of("n1 lost it", caplog, attempt="3f-01-2", node="n1"))
    assert line == "2026-11-22T18:34:58.123Z warning head: n1 lost it job=3f task=3f-01 attempt=3f-01-2"


def test_an_object_has_all_ids(caplog: pytest.LogCaptureFixture) -> None:
    fields = json.loads(JsonFormatter("agent").format(record_of("lost", caplog, attempt="3f-01-2", term=4)))
    assert fields == {
        "at": "2026-11-22T18:34:58.123Z",
        "level": "warning",
        "daemon": "agent",
        "message": "lost",
        "attempt": "3f-01-2",
        "task": "3f-01",
        "job": "3f",
        "term": 4,
    }


@pytest.mark.parametrize("formatter", [TextFormatter("head"), JsonFormatter("head")])
def test_a_message_can_neither_tell_a_password_nor_forge_a_line(
    formatter: logging.Formatter, caplog: pytest.LogCaptureFixture
) -> None:
    text = formatter.format(record_of(FORGED, caplog))
    assert "hunter2" not in text
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text


def test_a_traceback_is_indented_and_masked(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger("orchestrator.somewhere").exception("it ended")
    first, *lines = TextFormatter("head").format(caplog.records[-1]).splitlines()
    assert first.endswith("error head: it ended")
    assert all(line.startswith("  ") for line in lines)
    assert "ValueError" in lines[-2]
    assert "hunter2" not in "".join(lines)
