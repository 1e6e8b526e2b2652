"""Groups of commands whose `list` may be left out: `haloctl nodes --json` is `haloctl nodes list --json`."""

from typing import Any

from typer.core import TyperGroup


class ListByDefault(TyperGroup):
    """A group that runs `list` when it is given no command."""

    lists_names = False  #: whether `list` takes a name, so that any other word is one

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Say what runs without a command."""
        formatter.write("\nWithout a command, `list` runs.\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` before arguments that name no command."""
        word = args[0] if args else ""
        is_option = word not in ctx.help_option_names and (word.startswith("-") or not word)
        if is_option or (self.lists_names and word not in (*self.commands, *ctx.help_option_names)):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class ListNamesByDefault(ListByDefault):
    """A group whose `list` takes a name: `haloctl artifacts JOB`."""

    lists_names = True
