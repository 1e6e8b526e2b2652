"""A hub model's name stands for one commit: the newest where the hub answers, else the one that was fetched."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from orchestrator.submission import hub

MODEL = "org/model"
PUSHED, FETCHED = "a" * 40, "b" * 40


class Answers(BaseHTTPRequestHandler):
    """The hub's own answer for one model; its branch `gone` is not there."""

    def do_GET(self) -> None:
        is_there = self.path.startswith(f"/api/models/{MODEL}") and "gone" not in self.path
        body = json.dumps({"id": MODEL, "sha": PUSHED}).encode() if is_there else b"{}"
        self.send_response(200 if is_there else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where one commit was fetched to, and no hub is within reach."""
    folder = tmp_path / "models--org--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(FETCHED)
    (folder / "snapshots" / FETCHED).mkdir(parents=True)
    (folder / "snapshots" / FETCHED / "config.json").write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    return tmp_path


@pytest.fixture
def server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("server")
def test_what_was_pushed_is_known_though_something_older_was_fetched() -> None:
    assert hub.commit(MODEL, None) == hub.commit(MODEL, "v1") == PUSHED


@pytest.mark.usefixtures("server")
def test_what_the_hub_does_not_know_is_no_commit() -> None:
    assert hub.commit(MODEL, "gone") is None


@pytest.mark.usefixtures("cache")
def test_without_the_hub_it_is_what_was_fetched() -> None:
    assert hub.commit(MODEL, None) == FETCHED
    assert hub.commit("org/other", None) is None


@pytest.mark.usefixtures("server")
def test_offline_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.commit(MODEL, None) == FETCHED
