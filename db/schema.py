"""Which schema a database has, and how it gets this code's."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, column, inspect, select, table, text

from db.faults import shown
from db.tables import SCHEMA, VERSION_TABLE
from jobs.errors import DatabaseUnreachable, SchemaNewer, SchemaOutdated

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parent / "migrations"
UPGRADE_KEY = 0x68616C70  #: of the advisory lock


def revision(connection: Connection) -> str | None:
    """The number of a database's schema; None when it is empty, and DatabaseUnreachable when it is not haloctl's."""
    if inspect(connection).has_table(VERSION_TABLE):
        found: str | None = connection.scalar(select(column("version_num")).select_from(table(VERSION_TABLE)))
        return found
    if inspect(connection).get_table_names():
        raise DatabaseUnreachable(shown(connection.engine.url), "it holds something else's tables; name another")
    return None


def check(found: str | None, url: URL) -> None:
    """Refuse a schema that this code is not for, by its number."""
    name = shown(url)
    if found is None:
        raise SchemaOutdated(name, "it is empty; `haloctl db upgrade` makes it ready")
    if found < SCHEMA:
        raise SchemaOutdated(name, f"its schema is {found}, this haloctl needs {SCHEMA}; run `haloctl db upgrade`")
    if found > SCHEMA:
        raise SchemaNewer(name, f"a newer haloctl made it (schema {found}, this one knows {SCHEMA}); upgrade haloctl")


def upgrade(connection: Connection) -> None:
    """Run the migrations that a database lacks, within the connection's transaction; a newer schema is refused."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_KEY})
    found = revision(connection)
    if (found or "") > SCHEMA:
        check(found, connection.engine.url)

    from alembic import command  # slow to import, and seldom needed

    command.upgrade(config(connection), "head")


def config(connection: Connection) -> "Config":
    """What alembic is to know; there is no ini file."""
    from alembic.config import Config

    made = Config(stdout=sys.stdout)  # by default what that was when alembic was imported
    made.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    made.attributes["connection"] = connection
    return made
