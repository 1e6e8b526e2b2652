"""What an engine has done since it began. Only its thread counts; others may read at any time."""

import time
from collections import Counter, deque
from dataclasses import dataclass, field

from workers.llm.serving.schedule import Call
from workers.llm.serving.sequences import FinishReason, TokenSequence

RECENT_ENDS = 64  #: ends of sequences from which the rate is taken


@dataclass
class Counters:
    """Sums over all steps."""

    steps: int = 0
    device_s: float = 0.0  #: within calls of the program
    host_s: float = 0.0  #: of steps, outside of them
    prompt_s: float = 0.0  #: of calls that take prompts
    decode_s: float = 0.0
    calls: int = 0
    rows: int = 0  #: of decode calls
    padded_rows: int = 0  #: rows of decode calls that nobody's token filled
    prompt_tokens: int = 0
    padded_prompt_tokens: int = 0
    shared_tokens: int = 0  #: of prompts, that other sequences had left in the cache
    admitted_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    ends: Counter[str] = field(default_factory=Counter)  #: by reason
    _recent: "deque[float]" = field(default_factory=lambda: deque(maxlen=RECENT_ENDS), repr=False)

    def add_step(self, seconds: float, device_s: float) -> None:
        """Count a step."""
        self.steps += 1
        self.device_s += device_s
        self.host_s += seconds - device_s

    def add_call(self, call: Call, seconds: float) -> None:
        """Count a call of the program."""
        self.calls += 1
        if call.shape.kind == "decode":
            self.decode_s += seconds
            self.rows += len(call.rows)
            self.padded_rows += call.shape.batch - len(call.rows)
        else:
            self.prompt_s += seconds
            self.prompt_tokens += sum(call.counts)
            self.padded_prompt_tokens += call.shape.batch * call.shape.tokens - sum(call.counts)

    def add_prompt(self, tokens: int, shared: int) -> None:
        """Count a sequence that was admitted."""
        self.admitted_tokens += tokens
        self.shared_tokens += shared

    def add_end(self, sequence: TokenSequence, reason: FinishReason) -> None:
        """Count a sequence that has ended."""
        self.ends[reason] += 1
        self.generated_tokens += sequence.generated
        self._recent.append(time.monotonic())

    def time_to_finish_s(self, sequences: int) -> float:
        """Return about how long this many sequences take, from the rate at which the latest ended."""
        if len(self._recent) < 2:
            return 1.0
        rate = (len(self._recent) - 1) / max(self._recent[-1] - self._recent[0], 1e-3)
        return min(max(sequences / rate, 1.0), 60.0)
