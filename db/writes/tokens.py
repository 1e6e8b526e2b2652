"""Tokens of the web server's users. Only their digests are stored: a token is shown once, when it is made."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy import delete, insert, select

from db.connection.engine import Database
from db.schema import tables
from db.schema.actors import current_actor
from db.writes import changes
from db.writes.changes import ChangeAction
from jobs.errors import NotFound


class Role(StrEnum):
    """What a user may do; each may do what those before it may."""

    READER = "reader"  #: read
    SUBMITTER = "submitter"  #: submit jobs, and cancel and retry these
    ADMIN = "admin"  #: cancel and retry all jobs
    PROXY = "proxy"  #: no user: a proxy, which names the user of each request

    def includes(self, role: "Role") -> bool:
        """Return whether a user with this role may do what that role may."""
        roles = list(Role)
        return self is not Role.PROXY and roles.index(self) >= roles.index(role)


@dataclass(frozen=True)
class StoredToken:
    """A token as it is kept."""

    id: str
    user: str
    role: Role
    sha256: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None  #: None: never

    def is_valid(self, now: datetime) -> bool:
        """Return whether it has not expired."""
        return self.expires_at is None or now < self.expires_at


def digest_of(token: str) -> str:
    """Return a token's digest; its 256 random bits can't be guessed from that, so that it takes no slow hash."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def create(database: Database, user: str, role: Role, expires_at: datetime | None) -> tuple[str, str]:
    """Store a new token's digest; return its id and the token."""
    name, token = secrets.token_hex(4), secrets.token_urlsafe(32)
    row = {
        "id": name,
        "user": user,
        "role": role.value,
        "sha256": digest_of(token),
        "created_at": datetime.now(UTC),
        "created_by": current_actor(),
        "expires_at": expires_at,
    }
    with database.writing() as connection:
        connection.execute(insert(tables.tokens), [row])
        changes.record(connection, ChangeAction.CREATE_TOKEN, name, f"{role} {user}")
    return name, token


def revoke(database: Database, name: str) -> None:
    """Delete a token by its id. Raises NotFound."""
    with database.writing() as connection:
        if not connection.execute(delete(tables.tokens).where(tables.tokens.c.id == name)).rowcount:
            raise NotFound("token", name)
        changes.record(connection, ChangeAction.REVOKE_TOKEN, name)


def read_tokens(database: Database) -> Sequence[StoredToken]:
    """Return all tokens, also expired ones, by their users."""
    columns = tables.tokens.c
    with database.reading() as connection:
        rows = connection.execute(select(tables.tokens).order_by(columns.user, columns.created_at)).mappings()
        return [StoredToken(**{**row, "role": Role(row["role"])}) for row in rows]
