"""Command lines and environments: options, ids and settings with nasty values."""

import random
from collections.abc import Iterator

from tests.fuzz.harness import Case
from tests.fuzz.nasty_values import YAML_VALUES

ANY_ERROR = frozenset({0, 2, 4, 5, 6})

#: Arguments that stand where any command expects a value.
VALUES = (
    "",
    " ",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "999999999999999999999",
    "9" * 5000,
    "0x1",
    "1e400",
    "inf",
    "nan",
    "%",
    "_",
    "*",
    "[",
    "\\",
    "a/b",
    "..",
    "../..",
    "/",
    "~nobody",
    "x" * 300,
    "x" * 5000,
    "é\u202e\u200b",
    "\x1b[2J",
    "a\nb",
    "'",
    '"; drop table jobs',
    "(",
    "\udcff",
    "9999999999d",
    "9" * 400 + "h",
    "0d",
    "-5d",
    "2001-99-99",
    "0001-01-01",
    "9999-12-31",
    "9999-12-31T23:59:59",
    "0001-01-01T00:00:00+14:00",
    "2026-11-20T25:00",
    "99999-01-01",
    "२०२६-११-२०",
)

#: Commands that read or refuse, with the place of a value.
COMMANDS: tuple[tuple[str, ...], ...] = (
    *((command, "{}") for command in ("show", "logs", "why", "cancel", "retry", "reproduce", "submit")),
    ("wait", "{}", "--timeout", "1"),
    *(
        ("results", option, "{}")
        for option in ("--since", "--model", "--variant", "--target", "--job", "--limit", "--batch", "--pivot")
    ),
    *(("trend", "itl_ms", option, "{}") for option in ("--since", "--until", "--variant")),
    ("trend", "{}"),
    ("compare", "{}", "{}"),
    ("list", "--limit", "{}"),
    ("matrix", "{}"),
    ("matrix", "--variant", "{}"),
    ("submit", "demo", "--dry-run", "--from", "{}"),
    ("submit", "demo", "--dry-run", "--priority", "{}"),
    ("submit", "demo", "--dry-run", "--nodes", "{}"),
    ("schedule", "add", "demo", "--name", "{}", "--cron", "0 2 * * *"),
    ("schedule", "add", "demo", "--name", "x", "--cron", "{}"),
    ("schedule", "add", "demo", "--name", "y", "--cron", "0 2 * * *", "--timezone", "{}"),
    ("schedule", "remove", "{}"),
    ("artifacts", "list", "{}"),
    ("artifacts", "gc", "--dry-run", "--older-than", "{}"),
    ("nodes", "drain", "{}"),
    ("targets", "set", "{}", "itl_ms", "9", "--source", "x"),
    ("targets", "set", "v", "itl_ms", "{}", "--source", "x"),
    ("toolchains", "show", "{}"),
    ("toolchains", "gc", "--days", "{}"),
    ("wait", "demo", "--timeout", "{}"),
    ("compare", "a", "b", "--margin", "{}"),
    ("query", "select 1", "--timeout", "{}"),
    ("query", "select 1", "--limit", "{}"),
    ("submit", "demo", "--dry-run", "--devices", "{}"),
    ("matrix", "--since", "{}"),
    ("events", "--since", "{}"),
    ("list", "--since", "{}"),
    ("{}",),
)

DATABASE_URLS = (
    "postgresql+psycopg://u:p@localhost:abc/x",
    "postgresql+psycopg://u:p@localhost:99999/x",
    "postgresql+psycopg://[::1/x",
    "postgresql://x",
    "sqlite://",
    "sqlite:////",
    "sqlite:///",
    "sqlite:////dev/null",
    "sqlite:////proc/x/y",
    "mysql://x/y",
    "://",
    "x",
    "sqlite:x",
    "postgresql+psycopg://localhost:1/x?connect_timeout=soon",
    "postgresql+psycopg://localhost:1/x?unknown=1",
    "sqlite:///x?mode=nonsense",
    "sqlite:///" + "x" * 5000,
    "http://localhost",
    "postgresql+psycopg://localhost:1/%00",
    "postgresql+nothing://x/y",
)

#: Settings by the environment, with the place of a value.
SETTINGS = ("HALOCTL_DATA", "HALOCTL_ARTIFACTS", "HALOCTL_TOOLCHAINS", "HALOCTL_DATABASE_URL_FILE", "HALOCTL_CACHE_GB")
SETTING_VALUES = (
    "",
    " ",
    "/dev/null",
    "/proc/x",
    "~nobody",
    "x" * 5000,
    "loop",
    "s3://",
    "nothing://x",
    "://",
    "-1",
    "inf",
    "[::1",
)


#: A site's toolchain, with the place of a value.
TOOLCHAIN = "our-rocm:\n  packages: [torch==2.9.*]\n  engines: [torch]\n  {key}: {value}\n"
TOOLCHAIN_KEYS = ("packages", "stages", "engines", "over", "without", "unknown")


def _site_toolchains() -> Iterator[Case]:
    """Yield files with a site's toolchains, which every command that plans reads."""
    variables = {"HALOCTL_TOOLCHAINS": "toolchains.yaml"}
    for key in TOOLCHAIN_KEYS:
        for what, value in YAML_VALUES.items():
            text = TOOLCHAIN.replace("{key}", key).replace("{value}", value)
            files = {"toolchains.yaml": text}
            yield Case(f"{key} of a toolchain is {what}", ("toolchains",), files, variables=variables)


def cases(chance: random.Random) -> Iterator[Case]:
    """Yield all command lines."""
    for command in COMMANDS:
        for value in VALUES:
            if "\0" not in value:
                argv = tuple(value if part == "{}" else part for part in command)
                yield Case(f"{' '.join(command)} with {value[:40]!r}", argv, codes=ANY_ERROR)
    yield from _site_toolchains()
    for url in DATABASE_URLS:
        yield Case(
            f"the database {url[:60]!r}", ("list",), codes=frozenset({2, 6}), variables={"HALOCTL_DATABASE_URL": url}
        )
    for name in SETTINGS:
        for value in SETTING_VALUES:
            yield Case(
                f"{name}={value[:40]!r}",
                ("list",),
                prepare=lambda folder: (folder / "loop").symlink_to("loop"),
                codes=ANY_ERROR,
                variables={name: value},
            )
