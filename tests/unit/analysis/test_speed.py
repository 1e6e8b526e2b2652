"""The speed of devices beside their peers."""

from db.reads.machines import DeviceRow, NodeRow
from orchestrator.analysis.speed import device_speeds
from orchestrator.views import node_rows
from tests.made_runs import NOON, run

NODE = NodeRow(
    id="n1", host="n1", address="", cpus=8, memory_bytes=1 << 30, versions={}, first_seen_at=NOON, last_seen_at=NOON,
    is_up=True, cordon=None, cordon_reason=None, cordoned_at=None, not_ready_reason=None, checks=(), toolchains={},
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
    speeds = device_speeds(runs)
    assert [place for place, speed in speeds.items() if speed.is_slow] == ["serial3"]
    assert round(speeds["serial3"].index, 2) == 0.91
    assert speeds["serial3"].runs == 6
    line = node_rows.to_table_row(NODE, speeds)
    assert line[6] == "0.91 (mi300x:3) to 1.00"
    assert line[8] == "mi300x:3 is slower than its peers by 10% (6 runs)"
    devices = node_rows.to_json(NODE, speeds)["devices"]
    assert [device["speed"]["is_slow"] for device in devices] == [index == 3 for index in range(8)]


def test_other_work_and_gangs_of_devices_say_nothing_of_a_device() -> None:
    assert device_speeds([run(100, place="a"), run(150, place="b", digest="q" * 64), run(90, place="c+d")]) == {}
    assert node_rows.to_table_row(NODE, {})[6] == ""


def test_one_bad_run_does_not_make_a_device_slow() -> None:
    runs = [run(100, place=place) for place in "abc" for _ in range(4)]
    assert not any(speed.is_slow for speed in device_speeds([*runs, run(200, place="a")]).values())
