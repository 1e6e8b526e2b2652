"""Web servers in threads of this process, on databases of the tests."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from db.connection.engine import Database, open_database
from db.store import Store
from orchestrator.context import Context
from orchestrator.settings import Settings
from orchestrator.submission.readable_folders import ReadableFolders
from orchestrator.web import server
from orchestrator.web.app import make_app
from orchestrator.web.local_token import token_file

API = "/api/v1"
START_S = 30.0


@dataclass(frozen=True)
class WebServer:
    """A running server, with the database that it reads, opened by itself."""

    url: str
    data: Path
    database: Database

    @property
    def store(self) -> Store:
        return Store(self.database)

    @property
    def token(self) -> str:
        return token_file(self.data).read_text().strip()

    def client(self, token: str | None = None) -> httpx2.Client:
        bearer = self.token if token is None else token
        return httpx2.Client(base_url=self.url + API, headers={"Authorization": f"Bearer {bearer}"}, timeout=60)

    def get(self, path: str, code: int = 200, **query: Any) -> Any:
        with self.client() as client:
            answer = client.get(path, params=query)
        assert answer.status_code == code, answer.text
        return answer.json()

    def post(self, path: str, code: int = 200, content: str = "", **query: Any) -> Any:
        with self.client() as client:
            answer = client.post(path, params=query, content=content)
        assert answer.status_code == code, answer.text
        return answer.json()


@contextmanager
def running(
    url: str, data: Path, readable: tuple[Path, ...] = (), change: Callable[[Any], Any] = lambda site: site
) -> Iterator[WebServer]:
    """Serve a database that has the schema, until the context ends."""
    with open_database(url, create=False) as served, open_database(url, create=False) as database:
        settings = Settings(data, url, None, data / "artifacts")
        site = change(server.make_site(Context(settings, served), ReadableFolders(readable)))
        with serving(make_app(site)) as address:
            yield WebServer(address, data, database)


@contextmanager
def serving(app: Any) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    uvicorn_server = uvicorn.Server(config)
    thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        for _ in range(int(START_S / 0.02)):
            if uvicorn_server.started:
                break
            thread.join(0.02)
        assert uvicorn_server.started
        yield address
    finally:
        uvicorn_server.should_exit = True
        thread.join()
        listening.close()
