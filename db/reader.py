"""Reading snapshots again and again: only jobs that changed are read, and only tasks that changed are made anew."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from sqlalchemy import Connection

from db import live_rows as rows
from db import nodes, toolchains
from db.filters import parts
from db.keeping import recent
from db.nodes import Closed
from db.snapshot import OpenTask, RunningAttempt, Snapshot
from db.toolchains import KeptLock
from db.usage import OF_LATE, Usage, device_seconds
from jobs.state import ACTIVE, DONE, OPEN, TaskState
from jobs.task import Place
from jobs.toolchains import DEFAULT


@dataclass
class LiveJob:
    """A job that is not over, as it was read last."""

    fixed: Mapping[str, rows.Fixed]  #: by task, in the order of the plan
    likenesses: frozenset[str]
    toolchains: frozenset[str]  #: names of those that are not the default
    after: Mapping[str, str]  #: by task, the one that it comes after
    version: int | None = None  #: of what follows
    moving: dict[str, rows.Moving] = field(default_factory=dict)
    active: list[rows.Moving] = field(default_factory=list)
    told: dict[str, OpenTask] = field(default_factory=dict)  #: but those that changed since
    tasks: tuple[OpenTask, ...] | None = None  #: none: something in them changed

    @property
    def turn(self) -> tuple[datetime, str]:
        """Jobs come in the order in which they were submitted."""
        fields = next(iter(self.fixed.values())).fields
        return fields["submitted_at"], fields["job"]

    def see(self, now: rows.Moving) -> None:
        """A task is so now."""
        if self.moving.get(now.id) != now:
            self.moving[now.id] = now
            self.tell_again([now.id])

    def tell_again(self, tasks: Iterable[str]) -> None:
        """Have tasks told anew, for something about them changed."""
        for task in tasks:
            self.told.pop(task, None)
        self.tasks = None


class SnapshotReader:
    """Reads snapshots of one database. For one thread at a time."""

    def __init__(self) -> None:
        self._jobs: dict[str, LiveJob] = {}  #: in order of submission
        self._avoids: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {}  #: as of an epoch and an asked_epoch
        self._attempts: dict[str, rows.FixedAttempt] = {}  #: those that run
        self._running: dict[str, RunningAttempt] = {}  #: as they were told last
        self._expected: dict[str, float | None] = {}  #: by likeness
        self._ran: dict[str, tuple[Place, ...]] = {}  #: by attempt of what others come after
        self._usage = Usage()
        self._ended_at: datetime | None = None  #: of the last attempt that was counted
        self._locks: Mapping[str, KeptLock] = {}
        self._lock_stamps: object = None  #: of the locks as they were read

    def read(self, connection: Connection, now: datetime) -> Snapshot:
        """The jobs that are not over, and what runs, as they are in the connection's transaction."""
        changed = self._read_jobs(connection)
        self._read_avoids(connection, changed)
        self._learn(connection, now)
        active = [one for job in self._jobs.values() for one in job.active]
        self._read_attempts(connection, [str(one.attempt) for one in active])
        tasks = tuple(task for job in self._jobs.values() for task in self._tell_tasks(job))
        running = self._tell_running(active)
        closed = nodes.closed(connection)
        names = frozenset[str]().union(*(job.toolchains for job in self._jobs.values()))
        return Snapshot(
            tasks=tasks,
            running=running,
            closed={name: why for name, (_, why) in closed.items()},
            handing_back=frozenset(name for name, (how, _) in closed.items() if how is Closed.HANDING_BACK),
            quarantined=nodes.quarantined(connection),
            usage=self._usage.total(now, [self._used(one, now) for one in running]),
            toolchains=names,
            locks=self._read_locks(connection, names),
            ran=self._read_ran(connection),
        )

    def _read_jobs(self, connection: Connection) -> list[LiveJob]:
        """Forget the jobs that are over, read what is new; returns the jobs with tasks that may have changed."""
        versions = rows.versions(connection)
        jobs = {name: job for name, job in self._jobs.items() if name in versions}
        for part in parts(sorted(versions.keys() - jobs.keys())):
            jobs |= {
                name: LiveJob(fixed, _likenesses(fixed), _toolchains(fixed), _after(fixed))
                for name, fixed in rows.fixed(connection, part).items()
            }
        self._jobs = dict(sorted(jobs.items(), key=lambda named: named[1].turn))
        changed = [name for name, job in jobs.items() if job.version != versions[name]]
        for now in self._read_moving(connection, changed):
            jobs[now.job].see(now)
        for name in changed:
            job = jobs[name]
            job.version = versions[name]
            job.active = [one for one in job.moving.values() if one.attempt and one.state in ACTIVE]
        return [jobs[name] for name in changed]

    def _read_moving(self, connection: Connection, names: Sequence[str]) -> Iterator[rows.Moving]:
        """All of jobs that are new, in one go; of others what changed."""
        seen = {name: version for name in names if (version := self._jobs[name].version) is not None}
        yield from rows.moving(connection, [name for name in names if name not in seen])
        for name, version in seen.items():
            yield from rows.moved(connection, name, version)

    def _read_avoids(self, connection: Connection, changed: Iterable[LiveJob]) -> None:
        """Find the nodes that failed open tasks, where that may have changed."""
        for job in changed:
            asking = {
                one.id: (one.epoch, one.asked_epoch)
                for one in job.moving.values()
                if one.epoch > one.asked_epoch and one.state in OPEN
            }
            old = {task for task in job.fixed if task in self._avoids and self._avoids[task][0] != asking.get(task)}
            fresh = sorted(task for task in asking if task in old or task not in self._avoids)
            for task in old:
                del self._avoids[task]
            failed = rows.failed(connection, fresh)
            self._avoids |= {task: (asking[task], failed.get(task, ())) for task in fresh}
            job.tell_again(old.union(fresh))

    def _learn(self, connection: Connection, now: datetime) -> None:
        """Count what has ended since the last time, and see how long tasks take now."""
        stale = set()
        for row in rows.ended_since(connection, self._ended_at or now - OF_LATE):
            self._usage.add(row.submitted_by, row.started_at, row.ended_at, row.weight or 0.0)
            stale.add(row.likeness)
            self._ended_at = row.ended_at
        known = frozenset().union(*(job.likenesses for job in self._jobs.values()))
        expected = {likeness: self._expected[likeness] for likeness in known if likeness in self._expected}
        for part in parts(sorted(one for one in known if one in stale or one not in expected)):
            found = recent(connection, part)
            expected |= {one: _typical(found[one]) if one in found else None for one in part}
        changed = {likeness for likeness in known if expected[likeness] != self._expected.get(likeness)}
        self._expected = expected
        for job in self._jobs.values() if changed else ():
            if not changed.isdisjoint(job.likenesses):
                job.tell_again(task for task, fixed in job.fixed.items() if fixed.likeness in changed)

    def _read_attempts(self, connection: Connection, active: Sequence[str]) -> None:
        """Read what can't change of the attempts that have begun, and forget those that have ended."""
        known = {attempt: self._attempts[attempt] for attempt in active if attempt in self._attempts}
        for part in parts(sorted(set(active) - known.keys())):
            known |= rows.fixed_attempts(connection, part)
        self._attempts = known

    def _read_ran(self, connection: Connection) -> dict[str, tuple[Place, ...]]:
        """By task that is done and that open ones come after, where its attempt ran."""
        wanted = {
            earlier: str(job.moving[earlier].attempt)
            for job in self._jobs.values()
            for task, earlier in job.after.items()
            if job.moving[task].state in OPEN and job.moving[earlier].state in DONE
        }
        self._ran = {attempt: self._ran[attempt] for attempt in wanted.values() if attempt in self._ran}
        for part in parts(sorted(set(wanted.values()) - self._ran.keys())):
            self._ran |= rows.places(connection, part)
        return {task: self._ran.get(attempt, ()) for task, attempt in wanted.items()}

    def _read_locks(self, connection: Connection, names: frozenset[str]) -> Mapping[str, KeptLock]:
        """Read what toolchains stand for, where that may have changed."""
        stamps = (names, toolchains.stamps(connection, names)) if names else None
        if stamps != self._lock_stamps:
            self._lock_stamps, self._locks = stamps, toolchains.current(connection, names)
        return self._locks

    def _tell_tasks(self, job: LiveJob) -> tuple[OpenTask, ...]:
        if job.tasks is None:
            for task in job.fixed.keys() - job.told.keys():
                job.told[task] = self._open_task(job.fixed[task], job.moving[task])
            job.tasks = tuple(job.told[task] for task in job.fixed)
        return job.tasks

    def _open_task(self, fixed: rows.Fixed, now: rows.Moving) -> OpenTask:
        return OpenTask(
            **fixed.fields,
            state=TaskState(now.state),
            epoch=now.epoch,
            waits_for=now.waits_for,
            is_stuck=now.is_stuck,
            lost=now.lost,
            avoids=self._avoids[now.id][1] if now.id in self._avoids else (),
            expected_s=self._expected.get(fixed.likeness) if fixed.likeness else None,
        )

    def _tell_running(self, active: Sequence[rows.Moving]) -> tuple[RunningAttempt, ...]:
        told = {}
        for now in active:
            task, attempt = self._jobs[now.job].told[now.id], str(now.attempt)
            running = self._running.get(attempt)
            if running is None or (running.state, running.expected_s) != (task.state, task.expected_s):
                running = RunningAttempt(
                    **self._attempts[attempt].fields,
                    state=task.state,
                    resources=task.resources,
                    submitted_by=task.submitted_by,
                    expected_s=task.expected_s,
                )
            told[attempt] = running
        self._running = told
        return tuple(running for _, running in sorted(told.items()))

    def _used(self, running: RunningAttempt, now: datetime) -> tuple[str, float]:
        return running.submitted_by, device_seconds(running.started_at, now, self._attempts[running.id].weight)


def _typical(seconds: Sequence[float]) -> float:
    """The middle one, to two digits: it is a guess, and each other guess has its tasks told anew."""
    return float(f"{median(seconds):.2g}")


def _likenesses(tasks: Mapping[str, rows.Fixed]) -> frozenset[str]:
    return frozenset(fixed.likeness for fixed in tasks.values() if fixed.likeness)


def _toolchains(tasks: Mapping[str, rows.Fixed]) -> frozenset[str]:
    return frozenset(fixed.fields["toolchain"] for fixed in tasks.values()) - {DEFAULT}


def _after(tasks: Mapping[str, rows.Fixed]) -> Mapping[str, str]:
    return {task: fixed.fields["after"] for task, fixed in tasks.items() if fixed.fields["after"]}
