"""Server processes that are kept running: one that ends by itself is started again."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FIRST_PAUSE_S = 0.5  #: before a replica that has ended is started again; doubled each time that it ends soon
MAX_PAUSE_S = 60.0
SOON_S = 60.0
LOOK_S = 0.05
END_S = 10.0  #: within which a replica ends after SIGTERM


@dataclass
class Replica:
    """One server process."""

    number: int
    command: Sequence[str]  #: arguments of python
    ready: Path  #: the file in which the process tells its address
    url: str | None = None  #: None while it does not answer
    in_flight: int = 0  #: requests
    starts: int = 0
    process: asyncio.subprocess.Process | None = None

    async def keep_running(self) -> None:
        """Start the process, and again whenever it ends, until this is cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            await self._run_once()
            pause_s = FIRST_PAUSE_S if time.monotonic() - began > SOON_S else min(2 * pause_s, MAX_PAUSE_S)
            print(f"replica {self.number} ended; it is started again in {pause_s:.1f} s", flush=True)
            await asyncio.sleep(pause_s)

    async def _run_once(self) -> None:
        self.ready.unlink(missing_ok=True)
        self.starts += 1
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self.command,
            f"--ready={self.ready}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,  # it tells its address, which is for the proxy alone
        )
        ended = asyncio.create_task(self.process.wait())
        try:
            while not ended.done():
                if self.url is None and self.ready.exists():
                    self.url = str(json.loads(self.ready.read_text())["url"])
                    print(f"replica {self.number} answers", flush=True)
                await asyncio.wait((ended,), timeout=None if self.url else LOOK_S)
        finally:
            self.url = None
            ended.cancel()

    async def end(self) -> None:
        """End the process in order, or in the end without."""
        if self.process is None or self.process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), END_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            await self.process.wait()
