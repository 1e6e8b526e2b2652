"""Tells all open pages that the database has changed: one thread watches it, however many there are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from db.connection.engine import Database

MIN_INTERVAL_S = 0.5  #: between two rings: a head commits many times in a second


class ChangeBell:
    """Rings soon after commits of any process. Only the event loop's thread may use it."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self.count = 0  #: how often it has rung

    @asynccontextmanager
    async def watching(self, database: Database) -> AsyncIterator[None]:
        """Ring for the changes of a database while the context lasts."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(changed.set)

        ringing = asyncio.create_task(self._ring(changed))
        try:
            with database.monitor_changes(wake):
                yield
        finally:
            ringing.cancel()

    async def _ring(self, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            self.count += 1
            self._rung.set()
            self._rung = asyncio.Event()
            await asyncio.sleep(MIN_INTERVAL_S)

    async def wait(self, timeout_s: float) -> bool:
        """Wait until it rings; return False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        except TimeoutError:
            return False
        return True
