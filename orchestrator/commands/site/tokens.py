"""`haloctl tokens`."""

from typing import Annotated

import typer

from orchestrator.commands import options
from orchestrator.commands.groups import ListByDefault

app = typer.Typer(cls=ListByDefault, help="Create, list and revoke tokens of the web server's users.")

DEFAULT_EXPIRY = "90d"
NEVER = "never"
COLUMNS = ("token", "user", "role", "created_by", "created_at", "expires_at")


@app.command("create")
def create(
    user: Annotated[str, typer.Argument(help="The name under which the user's changes are recorded.")],
    role: Annotated[
        str, typer.Option("--role", help="reader, submitter, admin, or proxy: see the guide on security.")
    ] = "reader",
    expires: Annotated[str, typer.Option("--expires", help="After 12h, 90d, ..., or never.")] = DEFAULT_EXPIRY,
) -> None:
    """Create a token and print it: it can't be shown again."""
    from datetime import UTC, datetime

    from db.writes import tokens
    from orchestrator import output, times
    from orchestrator.context import open_context
    from orchestrator.web.user_names import expect_name, expect_role

    expiry = None if expires == NEVER else times.parse_duration(expires, "--expires")
    name, known_role = expect_name(user, "USER"), expect_role(role)
    with open_context() as context:
        expires_at = None if expiry is None else datetime.now(UTC) + expiry
        token_id, token = tokens.create(context.database, name, known_role, expires_at)
    output.print_line(token)
    output.print_message(f"token {token_id} for {name}: give it to nobody else; it is not stored")


@app.command("list")
def list_tokens(json: options.Json = False) -> None:
    """List tokens, without what is secret of them."""
    from datetime import UTC, datetime

    from db.writes.tokens import read_tokens
    from orchestrator.context import open_context
    from orchestrator.tables import TextTable
    from orchestrator.times import format_time
    from orchestrator.views.formats import OutputFormat

    now = datetime.now(UTC)
    with open_context() as context:
        tokens = read_tokens(context.database)
    rows = [
        {
            "token": token.id,
            "user": token.user,
            "role": token.role.value,
            "created_by": token.created_by,
            "created_at": token.created_at.isoformat(),
            "expires_at": token.expires_at and token.expires_at.isoformat(),
            "is_valid": token.is_valid(now),
        }
        for token in tokens
    ]

    def table() -> TextTable:
        lines = [
            (
                *(token.id, token.user, token.role.value, token.created_by),
                format_time(token.created_at.isoformat()),
                NEVER if token.expires_at is None else format_time(token.expires_at.isoformat()),
                "" if token.is_valid(now) else "expired",
            )
            for token in tokens
        ]
        return TextTable(("token", "user", "role", "by", "created", "expires", ""), lines)

    OutputFormat(json).print_rows(rows, COLUMNS, table, "no tokens yet: run `haloctl tokens create USER --role reader`")


@app.command("revoke")
def revoke(token: Annotated[str, typer.Argument(help="The token's id, as `haloctl tokens` lists it.")]) -> None:
    """Revoke a token: from now on nobody gets in with it."""
    from db.writes import tokens
    from orchestrator import output
    from orchestrator.context import open_context

    with open_context() as context:
        tokens.revoke(context.database, token)
    output.print_line(f"revoked {token}")
