"""The errors that haloctl raises on purpose, one family per exit code.

    HaloError                     never raised itself
    |- UserError              2   FileError, JobFileError, UnknownRecipe, UnknownToolchain, ToolchainUnusable, BadModel,
    |                             BadSetting
    |- JobFailed              3   also Disagrees, ArtifactsUnsound
    |- NotFound               4   NoSuchJob, NoSuchTask, AmbiguousId, ArtifactLost
    |- Conflict               5   InvalidTransition, LostRace, AlreadyLed, NameTaken, NotEmpty, RulesBroken
    `- Unreachable            6   DatabaseUnreachable, SchemaOutdated, SchemaNewer, ClusterUnreachable, StorageUnusable,
                                  IndexUnreachable

Fields go to `super().__init__` and the text is made in `__str__`, so that an error survives pickling.
"""

import errno
from typing import ClassVar

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})


class HaloError(Exception):
    """Anything that haloctl tells its user in one message, without a traceback."""

    exit_code: ClassVar[int] = 1


class UserError(HaloError):
    """What the user gave can't be used as it is."""

    exit_code = 2


class FileError(UserError):
    """A file that the user gave has a wrong key, type or value."""

    def __init__(self, file: str, line: int | None, key: str, message: str) -> None:
        super().__init__(file, line, key, message)
        self.file, self.line, self.key, self.message = file, line, key, message

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class JobFileError(FileError):
    """A job file is not what one should be."""


class UnknownRecipe(UserError):
    """Neither a file nor a recipe has the name that was given."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return f"no job file and no recipe is called {self.name!r}; recipes: {', '.join(self.known)}"


class UnknownToolchain(UserError):
    """No toolchain has the name that was given."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return f"no toolchain is called {self.name!r}; there are {', '.join(self.known)}"


class ToolchainUnusable(UserError):
    """A toolchain's packages do not go together, or can't be installed; trying again is no use."""

    def __init__(self, name: str, doing: str, said: str) -> None:
        super().__init__(name, doing, said)
        self.name, self.doing, self.said = name, doing, said

    def __str__(self) -> str:
        return f"toolchain {self.name} {self.doing}: {self.said}"


class BadModel(UserError):
    """A model can't be read, or can't be split as a job asks."""

    def __init__(self, model: str, message: str) -> None:
        super().__init__(model, message)
        self.model, self.message = model, message

    def __str__(self) -> str:
        return f"model {self.model}: {self.message}"


class BadSetting(UserError):
    """An environment variable or option has a value that can't be used."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.name, self.message = name, message

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


class JobFailed(HaloError):
    """A job that was waited for ended without success."""

    exit_code = 3

    def __init__(self, job: str, state: str) -> None:
        super().__init__(job, state)
        self.job, self.state = job, state

    def __str__(self) -> str:
        return f"job {self.job} ended as {self.state}: `haloctl show {self.job}` says why"


class Disagrees(HaloError):
    """What was run again did not come to the same."""

    exit_code = 3

    def __init__(self, task: str, what: str) -> None:
        super().__init__(task, what)
        self.task, self.what = task, what

    def __str__(self) -> str:
        return f"task {self.task} does not agree with what it was run for again: {self.what}"


class ArtifactsUnsound(HaloError):
    """Files in the artifact store are damaged or missing."""

    exit_code = 3

    def __init__(self, count: int, of: int) -> None:
        super().__init__(count, of)
        self.count, self.of = count, of

    def __str__(self) -> str:
        return f"{self.count} of {self.of} are damaged or missing: tasks that need them have them made again"


class NotFound(HaloError):
    """Nothing has the id or name that was given."""

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
    "target": "`haloctl targets` lists them",
    "schedule": "`haloctl schedule list` shows them",
}


class AmbiguousId(NotFound):
    """The prefix that was given belongs to more than one id."""

    def __str__(self) -> str:
        return f"more than one {self.noun} starts with {self.name!r}: give more of its id"


class ArtifactLost(NotFound):
    """The artifact store does not have a file that it should have, or has it damaged."""

    def __init__(self, name: str, sha256: str, store: str, how: str) -> None:
        super().__init__("artifact", name)
        self.args = (name, sha256, store, how)
        self.sha256, self.store, self.how = sha256, store, how

    def __str__(self) -> str:
        return f"{self.name} ({self.sha256}) is {self.how} in the artifact store {self.store}"


class Conflict(HaloError):
    """What was asked for does not fit the state that things are in."""

    exit_code = 5


class InvalidTransition(Conflict):
    """A task was to go where its state does not lead."""

    def __init__(self, task: str, state: str, wanted: str) -> None:
        super().__init__(task, state, wanted)
        self.task, self.state, self.wanted = task, state, wanted

    def __str__(self) -> str:
        return f"task {self.task} is {self.state} and cannot become {self.wanted}"


class LostRace(Conflict):
    """Somebody else changed a row first; what was to be written is out of date."""

    def __init__(self, what: str, wanted: str) -> None:
        super().__init__(what, wanted)
        self.what, self.wanted = what, wanted

    def __str__(self) -> str:
        return f"{self.what} was changed by somebody else and did not become {self.wanted}"


class AlreadyLed(Conflict):
    """Somebody else leads."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who

    def __str__(self) -> str:
        return f"{self.who} leads already: end that, or wait to take over with --standby"


class AlreadyRuns(Conflict):
    """What there may be one of is there."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what} runs already: {self.remedy}"


class NothingToDo(Conflict):
    """A command found nothing in a state that it applies to."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class SettingsLeft(Conflict):
    """Settings of this machine were to be changed and are not as wanted."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self.names = names

    def __str__(self) -> str:
        return f"not as wanted still: {', '.join(self.names)}; what to do is told above"


class NameTaken(Conflict):
    """Something else has the name that was given."""

    def __init__(self, noun: str, name: str, remedy: str) -> None:
        super().__init__(noun, name, remedy)
        self.noun, self.name, self.remedy = noun, name, remedy

    def __str__(self) -> str:
        return f"there is a {self.noun} called {self.name} already: {self.remedy}"


class NotEmpty(Conflict):
    """A database that was to be filled holds something."""

    def __init__(self, database: str, table: str) -> None:
        super().__init__(database, table)
        self.database, self.table = database, table

    def __str__(self) -> str:
        return f"{self.database}: it has {self.table} already; name a new one in HALOCTL_DATABASE_URL"


class RulesBroken(Conflict):
    """A database holds what can't be."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count

    def __str__(self) -> str:
        return f"the database breaks what must always hold, in {self.count} places; keep a copy of it, and report them"


class Unreachable(HaloError):
    """Something haloctl stands on can't be reached or used."""

    exit_code = 6

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


class DatabaseUnreachable(Unreachable):
    """The database can't be opened, read or written."""


class SchemaOutdated(Unreachable):
    """The database was made by an older haloctl."""


class SchemaNewer(Unreachable):
    """The database was made by a newer haloctl."""


class ClusterUnreachable(Unreachable):
    """Ray can't be started or joined."""


class StorageUnusable(Unreachable):
    """The data folder or the artifact store can't be written."""


class IndexUnreachable(Unreachable):
    """Packages can't be fetched for now; the next time may be another thing."""
