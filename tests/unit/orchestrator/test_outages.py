"""Outages are said once, tried again after growing pauses, and given up only where a limit says so."""

import pytest

from jobs.errors import ClusterUnreachable, DatabaseUnreachable
from orchestrator.leader.outages import BACKOFF, OutageReporter

AWAY = DatabaseUnreachable("database halo", "it restarts")


class Told:
    """What was said, by a clock that stands unless told to go on."""

    def __init__(self, limit_s: float | None = None) -> None:
        self.now_s, self.said = 0.0, list[str]()
        self.outages = OutageReporter(self.said.append, self.said.append, limit_s, lambda: self.now_s)


def test_an_outage_is_said_once_and_so_is_its_end() -> None:
    told = Told()
    for _ in range(5):
        told.now_s += told.outages.failed(AWAY)
    told.outages.recovered()
    told.outages.recovered()
    assert told.said == [
        "database halo: it restarts; trying again",
        "database halo is reachable again, after 3.1 s",
    ]


def test_pauses_double_up_to_a_bound_and_begin_anew_with_the_next_outage() -> None:
    told = Told()
    pauses = [told.outages.failed(AWAY) for _ in range(10)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == BACKOFF.max_s
    told.outages.recovered()
    assert told.outages.failed(AWAY) == pauses[0]


def test_another_thing_that_can_t_be_reached_is_said_too() -> None:
    told = Told()
    told.outages.failed(AWAY)
    told.outages.failed(ClusterUnreachable("Ray at head:6379", "nobody answers"))
    assert len(told.said) == 2


def test_without_a_limit_it_is_never_given_up() -> None:
    told = Told()
    for _ in range(3):
        told.outages.failed(AWAY)
        told.now_s += 86_400


def test_what_lasts_longer_than_the_limit_is_raised() -> None:
    told = Told(limit_s=5.0)
    told.outages.failed(AWAY)
    told.now_s = 4.9
    told.outages.failed(AWAY)
    told.now_s = 5.1
    with pytest.raises(DatabaseUnreachable, match="it restarts"):
        told.outages.failed(AWAY)
