"""Imported by every Python that finds it on its path: makes the benchmarks' stage known there."""

from tests.performance.noop_stage import register

register()
