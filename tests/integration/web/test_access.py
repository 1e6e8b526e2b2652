"""Who gets in, and what they may do there."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import select

from db.connection.engine import open_database
from db.reads.events import EventFilter, read_events
from db.schema import tables
from db.writes import tokens, transfer
from db.writes.tokens import Role
from jobs.errors import BadSetting
from orchestrator.web.user_names import PROXY_VARIABLE, trusted_proxy
from tests import databases
from tests.integration.commands.in_process import Command, haloctl, rows
from tests.integration.web.servers import API, WebServer, running
from tests.stored_jobs import submit

__all__ = ["haloctl"]


def token_of(server: WebServer, role: Role, user: str = "eve", **expires: float) -> str:
    expires_at = datetime.now(UTC) + timedelta(**expires) if expires else None
    return tokens.create(server.database, user, role, expires_at)[1]


@pytest.mark.parametrize(
    ("role", "own", "others"), [(Role.READER, 403, 403), (Role.SUBMITTER, 200, 403), (Role.ADMIN, 200, 200)]
)
def test_a_role_says_whose_jobs_a_user_may_cancel(fresh: WebServer, role: Role, own: int, others: int) -> None:
    mine, theirs = submit(fresh.store, submitted_by="eve"), submit(fresh.store, submitted_by="ada")
    with fresh.client(token_of(fresh, role)) as client:
        assert client.get("user").json() == {"name": "eve", "role": role}
        assert client.post(f"jobs/{mine}/cancel").status_code == own
        refused = client.post(f"tasks/{theirs}-01/cancel")
    assert refused.status_code == others
    if others == 403:
        assert "this takes" in refused.json()["detail"]
    events = read_events(fresh.database, EventFilter(mine))
    assert ("eve" in {event.actor for event in events}) is (own == 200)


def test_a_reader_can_submit_nothing(fresh: WebServer) -> None:
    with fresh.client(token_of(fresh, Role.READER)) as client:
        assert client.post("jobs", content="name: x").status_code == 403


def test_a_token_is_good_until_it_expires_or_is_revoked(fresh: WebServer) -> None:
    name, token = tokens.create(fresh.database, "eve", Role.READER, None)
    with fresh.client(token) as client:
        assert client.get("jobs").status_code == 200
        tokens.revoke(fresh.database, name)
        assert client.get("jobs").status_code == 401
    with fresh.client(token_of(fresh, Role.ADMIN, seconds=-1)) as client:
        assert client.get("jobs").status_code == 401


def test_a_token_is_nowhere_stored_or_exported(fresh: WebServer) -> None:
    token = token_of(fresh, Role.ADMIN)
    with fresh.database.reading() as connection:
        stored = [tuple(row) for row in connection.execute(select(tables.tokens))]
    assert len(stored) == 1
    assert token not in repr(stored)
    assert tokens.digest_of(token) not in "".join(transfer.export_lines(fresh.database))


def test_a_proxy_with_a_token_names_users_in_its_header(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROXY_VARIABLE, "X-Forwarded-User:submitter")
    with databases.sqlite_file(sqlite_template, tmp_path) as url, running(url, tmp_path) as server:
        proxy, reader = token_of(server, Role.PROXY), token_of(server, Role.READER)
        with httpx2.Client(base_url=server.url + API) as client:

            def user(token: str, name: str) -> object:
                headers = {"Authorization": f"Bearer {token}", "X-Forwarded-User": name}
                answer = client.get("user", headers=headers)
                return answer.json() if answer.status_code == 200 else answer.status_code

            assert user(proxy, "ada@site.org") == {"name": "ada@site.org", "role": "submitter"}
            assert user(reader, "ada") == {"name": "eve", "role": "reader"}  # only the proxy is believed
            assert [user(proxy, name) for name in ("", "a b", "-a", "a" * 101)] == [401] * 4


def test_a_proxys_token_alone_is_good_for_nothing(fresh: WebServer) -> None:
    with fresh.client(token_of(fresh, Role.PROXY)) as client:
        assert client.get("user", headers={"X-Forwarded-User": "root"}).status_code == 401


@pytest.mark.parametrize("text", ["X Forwarded", "X-User:proxy", "X-User:king", ":admin", "X-User: admin"])
def test_a_wrong_setting_of_a_proxy_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(PROXY_VARIABLE, text)
    with pytest.raises(BadSetting, match=PROXY_VARIABLE):
        trusted_proxy()


def test_tokens_are_created_listed_and_revoked(haloctl: Command, tmp_path: Path) -> None:
    made = haloctl("tokens", "create", "ada", "--role", "submitter", "--expires", "7d")
    (row,) = rows(haloctl, "tokens")
    assert (row["user"], row["role"], row["is_valid"]) == ("ada", "submitter", True)
    assert made.out.strip() not in haloctl("tokens").out + haloctl("tokens", "--json").out
    with open_database(f"sqlite:///{tmp_path}/data/haloctl.db", create=False) as database:
        assert [token.sha256 for token in tokens.read_tokens(database)] == [tokens.digest_of(made.out.strip())]
    assert haloctl("tokens", "revoke", row["token"]).code == 0
    assert haloctl("tokens", "revoke", row["token"]).code == 4
    assert "no tokens yet" in haloctl("tokens").err
    changes = haloctl("query", "select action, detail from changes", "--csv").out
    assert "create token,submitter ada" in changes
    assert "revoke token" in changes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ada", "--role", "king"), "choose one of reader, submitter, admin, proxy"),
        (("a b",), "a user's name has letters"),
        (("ada", "--expires", "soon"), "no length of time"),
        (("ada", "--expires", "999999999d"), "longer than 3650d"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(haloctl: Command, arguments: tuple[str, ...], says: str) -> None:
    refused = haloctl("tokens", "create", *arguments)
    assert refused.code == 2
    assert says in refused.err


def test_queries_don_t_see_tokens(haloctl: Command) -> None:
    haloctl("tokens", "create", "ada")
    assert haloctl("query", "select * from tokens").code == 2
