"""The values that head and nodes exchange: commands, resources, attempts and results. Plain data, as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.state import Failure

GIB = 1 << 30


@dataclass(frozen=True)
class Command:
    """One process of an attempt; `argv[0]` is a tool of the toolchain (`python`, `iree-compile`), never a shell."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resources:
    """The resources that a task holds on each of its nodes while it runs."""

    cpus: int = 1
    memory_bytes: int = GIB
    devices: int = 0
    device_kind: str = ""  #: a target in `jobs.targets`; empty without devices
    is_exclusive: bool = False  #: nothing else runs on its nodes meanwhile
    nodes: int = 1  #: with more than one it is a gang, which gets all of them at once or none


@dataclass(frozen=True)
class Device:
    """One GPU or one logical CPU device of a node."""

    kind: str
    index: int  #: its number on the node, from 0 for each kind
    serial: str = ""
    memory_bytes: int = 0  #: 0: unknown; a logical device shares its host's memory
    memory_used_bytes: int | None = field(default=None, compare=False)  #: at the node's last sample; None: unknown


@dataclass(frozen=True)
class Place:
    """A node with the devices that an attempt may use."""

    node: str
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True)
class Pin:
    """The only place where a task may run: one node, or certain devices of it."""

    node: str
    devices: tuple[int, ...] = ()  #: their indices


@dataclass(frozen=True)
class Gang:
    """What one node of a gang knows about the others."""

    rank: int  #: of this node, from 0
    size: int  #: nodes
    master_address: str  #: of the node with rank 0
    master_port: int


@dataclass(frozen=True)
class Check:
    """One setting of a machine that timings depend on."""

    name: str
    found: str
    wanted: str
    is_ok: bool
    advice: str = ""  #: how to change it


@dataclass(frozen=True)
class Unfit:
    """A node or device that must not be used until a person has checked it."""

    node: str
    reason: str
    kind: str = ""  #: of the device; empty: the whole node
    index: int = 0


@dataclass(frozen=True)
class Node:
    """A machine that runs tasks."""

    id: str
    host: str
    cpus: int
    memory_bytes: int
    devices: tuple[Device, ...]
    address: str = "127.0.0.1"  #: at which the other nodes of a gang reach it
    versions: Mapping[str, str] = field(default_factory=dict)  #: of drivers and of the toolchain
    checks: tuple[Check, ...] = ()
    toolchains: Mapping[str, str] = field(default_factory=dict)  #: by digest, why it can't be used; empty: it can

    def count(self, kind: str) -> int:
        """Return the number of its devices of a kind."""
        return sum(device.kind == kind for device in self.devices)


@dataclass(frozen=True)
class Artifact:
    """A file that a task made."""

    name: str  #: its file name in the task's output folder
    kind: str  #: a name in `jobs.artifact_kinds`
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Span:
    """The time in which a process made the calls that are samples of a measurement, warm-up excluded."""

    begin_s: float  #: Unix time
    end_s: float
    calls: int
    tokens: int  #: processed in all calls


@dataclass(frozen=True)
class Measurement:
    """Samples of one metric (`jobs.metrics.METRICS`) with the context that they were measured in."""

    metric: str
    samples: tuple[float, ...]
    context: Mapping[str, Any] = field(default_factory=dict)
    spans: tuple[Span, ...] = field(default=(), compare=False)  #: one for each process; from them energy is computed


@dataclass(frozen=True)
class Outcome:
    """The results that a stage reads from an attempt's outputs."""

    measurements: tuple[Measurement, ...] = ()
    warnings: tuple[str, ...] = ()
    failure: Failure | None = None


@dataclass(frozen=True)
class Attempt:
    """One try of a task, with everything that a node needs to run it."""

    id: str  #: `<task>-<number>`
    epoch: int  #: the task's epoch; a result with another epoch is ignored
    stage: str
    settings: Mapping[str, Any]
    commands: tuple[Command, ...]
    inputs: Mapping[str, tuple[Artifact, ...]]  #: by the stage that made them
    places: tuple[Place, ...]  #: one for each node of a gang; each node gets only its own
    timeout_s: float
    cpus: int = 1
    gang: Gang | None = None  #: set on a node of a gang
    toolchain: str = ""  #: the digest of its toolchain's lock; empty: the default toolchain
    model_files: Mapping[str, str] = field(default_factory=dict)  #: sha256 of its model's files when it was planned

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of all its places."""
        return tuple(device for place in self.places for device in place.devices)


@dataclass(frozen=True)
class Process:
    """The end of one command of an attempt."""

    argv: tuple[str, ...]
    exit_code: int  #: negative: the signal that ended it
    wall_s: float
    peak_rss_bytes: int
    cpu_s: float = 0.0  #: including its descendants


@dataclass(frozen=True)
class TaskResult:
    """The result of an attempt; a failed tool is a value, not an exception."""

    attempt: str
    epoch: int
    failure: Failure | None
    artifacts: tuple[Artifact, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    warnings: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  #: of its toolchain
    unfit: tuple[Unfit, ...] = ()  #: nodes or devices found unfit before or after it, which does not change its result
    lost: tuple[Artifact, ...] = ()  #: inputs that the store lost or has damaged, which have to be made again
    duration_s: float | None = None  #: by a monotonic clock of its node; None: nobody knows


@dataclass(frozen=True)
class LogChunk:
    """A part of the log of a running attempt."""

    attempt: str
    offset: int  #: of its beginning, in bytes
    text: str
