"""Reading snapshots incrementally: only jobs that changed are read, and only tasks that changed are rebuilt."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from sqlalchemy import Connection

from db.schema.filters import newest_event, parts
from db.snapshots import live_rows as rows
from db.snapshots.snapshot import OpenTask, RunningAttempt, Snapshot
from db.writes import nodes, toolchains
from db.writes.attempt_results import recent_durations
from db.writes.nodes import Cordon
from db.writes.toolchains import StoredLock
from db.writes.usage import OF_LATE, Usage, device_seconds
from jobs.state import ACTIVE, DONE, OPEN, TaskState
from jobs.task import Place
from jobs.toolchains import DEFAULT

STATES = frozenset(map(str, TaskState))


@dataclass
class LiveJob:
    """A job that has not ended, as it was last read."""

    constants: Mapping[str, rows.TaskConstants]  #: by task, in the order of the plan
    duration_keys: frozenset[str]
    toolchains: frozenset[str]  #: their names, except the default
    after: Mapping[str, str]  #: by task, the task that it starts after
    version: int | None = None  #: of the job when the fields below were read
    status: dict[str, rows.TaskStatus] = field(default_factory=dict)
    active: list[rows.TaskStatus] = field(default_factory=list)
    built: dict[str, OpenTask] = field(default_factory=dict)  #: built tasks, except those that changed since
    tasks: tuple[OpenTask, ...] | None = None  #: None: some of them changed

    @property
    def turn(self) -> tuple[datetime, str]:
        """Return the key that sorts jobs by submission."""
        fields = next(iter(self.constants.values())).fields
        return fields["submitted_at"], fields["job"]

    def update(self, now: rows.TaskStatus) -> None:
        """Take in the status of a task."""
        if self.status.get(now.id) != now:
            self.status[now.id] = now
            self.rebuild([now.id])

    def rebuild(self, tasks: Iterable[str]) -> None:
        """Have tasks rebuilt, since something about them changed."""
        for task in tasks:
            self.built.pop(task, None)
        self.tasks = None


class SnapshotReader:
    """Reads snapshots of one database; used by one thread at a time."""

    def __init__(self) -> None:
        self._jobs: dict[str, LiveJob] = {}  #: in order of submission
        self._avoids: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {}  #: as of an epoch and an base_epoch
        self._attempts: dict[str, rows.AttemptConstants] = {}  #: those that run
        self._running: dict[str, RunningAttempt] = {}  #: as they were last built
        self._expected: dict[str, float | None] = {}  #: by duration_key
        self._ran: dict[str, tuple[Place, ...]] = {}  #: by attempt of tasks that others start after
        self._usage = Usage()
        self._newest_event: int | None = None  #: when attempts were last counted
        self._locks: Mapping[str, StoredLock] = {}
        self._lock_versions: object = None  #: of the locks as they were read

    def read(self, connection: Connection, now: datetime) -> Snapshot:
        """Read the jobs that have not ended and the running attempts, as the connection's transaction sees them."""
        changed = self._read_jobs(connection)
        self._read_avoids(connection, changed)
        self._learn(connection, now)
        active = [status for job in self._jobs.values() for status in job.active]
        self._read_attempts(connection, [str(status.attempt) for status in active])
        tasks = tuple(task for job in self._jobs.values() for task in self._open_tasks(job))
        running = self._running_attempts(active)
        cordons = nodes.cordoned(connection)
        names = frozenset[str]().union(*(job.toolchains for job in self._jobs.values()))
        return Snapshot(
            tasks=tasks,
            running=running,
            cordoned={name: why for name, (_, why) in cordons.items()},
            requeuing=frozenset(name for name, (how, _) in cordons.items() if how is Cordon.REQUEUING),
            quarantined=nodes.quarantined(connection),
            usage=self._usage.total(now, [self._used(attempt, now) for attempt in running]),
            toolchains=names,
            locks=self._read_locks(connection, names),
            ran_on=self._read_ran(connection),
        )

    def _read_jobs(self, connection: Connection) -> list[LiveJob]:
        """Drop the jobs that have ended and read what is new; returns the jobs whose tasks may have changed."""
        versions = rows.versions(connection)
        jobs = {name: job for name, job in self._jobs.items() if name in versions}
        for part in parts(sorted(versions.keys() - jobs.keys())):
            jobs |= {
                name: LiveJob(constants, _duration_keys(constants), _toolchains(constants), _after(constants))
                for name, constants in rows.task_constants(connection, part).items()
            }
        self._jobs = dict(sorted(jobs.items(), key=lambda named: named[1].turn))
        changed = [name for name, job in jobs.items() if job.version != versions[name]]
        for status in self._read_statuses(connection, changed):
            jobs[status.job].update(status)
        for name in changed:
            job = jobs[name]
            job.version = versions[name]
            job.active = [status for status in job.status.values() if status.attempt and status.state in ACTIVE]
        return [jobs[name] for name in changed]

    def _read_statuses(self, connection: Connection, names: Sequence[str]) -> Iterator[rows.TaskStatus]:
        """Read the status of all tasks of new jobs with one query, and of the changed tasks of others."""
        seen = {name: version for name in names if (version := self._jobs[name].version) is not None}
        yield from rows.statuses(connection, [name for name in names if name not in seen])
        for name, version in seen.items():
            yield from rows.changed_statuses(connection, name, version)

    def _read_avoids(self, connection: Connection, changed: Iterable[LiveJob]) -> None:
        """Read the nodes that failed open tasks, where they may have changed."""
        for job in changed:
            retrying = {
                status.id: (status.epoch, status.base_epoch)
                for status in job.status.values()
                if status.epoch > status.base_epoch and status.state in OPEN
            }
            old = {
                task for task in job.constants if task in self._avoids and self._avoids[task][0] != retrying.get(task)
            }
            fresh = sorted(task for task in retrying if task in old or task not in self._avoids)
            for task in old:
                del self._avoids[task]
            failed = rows.failed_nodes(connection, fresh)
            self._avoids |= {task: (retrying[task], failed.get(task, ())) for task in fresh}
            job.rebuild(old.union(fresh))

    def _learn(self, connection: Connection, now: datetime) -> None:
        """Count the usage of attempts that ended since the last time, and update how long tasks take."""
        newest = newest_event(connection)
        if self._newest_event is None:
            ended = rows.ended_since(connection, now - OF_LATE)
        else:
            ended = rows.ended_after(connection, self._newest_event) if newest > self._newest_event else ()
        self._newest_event = newest
        for row in ended:
            self._usage.add(row.submitted_by, row.ended_at, _device_seconds(row))
        stale = {row.duration_key for row in ended}
        known = frozenset().union(*(job.duration_keys for job in self._jobs.values()))
        expected = {key: self._expected[key] for key in known if key in self._expected}
        for part in parts(sorted(key for key in known if key in stale or key not in expected)):
            durations = recent_durations(connection, part)
            expected |= {key: _estimate(durations[key]) if key in durations else None for key in part}
        changed = {key for key in known if expected[key] != self._expected.get(key)}
        self._expected = expected
        for job in self._jobs.values() if changed else ():
            if not changed.isdisjoint(job.duration_keys):
                job.rebuild(task for task, constants in job.constants.items() if constants.duration_key in changed)

    def _read_attempts(self, connection: Connection, active: Sequence[str]) -> None:
        """Read the constants of attempts that started, and drop those of attempts that ended."""
        known = {attempt: self._attempts[attempt] for attempt in active if attempt in self._attempts}
        for part in parts(sorted(set(active) - known.keys())):
            known |= rows.attempt_constants(connection, part)
        self._attempts = known

    def _read_ran(self, connection: Connection) -> dict[str, tuple[Place, ...]]:
        """Return, by done task that open ones start after, where its attempt ran."""
        wanted = {
            earlier: str(job.status[earlier].attempt)
            for job in self._jobs.values()
            for task, earlier in job.after.items()
            if job.status[task].state in OPEN and job.status[earlier].state in DONE
        }
        self._ran = {attempt: self._ran[attempt] for attempt in wanted.values() if attempt in self._ran}
        for part in parts(sorted(set(wanted.values()) - self._ran.keys())):
            self._ran |= rows.places(connection, part)
        return {task: self._ran.get(attempt, ()) for task, attempt in wanted.items()}

    def _read_locks(self, connection: Connection, names: frozenset[str]) -> Mapping[str, StoredLock]:
        """Read the current locks, if they may have changed."""
        lock_versions = (names, toolchains.versions(connection, names)) if names else None
        if lock_versions != self._lock_versions:
            self._lock_versions, self._locks = lock_versions, toolchains.current(connection, names)
        return self._locks

    def _open_tasks(self, job: LiveJob) -> tuple[OpenTask, ...]:
        if job.tasks is None:
            for task in job.constants.keys() - job.built.keys():
                job.built[task] = self._open_task(job.constants[task], job.status[task])
            job.tasks = tuple(job.built[task] for task in job.constants)
        return job.tasks

    def _open_task(self, constants: rows.TaskConstants, now: rows.TaskStatus) -> OpenTask:
        return OpenTask(
            **constants.fields,
            state=_state(now.state),
            epoch=now.epoch,
            waits_for=now.waits_for,
            is_unschedulable=now.is_unschedulable,
            lost_artifacts=now.lost_artifacts,
            avoids=self._avoids[now.id][1] if now.id in self._avoids else (),
            expected_s=self._expected.get(constants.duration_key) if constants.duration_key else None,
        )

    def _running_attempts(self, active: Sequence[rows.TaskStatus]) -> tuple[RunningAttempt, ...]:
        attempts = {}
        for status in active:
            task, attempt = self._jobs[status.job].built[status.id], str(status.attempt)
            running = self._running.get(attempt)
            if running is None or (running.state, running.expected_s) != (task.state, task.expected_s):
                running = RunningAttempt(
                    **self._attempts[attempt].fields,
                    state=task.state,
                    resources=task.resources,
                    submitted_by=task.submitted_by,
                    expected_s=task.expected_s,
                )
            attempts[attempt] = running
        self._running = attempts
        return tuple(running for _, running in sorted(attempts.items()))

    def _used(self, running: RunningAttempt, now: datetime) -> tuple[str, float]:
        return running.submitted_by, device_seconds(running.started_at, now, self._attempts[running.id].weight)


def _device_seconds(ended: Any) -> float:
    """Return the device seconds of an attempt that has ended; by its times where nobody measured how long it took."""
    weight = ended.weight or 0.0
    if ended.duration_s is None:
        return device_seconds(ended.started_at, ended.ended_at, weight)
    return float(ended.duration_s * weight)


def _state(name: str) -> TaskState:
    """Return a task's state; a task in a state that nobody knows will not be done."""
    return TaskState(name) if name in STATES else TaskState.FAILED


def _estimate(seconds: Sequence[float]) -> float:
    """Return the median to two digits: it is an estimate, and each new estimate rebuilds its tasks."""
    return float(f"{median(seconds):.2g}")


def _duration_keys(tasks: Mapping[str, rows.TaskConstants]) -> frozenset[str]:
    return frozenset(constants.duration_key for constants in tasks.values() if constants.duration_key)


def _toolchains(tasks: Mapping[str, rows.TaskConstants]) -> frozenset[str]:
    return frozenset(constants.fields["toolchain"] for constants in tasks.values()) - {DEFAULT}


def _after(tasks: Mapping[str, rows.TaskConstants]) -> Mapping[str, str]:
    return {task: constants.fields["after"] for task, constants in tasks.items() if constants.fields["after"]}
