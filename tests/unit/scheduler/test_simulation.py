"""Thousands of decisions in a row: the simulation checks every start, and no task waits for ever."""

from functools import partial

from orchestrator.scheduler.decision import PATIENCE_S, decide
from tests.performance.simulation import FLOOD, TIMEOUT_S, Report, Simulation, World

STEP_S = 10.0
#: While a task is first in turn, nothing may come before it that could outlast its patience and a timeout.
LONGEST_FIRST_S = PATIENCE_S + TIMEOUT_S + 2 * STEP_S


def flooded(seed: int, patience_s: float = PATIENCE_S) -> Report:
    """Small tasks arrive faster than eight nodes can run them, and last longer than expected."""
    world = World(nodes=8, tasks=1500, kinds=FLOOD, load=1.15, users=1, seed=seed, step_s=STEP_S)
    return Simulation(world, partial(decide, patience_s=patience_s)).run()


def test_a_mixed_load_ends_and_keeps_the_devices_busy() -> None:
    report = Simulation(World(nodes=50, tasks=2000, load=1.1, node_fails_each_s=50_000.0, step_s=STEP_S)).run()
    assert report.ended == 2000
    assert report.lost_attempts > 0
    assert report.utilisation > 0.9
    assert max(report.first_s.values()) < LONGEST_FIRST_S


def test_a_flood_of_small_tasks_does_not_starve_gangs() -> None:
    assert max(flooded(2).first_s.values()) < LONGEST_FIRST_S


def test_a_flood_starves_gangs_where_expectations_are_trusted_for_ever() -> None:
    """The bound holds only because expectations are not trusted for ever."""
    assert max(flooded(2, patience_s=1e9).first_s.values()) > 2 * LONGEST_FIRST_S
