"""The search for room: tasks that need the same are one want, which looks at no room twice in vain.

Rooms only get fuller during a decision, so what did not fit once is never looked at again for the same want.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf

from db.store import KeptLock, OpenTask, Snapshot
from jobs.state import Failure
from jobs.task import Node, Pin, Place, Resources
from orchestrator.scheduling import words
from orchestrator.scheduling.rooms import EXPECTED, LATEST, Ends, Room, Share, rooms_of
from orchestrator.scheduling.shapes import Shape, able, shape_of, shapes_of
from orchestrator.scheduling.spots import Spot, spot_of
from orchestrator.scheduling.under import Choice, choose, to_build

#: The share of the nodes that may be kept for tasks of one kind of device. One task at a time would do against
#: starvation; in a large cluster several nodes have to empty at once for large tasks to keep up with small ones.
MOST_KEPT = 0.2


@dataclass(eq=False, slots=True)
class Want:
    """What some tasks need alike, and where they may still find it."""

    share: Share
    reason: str  #: what they wait for when they can't start
    is_stuck: bool = False
    is_possible: bool = True  #: nodes that are open could take them
    names: frozenset[str] | None = None  #: the nodes that come into question; None: all
    rooms: Sequence[Room] = ()  #: nearly full ones first, so that whole ones stay free for whole-node work
    position: int = 0  #: of the first of `rooms` that was not tried in vain
    held: list[Room] = field(default_factory=list)  #: those kept for other tasks in which there is room now
    held_seen: int = 0  #: how many rooms were held when it looked last
    refused: Ends = (inf, inf)  #: a task that ends so was not let into enough of them
    opening: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    is_full: bool = False  #: what has room now, whoever that is kept for, is too little
    failure: Failure | None = None  #: no node can do it, nor will be able to by itself

    def concerns(self, room: Room) -> bool:
        """Whether the room comes into question at all."""
        return self.names is None or room.node.id in self.names


class Board:
    """All rooms of one decision."""

    def __init__(self, snapshot: Snapshot, nodes: Sequence[Node], now: datetime) -> None:
        self._nodes, self._snapshot = {node.id: node for node in nodes}, snapshot
        self._all = rooms_of(snapshot, nodes, now)
        self._open = [room for room in self._all.values() if room.node.id not in snapshot.closed]
        self._held: list[Room] = []
        self._most_kept = MOST_KEPT * len(self._open)
        self._openings: dict[object, list[tuple[float, int]]] = {}  #: as they were first asked for, by what is alike
        self._wants: dict[object, Want] = {}
        self._sorted: dict[str, tuple[list[int], list[Room]]] = {}
        self._usable = Counter(shape_of(room.node, room.usable) for room in self._open)
        self._kept: Counter[str] = Counter()  #: rooms, by the kind of device that they are kept for
        self._choices: list[tuple[str, Choice]] = []  #: of nodes, with the toolchains that they are for

    def want_of(self, task: OpenTask, spot: Spot | None = None) -> Want:
        """What a task needs; the same object for all that need the same. It may have to run in one spot."""
        key = task.wants if spot is None else (task.wants, spot)
        want = self._wants.get(key)
        if want is None:
            want = self._wants[key] = self._new_want(task, spot, task.avoids)
        return want

    def want_under(self, task: OpenTask, kept: KeptLock, spot: Spot | None = None) -> Want:
        """What a task needs that runs under a toolchain."""
        key = (task.wants, kept.digest, spot)
        want = self._wants.get(key)
        if want is None:
            want = self._wants[key] = self._new_want(task, spot, ())
            if want.is_possible:
                self._put_under(want, kept, task.avoids)
        return want

    def spot_of(self, task: OpenTask, places: Sequence[Place], lock: str = "") -> Spot | None:
        """Where something ran, if the task could run there too, now or later, under a lock; None: it can't."""
        node = self._nodes.get(places[0].node) if places else None
        if node is None or node.id in self._snapshot.closed or node.id in task.avoids or node.toolchains.get(lock):
            return None
        need, quarantined = task.resources, self._snapshot.quarantined
        bad = {index for name, kind, index in quarantined if (name, kind) == (node.id, need.device_kind)}
        is_able = shape_of(node, self._all[node.id].usable).meets(need)
        return spot_of(places, need, node, bad) if is_able else None

    def make_way_for_builds(self) -> None:
        """Let nothing that wants a node to itself begin where a toolchain is to be built, for what was asked so far."""
        for _, choice in self._choices:
            for name in choice.asked:
                self._all[name].builds = True

    def to_build(self) -> dict[str, tuple[str, ...]]:
        """The nodes that are to build a toolchain for what was asked for, by its name: now, so as to disturb nobody."""
        return to_build(self._choices, {name for name, room in self._all.items() if room.is_quiet})

    def place_as_before(self, task: OpenTask, want: Want, ends: Ends) -> tuple[Place, ...] | None:
        """Give a task what it wants where what it is compared with ran, if that is free now and kept for nobody."""
        for places in () if want.share.devices else task.favoured:
            spot = self.spot_of(task, places)
            room = self._all[spot.node] if spot else None
            if spot and room and want.concerns(room) and room.hold is None:
                share = Share(want.share.need, spot.devices)
                if room.fits(share):
                    return (Place(spot.node, room.take(share, ends)),)
        return None

    def place(self, want: Want, ends: Ends) -> tuple[Place, ...] | None:
        """Give a task all that it wants, if that is to be had now; `ends` says when it would give it back."""
        count = want.share.need.nodes
        found = _fitting(want, count)
        if len(found) < count and self._held:
            found = found + self._fitting_beside(want, count - len(found), ends)
        if len(found) < count:
            want.is_full = len(want.rooms) + len(want.held) < count
            return None
        return tuple(Place(room.node.id, room.take(want.share, ends)) for room in found)

    def _fitting_beside(self, want: Want, count: int, ends: Ends) -> list[Room]:
        """Rooms that are kept for others, whom the task would not delay."""
        fresh = self._held[want.held_seen :]
        want.held_seen = len(self._held)
        found = [room for room in fresh if want.concerns(room) and room.fits(want.share)]
        if found:
            want.held, want.refused = want.held + found, (inf, inf)
        if ends[EXPECTED] >= want.refused[EXPECTED] and ends[LATEST] >= want.refused[LATEST]:
            return []
        want.held = [room for room in want.held if room.fits(want.share)]
        admitting = (room for room in want.held if room.hold is not None and room.hold.admits(want.share, ends))
        found = list(islice(admitting, count))
        if len(found) < count:
            want.refused = ends
        return found

    def reserves(self, kind: str) -> bool:
        """Whether rooms may be kept for one more task that needs this kind of device."""
        kept = self._kept[kind]
        return kept == 0 or kept + 1 <= self._most_kept

    def reserve(self, want: Want, by: int) -> None:
        """Keep the rooms that open soonest for a blocked task, if there are as many that are kept for nobody.

        `by` says which ends count, of what runs and of what may go before it: EXPECTED or LATEST.
        """
        need, found = want.share.need, list[tuple[float, int]]()
        opening = self._opening(want, by)
        while opening and len(found) < need.nodes:
            earlier_s, number = heappop(opening)
            room = self._open[number]
            at_s = None if room.hold else room.opens_at_s(want.share, by)
            if at_s is not None and at_s > earlier_s:  # it got fuller since
                heappush(opening, (at_s, number))
            elif at_s is not None:
                found.append((at_s, number))
        if len(found) == need.nodes:
            self._kept[need.device_kind] += need.nodes
            for _, number in found:
                self._open[number].keep(want.share, max(found)[0], by)
                self._held.append(self._open[number])

    def _opening(self, want: Want, by: int) -> list[tuple[float, int]]:
        """A heap of the open rooms by when they have room for a want, as it was when first asked for."""
        if by not in want.opening:
            names, need = want.names, want.share.need
            alike = (need.cpus, need.memory_bytes, need.devices, need.device_kind, need.is_quiet, want.share.devices)
            if (names, alike, by) not in self._openings:
                numbers = self._numbers.values() if names is None else [self._numbers[name] for name in names]
                opening = ((self._open[number].opens_at_s(want.share, by), number) for number in numbers)
                self._openings[names, alike, by] = [(at_s, number) for at_s, number in opening if at_s is not None]
                heapify(self._openings[names, alike, by])
            want.opening[by] = self._openings[names, alike, by].copy()
        return want.opening[by]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Where each node's room is among the open ones."""
        return {room.node.id: number for number, room in enumerate(self._open)}

    def _new_want(self, task: OpenTask, spot: Spot | None, avoids: tuple[str, ...]) -> Want:
        need, pin = task.resources, task.pin
        if pin is not None:
            return self._pinned_want(Share(need, pin.devices), pin)
        if spot is not None:
            reason = words.waits_for_spot(need, spot)
            rooms = [self._all[spot.node]]
            return Want(Share(need, spot.devices), reason, names=frozenset({spot.node}), rooms=rooms)
        share = Share(need)
        if able(need, self._usable) < need.nodes:
            return self._impossible_want(share)
        want = Want(share, words.waits_for_room(need, None), rooms=self._in_order(need))
        if avoids:
            self._avoid(want, avoids)
        return want

    def _impossible_want(self, share: Share) -> Want:
        """Nothing that is open could take it: what is closed could, or nothing at all."""
        need, nodes = share.need, self._nodes.values()
        if able(need, self._shapes) < need.nodes:
            return Want(share, words.lacks(need, self._shapes), is_stuck=True, is_possible=False)
        found = [node for node in nodes if shape_of(node).meets(need)]
        told = words.obstacles(need, found, self._snapshot.closed, self._snapshot.quarantined)
        return Want(share, words.waits_for_people(need, None, told), is_possible=False)

    @cached_property
    def _shapes(self) -> Counter[Shape]:
        return shapes_of(self._nodes.values())

    def _in_order(self, need: Resources) -> Sequence[Room]:
        """The open rooms that have as many free devices, nearly full ones first."""
        kind = need.device_kind if need.devices else ""
        if kind not in self._sorted:
            rooms = sorted(self._open, key=lambda room: (room.count(kind), room.cpus))
            self._sorted[kind] = [room.count(kind) for room in rooms], rooms
        counts, rooms = self._sorted[kind]
        return rooms[bisect_left(counts, need.devices) :] if need.devices else rooms

    def _avoid(self, want: Want, avoids: Collection[str]) -> None:
        """Leave out the nodes to be avoided, if the others could do without them; else they come last."""
        need = want.share.need
        others = [room for room in want.rooms if room.node.id not in avoids]
        capable = [
            room.node.id
            for room in self._open
            if room.node.id not in avoids and shape_of(room.node, room.usable).meets(need)
        ]
        if len(capable) >= need.nodes:
            want.rooms, want.names = others, frozenset(capable)
        else:
            want.rooms = [*others, *(room for room in want.rooms if room.node.id in avoids)]

    def _put_under(self, want: Want, kept: KeptLock, avoids: Collection[str]) -> None:
        """Leave out the nodes that don't have a toolchain."""
        need, closed = want.share.need, self._snapshot.closed
        able = [
            room.node for room in self._open if want.concerns(room) and shape_of(room.node, room.usable).meets(need)
        ]
        shut = [node for node in self._nodes.values() if node.id in closed and shape_of(node).meets(need)]
        choice = choose(kept, able, [] if want.names else shut, need.nodes, avoids)
        self._choices.append((kept.lock.name, choice))
        if choice.nodes:
            want.names, want.rooms = choice.nodes, [room for room in want.rooms if room.node.id in choice.nodes]
        else:
            want.is_possible, want.reason, want.failure = False, choice.reason, choice.failure

    def _pinned_want(self, share: Share, pin: Pin) -> Want:
        need, node = share.need, self._nodes.get(pin.node)
        problem = words.lacks_pinned(need, pin, node)
        if problem or node is None:
            return Want(share, problem or "", is_stuck=True, is_possible=False)
        snapshot, room = self._snapshot, self._all[pin.node]
        told = words.obstacles(need, [node], snapshot.closed, snapshot.quarantined, pin.devices)
        usable = room.usable.get(need.device_kind, 0)
        if pin.node in snapshot.closed or (told and (pin.devices or usable < need.devices)):
            return Want(share, words.waits_for_people(need, pin, told), is_possible=False)
        return Want(share, words.waits_for_room(need, pin), names=frozenset({pin.node}), rooms=[room])


def _fitting(want: Want, count: int) -> list[Room]:
    """Up to so many rooms with room for a want now that are not kept for anybody."""
    share, found = want.share, []
    for index in range(want.position, len(want.rooms)):
        room = want.rooms[index]
        if room.hold is None and room.fits(share):
            found.append(room)
            if len(found) == count:
                return found
        elif not found:
            want.position = index + 1
    want.rooms, want.position = found, 0
    return found
