"""How long strangers were on a GPU, what memory is not an attempt's own, and how that is told."""

from dataclasses import replace

from jobs.task import Device
from workers.conditions import Look, Sample
from workers.disturbances import Between
from workers.gpu_listing import Gpu, Listing
from workers.gpu_users import GpuUser
from workers.strangers import NOT_SEEN, Rest, Stranger, visits

GIB = 1 << 30
GPU = Device("mi300x", 0, "0xa0")
BOB = Stranger("pid 4711 (python3, user bob)", 4711, 2 * GIB)
EVE = Stranger("pid 4712 (python3, user eve)", 4712, GIB)


def test_each_look_stands_for_the_time_since_the_one_before() -> None:
    looks = [(11.0, [BOB]), (12.5, [replace(BOB, held_bytes=12 * GIB), EVE]), (13.5, []), (15.0, [BOB])]
    first, second = visits(10.0, looks)
    assert (first.stranger.held_bytes, first.seen_s) == (12 * GIB, 4.0)
    assert (second.stranger, second.seen_s) == (EVE, 1.5)
    assert visits(10.0, [(11.0, [])]) == []
    assert str(first) == "pid 4711 (python3, user bob) with 12.0 GiB for 4 s of it"
    assert first.told() == {"who": BOB.who, "pid": 4711, "held_bytes": 12 * GIB, "seen_s": 4.0}
    (unseen,) = visits(0.0, [(1.0, [Stranger(NOT_SEEN, None, GIB)])])
    assert unseen.told() == {"who": NOT_SEEN, "held_bytes": GIB, "seen_s": 1.0}


def sampled(*strangers: tuple[Stranger, ...] | None) -> list[Sample]:
    """A sample each second; None: nobody told who was there."""
    return [
        Sample(float(second), 0.0, None, strangers={} if found is None else {GPU: found})
        for second, found in enumerate(strangers, start=1)
    ]


def between(*strangers: tuple[Stranger, ...] | None, users: tuple[GpuUser, ...] = ()) -> Between:
    before = Look(at_s=0.0, cpus=4, busy_s=0.0, readings={GPU: {}})
    listing = Listing("amd", "amdsmi", (Gpu(0, "AMD Instinct MI300X", "0xa0", users=users),))
    return Between(before, replace(before, at_s=60.0, listings=(listing,)), 0.0, sampled(*strangers))


def test_a_stranger_in_the_middle_disturbs_and_is_told_of_with_how_long_it_stayed() -> None:
    found = between((), (BOB,), None, (BOB,), ())
    assert list(found.disturbances(10.0)) == [f"mi300x:0: in use by {BOB.who} with 2.0 GiB for 3 s of it"]
    (device,) = found.told("n1")["devices"]
    assert device["strangers"] == [{"who": BOB.who, "pid": 4711, "held_bytes": 2 * GIB, "seen_s": 3.0}]
    quiet = between((), None, ())
    assert list(quiet.disturbances(10.0)) == []
    assert "strangers" not in quiet.told("n1")["devices"][0]


def test_a_stranger_that_stays_is_told_of_once() -> None:
    found = list(between((BOB,), (BOB,), users=(GpuUser(1, "init", GIB),)).disturbances(10.0))
    assert len(found) == 1
    (told,) = between((), users=(GpuUser(1, "init", GIB),)).disturbances(10.0)
    assert told.startswith("mi300x:0: in use by pid 1 ")  # it came between the last sample and the end


def grown(*looks: tuple[float, int, int]) -> list[int]:
    """By second, GiB in use and GiB of one's own: by how much the rest has grown."""
    rest = Rest()
    return [rest.grown(at_s, used * GIB, own * GIB) // GIB for at_s, used, own in looks]


def test_memory_that_is_nobodys_of_ours_tells_of_strangers_when_it_stays() -> None:
    assert grown((0, 0, 0), (1, 60, 60), (2, 72, 60), (3, 72, 60), (4, 60, 60)) == [0, 0, 0, 12, 0]
    assert grown((0, 3, 0), (1, 63, 60), (2, 63, 60)) == [0, 0, 0]  # in use before, by a driver say
    assert grown((0, 0, 0), (1, 61, 60), (2, 61, 60)) == [0, 0, 0]  # what drivers add
    assert grown((0, 0, 0), (1, 70, 60), (2, 60, 60), (3, 70, 60)) == [0, 0, 0, 0]  # read a moment apart


def test_the_memory_of_what_has_ended_is_its_own_until_it_is_back() -> None:
    assert grown((0, 0, 0), (1, 60, 60), (2, 60, 0), (3, 30, 0), (10, 1, 0), (30, 0, 0)) == [0] * 6
    assert grown((0, 0, 0), (1, 60, 60), (2, 0, 0), (30, 9, 0), (31, 9, 0)) == [0, 0, 0, 0, 9]
