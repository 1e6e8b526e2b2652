"""The command line of a program that measures a server; it needs none of the packages that serving needs."""

import argparse
from pathlib import Path

from workers.llm.command_line import positive_int
from workers.llm.numerics.comparison import HELD_OUT_TEXT


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how much is compared and measured."""
    parser.add_argument("--prompt-tokens", type=positive_int, nargs="+", required=True)
    parser.add_argument("--new-tokens", type=positive_int, required=True)
    parser.add_argument("--concurrency", type=positive_int, nargs="+", required=True, help="requests in flight")
    parser.add_argument("--rate", type=float, nargs="*", default=[], help="requests per second, at random times")
    parser.add_argument("--offline", action="store_true", help="also send all requests at once")
    parser.add_argument("--requests", type=positive_int, default=8, help="of each level, times its concurrency")
    parser.add_argument("--rounds", type=positive_int, default=2, help="of all levels")
    parser.add_argument("--sequences", type=positive_int, default=48, help="that are compared with the reference")
    parser.add_argument("--text", type=Path, default=HELD_OUT_TEXT, help="UTF-8 text that their prompts are taken from")
