"""The speed of devices beside their peers."""

from db.machines import DeviceRow, NodeRow
from orchestrator.deciding.speed import speeds
from orchestrator.showing import node_rows
from tests.made_runs import NOON, run

NODE = NodeRow(
    id="n1", host="n1", address="", cpus=8, memory_bytes=1 << 30, versions={}, first_seen_at=NOON, seen_at=NOON,
    is_up=True, closed=None, closed_why=None, closed_at=None, refuses_why=None, checks=(), toolchains={},
    devices=tuple(DeviceRow("mi300x", index, f"serial{index}", 0, None, None, None) for index in range(8)),
)  # fmt: skip


def test_the_slow_one_of_eight_is_found_and_named() -> None:
    slow = {"serial3": 1.1}
    runs = [
        run(100 * size * slow.get(serial, 1.0) * (1 + 0.004 * (turn - 1)), place=serial, metric=metric)
        for serial in (f"serial{index}" for index in range(8))
        for metric, size in (("ttft_ms", 1), ("itl_ms", 0.05))
        for turn in range(3)
    ]
    found = speeds(runs)
    assert [place for place, speed in found.items() if speed.is_slow] == ["serial3"]
    assert round(found["serial3"].index, 2) == 0.91
    assert found["serial3"].runs == 6
    line = node_rows.line(NODE, found)
    assert line[6] == "0.91 (mi300x:3) to 1.00"
    assert line[8] == "mi300x:3 is slower than its peers by 10% (6 runs)"
    devices = node_rows.as_json(NODE, found)["devices"]
    assert [device["speed"]["is_slow"] for device in devices] == [index == 3 for index in range(8)]


def test_other_work_and_gangs_of_devices_say_nothing_of_a_device() -> None:
    assert speeds([run(100, place="a"), run(150, place="b", digest="q" * 64), run(90, place="c+d")]) == {}
    assert node_rows.line(NODE, {})[6] == ""


def test_one_bad_run_does_not_make_a_device_slow() -> None:
    runs = [run(100, place=place) for place in "abc" for _ in range(4)]
    assert not any(speed.is_slow for speed in speeds([*runs, run(200, place="a")]).values())
