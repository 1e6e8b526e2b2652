"""The values that travel between head and node: commands, needs of a task, results. Plain data; JSON in and out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.state import Failure

GIB = 1 << 30


@dataclass(frozen=True)
class Command:
    """One process of an attempt. `argv[0]` is a tool of the toolchain (`python`, `iree-compile`), never a shell."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resources:
    """What a task holds while it runs on each of its nodes."""

    cpus: int = 1
    memory_bytes: int = GIB
    devices: int = 0
    device_kind: str = ""  #: of `jobs.targets`; empty when no device is needed
    is_quiet: bool = False  #: nothing else may run on its nodes meanwhile
    nodes: int = 1  #: more than one is a gang: it gets all of them at once or none


@dataclass(frozen=True)
class Device:
    """One GPU, or one logical CPU device, of a node."""

    kind: str
    index: int  #: the node's own number of it, from 0 for each kind
    serial: str = ""
    memory_bytes: int = 0  #: 0 where it is not known; a logical device shares its host's
    memory_used_bytes: int | None = field(default=None, compare=False)  #: when the node last looked; None: not known


@dataclass(frozen=True)
class Place:
    """A node, and the devices on it that an attempt may use."""

    node: str
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True)
class Pin:
    """Where alone a task may run: on one node, or on these devices of it."""

    node: str
    devices: tuple[int, ...] = ()  #: their indices


@dataclass(frozen=True)
class Gang:
    """What one node of several is told of the others."""

    rank: int  #: of this node, from 0
    size: int  #: nodes
    master_address: str  #: of the node with rank 0
    master_port: int


@dataclass(frozen=True)
class Check:
    """One setting of a machine that timings depend on, as it was found."""

    name: str
    found: str
    wanted: str
    is_ok: bool
    advice: str = ""  #: what a person does about it


@dataclass(frozen=True)
class Unfit:
    """A node, or one device of it, that must not be used until somebody looked at it."""

    node: str
    reason: str
    kind: str = ""  #: of the device; empty: the whole node
    index: int = 0


@dataclass(frozen=True)
class Node:
    """A machine that runs tasks, as it describes itself."""

    id: str
    host: str
    cpus: int
    memory_bytes: int
    devices: tuple[Device, ...]
    address: str = "127.0.0.1"  #: where the other nodes of a gang reach it
    versions: Mapping[str, str] = field(default_factory=dict)  #: of drivers and of the toolchain
    checks: tuple[Check, ...] = ()
    toolchains: Mapping[str, str] = field(default_factory=dict)  #: by digest, why one can't be used; empty: it can

    def count(self, kind: str) -> int:
        """How many devices of a kind it has."""
        return sum(device.kind == kind for device in self.devices)


@dataclass(frozen=True)
class Artifact:
    """A file that a task made."""

    name: str  #: its file name in the task's output folder
    kind: str  #: irpa, mlir, vmfb, config, report, log
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Measurement:
    """Samples of one metric (`jobs.metrics.METRICS`) with what they were measured under."""

    metric: str
    samples: tuple[float, ...]
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a stage reads from an attempt's outputs."""

    measurements: tuple[Measurement, ...] = ()
    warnings: tuple[str, ...] = ()
    failure: Failure | None = None


@dataclass(frozen=True)
class Attempt:
    """One try of a task, ready to be handed to a node."""

    id: str  #: `<task>-<number>`
    epoch: int  #: the task's epoch; an answer with another epoch is void
    stage: str
    settings: Mapping[str, Any]
    commands: tuple[Command, ...]
    inputs: Mapping[str, tuple[Artifact, ...]]  #: by the stage that made them
    places: tuple[Place, ...]  #: one for each node of a gang; a node is handed its own alone
    timeout_s: float
    cpus: int = 1
    gang: Gang | None = None  #: set for a node that is one of several
    toolchain: str = ""  #: the digest of the lock that it runs under; empty: what haloctl is installed in

    @property
    def devices(self) -> tuple[Device, ...]:
        """Those of all its places."""
        return tuple(device for place in self.places for device in place.devices)


@dataclass(frozen=True)
class Process:
    """What one command of an attempt did."""

    argv: tuple[str, ...]
    exit_code: int  #: negative: the signal that ended it
    wall_s: float
    peak_rss_bytes: int
    cpu_s: float = 0.0  #: of it and of all that it started


@dataclass(frozen=True)
class TaskResult:
    """What came of an attempt; a failed tool is a value here, not an exception."""

    attempt: str
    epoch: int
    failure: Failure | None
    artifacts: tuple[Artifact, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    warnings: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  #: of the toolchain that it ran under
    unfit: tuple[Unfit, ...] = ()  #: what was found before or after it; its own outcome stands all the same
    lost: tuple[Artifact, ...] = ()  #: inputs that are gone from the store, or damaged there: to be made again
    wall_s: float = 0.0


@dataclass(frozen=True)
class LogChunk:
    """A part of the log of an attempt that runs."""

    attempt: str
    offset: int  #: in bytes, of its beginning
    text: str
