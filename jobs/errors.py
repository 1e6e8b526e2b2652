"""The errors that haloctl raises on purpose, one family for each exit code.

    HaloError                     never raised itself
    |- UserError              2   FileError, JobFileError, UnknownRecipe, UnknownToolchain, ToolchainUnusable,
    |                             BadSetting, TooManyCommands, UnsafePath
    |- JobFailed              3   also ResultsDiffer, ArtifactsDamaged
    |- NotFound               4   NoSuchJob, NoSuchTask, AmbiguousId, ArtifactLost
    |- Conflict               5   InvalidTransition, LostRace, AlreadyLeading, NameTaken, NotEmpty, InvariantsViolated
    `- Unreachable            6   DatabaseUnreachable, DatabaseReadOnly, SchemaOutdated, SchemaNewer,
                                  ClusterUnreachable, StorageUnusable, IndexUnreachable

The fields are the arguments of `super().__init__` and `__str__` makes the text, so that errors survive pickling.
"""

import errno
from typing import ClassVar

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})


class HaloError(Exception):
    """An error that users see as one message, without a traceback."""

    exit_code: ClassVar[int] = 1


class UserError(HaloError):
    """Input of the user that can't be used."""

    exit_code = 2


class FileError(UserError):
    """A wrong key, type or value in a file of the user."""

    def __init__(self, file: str, line: int | None, key: str, message: str) -> None:
        super().__init__(file, line, key, message)
        self.file, self.line, self.key, self.message = file, line, key, message

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class JobFileError(FileError):
    """A mistake in a job file."""


class UnknownRecipe(UserError):
    """A name that is neither a file nor a recipe."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return f"no job file or recipe is called {self.name!r}; recipes: {', '.join(self.known)}"


class TooManyCommands(UserError):
    """A task of more commands than any task may have."""

    def __init__(self, stage: str, count: int, limit: int) -> None:
        super().__init__(stage, count, limit)
        self.stage, self.count, self.limit = stage, count, limit

    def __str__(self) -> str:
        return f"{self.stage} would run {self.count} commands, more than {self.limit}: split the job into several"


class UnknownToolchain(UserError):
    """A name that no toolchain has."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return f"no toolchain is called {self.name!r}; there are {', '.join(self.known)}"


class ToolchainUnusable(UserError):
    """A toolchain whose packages conflict or can't be installed; trying again does not help."""

    def __init__(self, name: str, problem: str, reason: str) -> None:
        super().__init__(name, problem, reason)
        self.name, self.problem, self.reason = name, problem, reason

    def __str__(self) -> str:
        return f"toolchain {self.name} {self.problem}: {self.reason}"


class BadSetting(UserError):
    """An environment variable or option with a value that can't be used."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.name, self.message = name, message

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


class UnsafePath(UserError):
    """A name or path that could lead out of the folder that it is meant for."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name!r} {self.reason}"


class JobFailed(HaloError):
    """A job that ended without success while a command waited for it."""

    exit_code = 3

    def __init__(self, job: str, state: str) -> None:
        super().__init__(job, state)
        self.job, self.state = job, state

    def __str__(self) -> str:
        return f"job {self.job} ended as {self.state}: `haloctl show {self.job}` says why"


class ResultsDiffer(HaloError):
    """A task that was run again with a different result."""

    exit_code = 3

    def __init__(self, task: str, what: str) -> None:
        super().__init__(task, what)
        self.task, self.what = task, what

    def __str__(self) -> str:
        return f"task {self.task} does not agree with its earlier run: {self.what}"


class ArtifactsDamaged(HaloError):
    """Damaged or missing files in the artifact store."""

    exit_code = 3

    def __init__(self, count: int, of: int) -> None:
        super().__init__(count, of)
        self.count, self.of = count, of

    def __str__(self) -> str:
        return f"{self.count} of {self.of} are damaged or missing; tasks that need them make them again"


class NotFound(HaloError):
    """An id or name that nothing has."""

    exit_code = 4

    def __init__(self, noun: str, name: str) -> None:
        super().__init__(noun, name)
        self.noun, self.name = noun, name

    def __str__(self) -> str:
        return f"no {self.noun} is called {self.name!r}: {LISTED_BY.get(self.noun, 'check the name')}"


