"""Answers that are kept until the database changes: many open pages cost one query each time that something happens."""

import secrets
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock

MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Answer:
    """The body of a response, and the key of the page that follows it."""

    body: bytes
    next: str | None = None


class AnswerCache:
    """Keeps answers by what was asked. Threads may share it; of equal questions at a time, one is computed."""

    def __init__(self, change_token: Callable[[], object], max_bytes: int = MAX_BYTES) -> None:
        """`change_token` returns a value that changes with each commit."""
        self._change_token, self._max_bytes = change_token, max_bytes
        self._server = secrets.token_hex(4)  #: tokens of SQLite have a meaning in one process only
        self._lock = Lock()
        self._state: object = None
        self._number = 0
        self._answers: dict[str, Future[Answer]] = {}
        self._size_bytes = 0

    def tag(self) -> str:
        """Return the entity tag of all answers from the database as it is now. Raises DatabaseUnreachable."""
        with self._lock:
            return self._renew()

    def answer(self, question: str, compute: Callable[[], Answer]) -> tuple[str, Answer]:
        """Return an answer with its entity tag, computed if the database has changed since it last was."""
        with self._lock:
            tag, answers = self._renew(), self._answers
            known = answers.get(question)
            if known is None:
                computed = answers[question] = Future[Answer]()
        if known is not None:
            return tag, known.result()
        try:
            answer = compute()
        except BaseException as error:
            with self._lock:
                del answers[question]
            computed.set_exception(error)
            raise
        computed.set_result(answer)
        with self._lock:
            self._size_bytes += len(answer.body) if answers is self._answers else 0
            if self._size_bytes > self._max_bytes:
                self._forget()
        return tag, answer

    def _renew(self) -> str:
        state = self._change_token()
        if state != self._state:
            self._state, self._number = state, self._number + 1
            self._forget()
        return f'W/"{self._server}.{self._number}"'

    def _forget(self) -> None:
        self._answers, self._size_bytes = {}, 0
