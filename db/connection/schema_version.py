"""The schema version of a database, and its upgrade to this code's."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, column, inspect, select, table, text

from db.connection.errors import display_name
from db.schema.tables import SCHEMA, VERSION_TABLE
from jobs.errors import DatabaseUnreachable, SchemaNewer, SchemaOutdated

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parents[1] / "migrations"
UPGRADE_KEY = 0x68616C70  #: of the advisory lock


def revision(connection: Connection) -> str | None:
    """Return the number of a database's schema, None if it is empty; raises DatabaseUnreachable if not haloctl's."""
    if inspect(connection).has_table(VERSION_TABLE):
        number: str | None = connection.scalar(select(column("version_num")).select_from(table(VERSION_TABLE)))
        return number
    if inspect(connection).get_table_names():
        raise DatabaseUnreachable(
            display_name(connection.engine.url), "it holds tables of another program; name another database"
        )
    return None


def check(version: str | None, url: URL) -> None:
    """Raise SchemaOutdated or SchemaNewer if this code can't use a schema."""
    name = display_name(url)
    if version is None:
        raise SchemaOutdated(name, "it is empty; `haloctl db upgrade` makes it ready")
    if version < SCHEMA:
        raise SchemaOutdated(name, f"its schema is {version}, this haloctl needs {SCHEMA}; run `haloctl db upgrade`")
    if version > SCHEMA:
        raise SchemaNewer(name, f"a newer haloctl made it (schema {version}, this one knows {SCHEMA}); upgrade haloctl")


def upgrade(connection: Connection) -> None:
    """Run the migrations that a database lacks, within the connection's transaction; a newer schema is refused."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_KEY})
    current = revision(connection)
    if (current or "") > SCHEMA:
        check(current, connection.engine.url)

    from alembic import command  # slow to import, and seldom needed

    command.upgrade(config(connection), "head")


def config(connection: Connection) -> "Config":
    """Return alembic's configuration; there is no ini file."""
    from alembic.config import Config

    alembic_config = Config(stdout=sys.stdout)  # by default what that was when alembic was imported
    alembic_config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    alembic_config.set_main_option("path_separator", "os")
    alembic_config.attributes["connection"] = connection
    return alembic_config
