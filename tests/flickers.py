"""Tests that are tried once more when they fail, each with the reason why it can't be mended here.

Everything else that fails, fails the run.
"""

#: Node id without parameters: reason.
FLICKERS: dict[str, str] = {}
