"""`from haloctl import Client`: the same answers from the database and from a server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haloctl import Client, Conflict, HaloError, JobFileError, NotFound, Unreachable, UserError
from tests.integration.web.servers import WebServer
from tests.integration.web.test_streams import result_of_attempt
from tests.stored_jobs import finish, result_of, start, submit
from workers.artifacts import ArtifactStore
from workers.attempts.folders import log_path


@pytest.fixture
def local(fresh: WebServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("HALOCTL_DATA", str(fresh.data))
    monkeypatch.delenv("HALOCTL_SERVER", raising=False)
    with Client() as client:
        yield client


@pytest.fixture
def remote(local: Client, fresh: WebServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Its token is that of the data folder, since the server is on this machine."""
    monkeypatch.setenv("HALOCTL_SERVER", fresh.url)
    with Client() as client:
        yield client


def test_a_server_answers_as_the_database_does(filled: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALOCTL_DATA", str(filled.data))
    with Client() as local, Client(filled.url) as remote:
        job = local.jobs(1)[0]["job"]
        asked: list[Callable[[Client], object]] = [
            lambda client: client.jobs(3),
            lambda client: client.job(job[:7]).show(),
            lambda client: client.task(f"{job}-40"),
            lambda client: client.why(f"{job}-40"),
            lambda client: client.matrix(variant="*TP8"),
            lambda client: client.job(job).matrix(),
            lambda client: client.results(metric="itl_ms", limit=7),
            lambda client: client.results(variant="*TP8", since="9999d"),
            lambda client: client.compare("variant:*-FP16-TP8", "variant:*-BF16-TP8", metric="itl_ms"),
            lambda client: client.trend("itl_ms", variant="*TP8", batch=4),
            lambda client: client.targets(),
            lambda client: client.nodes(),
            lambda client: client.artifacts(kind="vmfb", limit=1100),
        ]
        for ask in asked:
            assert ask(remote) == ask(local)
        assert len(remote.results()) == len(local.results()) > 500


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_errors_are_of_the_same_families(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    client: Client = request.getfixturevalue(kind)
    (tmp_path / "job.yaml").write_text("name: x\nmodel: tiny-llama\nstage: [export]\n")
    with pytest.raises(JobFileError, match="did you mean stages") as refused:
        client.submit(tmp_path / "job.yaml")
    assert (refused.value.file, refused.value.line, refused.value.key) == (str(tmp_path / "job.yaml"), 3, "stage")
    with pytest.raises(JobFileError, match=r"variants\.tp"):
        client.plan({"name": "x", "model": "tiny-llama", "variants": {"tp": 0}})
    with pytest.raises(UserError, match="no job file or recipe"):
        client.submit("nothing")
    with pytest.raises(NotFound, match="no job is called 'ffff'"):
        client.job("ffff")
    with pytest.raises(UserError, match="unknown metric"):
        client.trend("speed")
    job = client.job(submit_one(request))
    assert len(job.cancel()) == 5
    with pytest.raises(Conflict):
        job.cancel()
    assert job.state == "cancelled"
    assert len(job.retry()) == 5


def submit_one(request: pytest.FixtureRequest) -> str:
    server: WebServer = request.getfixturevalue("fresh")
    return submit(server.store)


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_a_log_is_followed_and_a_file_fetched(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    client: Client = request.getfixturevalue(kind)
    server: WebServer = request.getfixturevalue("fresh")
    job = submit(server.store)
    attempt = start(server.store, f"{job}-01")
    log = log_path(server.data, attempt.id)
    log.parent.mkdir()
    log.write_text("first\n")
    parts = client.log(f"{job}-01", follow=True)
    assert next(parts) == "first\n"
    (tmp_path / "model.mlir").write_text("module {}")
    artifact = ArtifactStore(server.data / "artifacts").put(tmp_path / "model.mlir", "mlir", may_link=False)
    result = result_of(attempt)
    finish(server.store, type(result)(**{**vars(result), "artifacts": (artifact,)}))
    assert "".join(parts) == ""
    assert client.download(f"{job}-01/model.mlir", tmp_path / "copy").read_text() == "module {}"
    with pytest.raises(UserError, match="exists already"):
        client.download(artifact.sha256, tmp_path / "copy")
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_a_job_is_waited_for(remote: Client, fresh: WebServer) -> None:
    job = remote.job(submit(fresh.store, stages=["export"]))
    assert job.wait(timeout_s=0.1) == "queued"
    attempt = start(fresh.store, f"{job.id}-01")
    finish(fresh.store, result_of_attempt(fresh, attempt.id))
    assert job.wait() == "succeeded"
    assert job.tasks()[0]["state"] == "succeeded"


def test_rows_become_frames_where_a_library_is_installed(filled: WebServer) -> None:
    with Client(filled.url, filled.token) as client:
        rows = client.results(limit=5)
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    assert isinstance(rows.to_pandas(), pandas.DataFrame)
    assert list(rows.to_pandas()["metric"]) == [row["metric"] for row in rows]


@pytest.mark.parametrize(
    ("server", "error", "says"),
    [
        ("http://127.0.0.1:9", Unreachable, "check HALOCTL_SERVER"),
        ("http://halo.example.org", UserError, "give https://"),
        ("https://user:word@host", UserError, "it holds a password"),
        ("ftp://host", UserError, "is no address"),
        ("https://[", UserError, "is no address"),
        ("host", UserError, "is no address"),
    ],
)
def test_a_server_that_can_t_be_asked_is_one_error(server: str, error: type[HaloError], says: str) -> None:
    with pytest.raises(error, match=says), Client(server, "token") as client:
        client.jobs()


def test_a_wrong_token_is_refused_and_a_missing_one_too(
    fresh: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALOCTL_DATA", str(tmp_path / "none"))
    with pytest.raises(UserError, match="takes a token"):
        Client(fresh.url)
    with pytest.raises(UserError, match="the token is wrong"), Client(fresh.url, "wrong") as client:
        client.jobs()
    (tmp_path / "token").write_text(fresh.token)
    monkeypatch.setenv("HALOCTL_TOKEN_FILE", str(tmp_path / "token"))
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(HaloError, match="chmod 600"):
        Client(fresh.url)
    (tmp_path / "token").chmod(0o600)
    with Client(fresh.url) as client:
        assert client.jobs() == []
