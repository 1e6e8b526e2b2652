"""Follows a training: prints its progress, keeps its losses, and ends it when it goes wrong."""

import math
import time
from typing import Any

from transformers import TrainerCallback

from workers.llm.command_line import EXIT_FAILED, ProgramFailed

PRINT_EVERY_S = 2.0
WINDOW = 10  #: steps whose mean loss is compared
LEAST_STEPS = 20  #: before a rise is taken for more than a beginning
MOST_RISE = 2.0  #: of the loss above its beginning


class Progress(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """The loss of each step, and how long it took."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.step_s: list[float] = []
        self._step_began = self._printed_at = time.monotonic()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note when the step begins."""
        self._step_began = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note how long the step took."""
        self.step_s.append(time.monotonic() - self._step_began)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Note the loss of a step. Raises ProgramFailed when the training can't come to anything."""
        if not logs or "loss" not in logs:
            return
        self.losses.append(logs["loss"])
        if problem := loss_problem(self.losses):
            raise ProgramFailed(f"step {state.global_step}: {problem}: lower learning_rate", EXIT_FAILED)
        now, is_last = time.monotonic(), state.global_step == state.max_steps
        if now - self._printed_at >= PRINT_EVERY_S or is_last:
            self._printed_at = now
            left_s = (state.max_steps - state.global_step) * sum(self.step_s) / len(self.step_s)
            print(
                f"step {state.global_step}/{state.max_steps}: loss {logs['loss']:.4f}, {left_s:.0f} s left", flush=True
            )


def loss_problem(losses: list[float]) -> str | None:
    """Return why a training is at its end: a loss that is no number, or that is far above what it began with."""
    if not math.isfinite(losses[-1]):
        return f"the loss is {losses[-1]}"
    if len(losses) < LEAST_STEPS:
        return None
    last = sum(losses[-WINDOW:]) / WINDOW
    return f"the loss rose from {losses[0]:.2f} to {last:.2f}" if last > MOST_RISE * losses[0] else None