LISTED_BY = {
    "job": "`haloctl list` shows them",
    "task": "`haloctl show JOB` lists a job's tasks",
    "node": "`haloctl nodes` lists them",
    "artifact": "`haloctl artifacts` lists them",
    "device": "`haloctl nodes --json` lists them",
    "report of layers": "a job with `numerics: {where: layers}` makes them",
    "report of dispatches": "a job with `numerics: {where: dispatches}` makes them",
    "target": "`haloctl targets` lists them",
    "schedule": "`haloctl schedule list` shows them",
    "token": "`haloctl tokens` lists them",
}


class AmbiguousId(NotFound):
    """A prefix that more than one id starts with."""

    def __str__(self) -> str:
        return f"several {self.noun}s start with {self.name!r}: give more characters of the id"


class ArtifactLost(NotFound):
    """A file that is missing from the artifact store or damaged in it."""

    def __init__(self, name: str, sha256: str, store: str, how: str) -> None:
        super().__init__("artifact", name)
        self.args = (name, sha256, store, how)
        self.sha256, self.store, self.how = sha256, store, how

    def __str__(self) -> str:
        return f"{self.name} ({self.sha256}) is {self.how} in the artifact store {self.store}"


class Conflict(HaloError):
    """A request that conflicts with the current state."""

    exit_code = 5


class InvalidTransition(Conflict):
    """A change of state that a task's state does not allow."""

    def __init__(self, task: str, state: str, wanted: str) -> None:
        super().__init__(task, state, wanted)
        self.task, self.state, self.wanted = task, state, wanted

    def __str__(self) -> str:
        return f"task {self.task} is {self.state} and cannot become {self.wanted}"


class LostRace(Conflict):
    """A write that came after another change of the same row."""

    def __init__(self, what: str, wanted: str) -> None:
        super().__init__(what, wanted)
        self.what, self.wanted = what, wanted

    def __str__(self) -> str:
        return f"another process changed {self.what} first, so it did not become {self.wanted}"


class AlreadyLeading(Conflict):
    """An attempt to lead while another leader is alive."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who

    def __str__(self) -> str:
        return f"{self.who} is already the leader: end it, or wait for its end with --standby"


class AlreadyRunning(Conflict):
    """A second start of something that runs only once."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what} is already running: {self.remedy}"


class NothingToDo(Conflict):
    """A command that finds nothing to apply to."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class SettingsNotApplied(Conflict):
    """Settings of this machine that could not be changed to the recommended values."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self.names = names

    def __str__(self) -> str:
        return f"still not as recommended: {', '.join(self.names)}; the lines above say what to do"


class NameTaken(Conflict):
    """A new name that is taken."""

    def __init__(self, noun: str, name: str, remedy: str) -> None:
        super().__init__(noun, name, remedy)
        self.noun, self.name, self.remedy = noun, name, remedy

    def __str__(self) -> str:
        return f"a {self.noun} called {self.name} exists already: {self.remedy}"


class NotEmpty(Conflict):
    """A database that should be empty and is not."""

    def __init__(self, database: str, table: str) -> None:
        super().__init__(database, table)
        self.database, self.table = database, table

    def __str__(self) -> str:
        return f"{self.database} already has {self.table}; name a new database in HALOCTL_DATABASE_URL"


class InvariantsViolated(Conflict):
    """A database that violates its invariants."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count

    def __str__(self) -> str:
        return f"the database breaks its invariants in {self.count} places: keep a copy of it, and report them"


class Unreachable(HaloError):
    """A service or resource that haloctl needs and can't reach or use."""

    exit_code = 6

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


class DatabaseUnreachable(Unreachable):
    """A database that can't be opened, read or written."""


class DatabaseReadOnly(DatabaseUnreachable):
    """A database that this user may not write to, or not in this way."""


class SchemaOutdated(Unreachable):
    """A database with the schema of an older haloctl."""


class SchemaNewer(Unreachable):
    """A database with the schema of a newer haloctl."""


class ClusterUnreachable(Unreachable):
    """A Ray cluster that can't be started or joined."""


class StorageUnusable(Unreachable):
    """A data folder or artifact store that can't be written."""


class IndexUnreachable(Unreachable):
    """A package index that can't be reached now; another try may succeed."""
