"""Two commands, the same on every machine, make a cluster; a client needs the database's address and nothing else."""

import json
import os
import re
import secrets
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.leader.metrics import METRICS
from tests.acceptance.haloctl import DEADLINE_S, until
from tests.acceptance.job_specs import ONE_EXPORT
from tests.cluster.conftest import Cluster, scrape
from tests.cluster.hosts import CPU_DEVICES, JOINED, LEADS, PORT, until_equal
from tests.command_lines import command_text

CONFLICT, UNREACHABLE = 5, 6
LAG_S = 2.5
TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_nodes_join_with_what_they_have_and_everybody_sees_them(cluster: Cluster) -> None:
    until_equal(cluster.up, {"n1", "n2"})
    n1, head = cluster.hosts["n1"], cluster.hosts["head"]
    (line,) = cluster.daemons["n1"].err.splitlines()
    assert line.endswith(
        f" info node: node n1 has joined the cluster at {head.address}:{PORT}, with {CPU_DEVICES} x cpu"
    )
    output = cluster.daemons["head"].err
    assert f"haloctl node --head {head.address}:{PORT}\n" in output
    assert f"{head.token}" in output
    (node,) = [node for node in cluster.hosts["client"].json("nodes") if node["id"] == "n1"]
    assert node["address"] == n1.address
    assert Counter(device["kind"] for device in node["devices"]) == {"cpu": CPU_DEVICES}


def test_a_client_that_has_the_database_and_the_store_gets_a_real_job_done(cluster: Cluster) -> None:
    client = cluster.hosts["client"]
    done = client.run("submit", client.job(**ONE_EXPORT), "--wait")
    assert done.code == 0, done.err
    (row,) = [line.split() for line in done.out.splitlines()][1:]
    assert row[:3] == ["tiny-llama-FP16-TP1", "cpu", "PASS"]
    (task,) = client.tasks(client.only_job()["job"]).values()
    (attempt,) = client.json("show", task["task"])["attempts"]
    assert attempt["node"] in ("n1", "n2")
    until(lambda: not client.processes(), lambda: f"nothing is left of a client, but {client.describe()}")
    assert client.answer("logs", task["task"])


def test_head_nodes_and_agents_log_what_became_of_an_attempt(cluster: Cluster) -> None:
    work = cluster.submit_work(2 * CPU_DEVICES)
    work.until_running(2 * CPU_DEVICES)
    work.open()
    assert cluster.attempts(work.job) == {("succeeded",): 2 * CPU_DEVICES}
    head, (plain, objects) = cluster.daemons["head"].err, (agent_log(cluster, name) for name in ("n1", "n2"))
    started, ended = (rf"{TIME} info head: attempt {work.job}-\d+-1 {what}" for what in ("started on", "ended on"))
    assert len(re.findall(started, head, re.MULTILINE)) == 2 * CPU_DEVICES
    assert len(re.findall(ended + r" n\d: succeeded$", head, re.MULTILINE)) == 2 * CPU_DEVICES
    for node in ("n1", "n2"):
        assert re.search(rf"{TIME} info head: node {node} is up$", head, re.MULTILINE), head
    assert (
        len(re.findall(rf"{TIME} info agent: attempt {work.job}-\d+-1 ended on n1: succeeded$", plain, re.MULTILINE))
        == CPU_DEVICES
    )
    rows = [json.loads(line) for line in (cluster.daemons["n2"].err + objects).splitlines()]
    ends = [row for row in rows if row.get("job") == work.job and "succeeded" in row["message"]]
    assert [(row["daemon"], row["level"], row["node"]) for row in ends] == [("agent", "info", "n2")] * CPU_DEVICES
    assert {row["daemon"] for row in rows} == {"node", "agent"}


def agent_log(cluster: Cluster, node: str) -> str:
    """What a node's agent has logged."""
    return (cluster.hosts[node].data / "logs" / "agent.log").read_text()


def test_metrics_follow_a_job(cluster: Cluster) -> None:
    before = scrape(cluster)
    work = cluster.submit_work(3 * CPU_DEVICES)
    work.until_running(2 * CPU_DEVICES)
    until_equal(lambda: scrape(cluster)["haloctl_tasks{state=queued}"], CPU_DEVICES)
    during = scrape(cluster)
    assert [during[f"haloctl_running_attempts{{node={name}}}"] for name in ("n1", "n2")] == [CPU_DEVICES] * 2
    assert (during["haloctl_tasks{state=running}"], during["haloctl_nodes{state=up}"]) == (2 * CPU_DEVICES, 2)
    work.open()
    assert cluster.attempts(work.job) == {("succeeded",): 3 * CPU_DEVICES}
    until_equal(lambda: scrape(cluster)["haloctl_tasks{state=queued}"], 0)
    after = scrape(cluster)
    grown = {name: after[name] - before[name] for name in after.keys() & before.keys()}
    assert grown["haloctl_attempts_total{outcome=succeeded}"] == 3 * CPU_DEVICES
    for timing in ("steps_seconds", "decisions_seconds"):
        assert 0 < grown[f"haloctl_{timing}_sum"] < DEADLINE_S
        assert grown[f"haloctl_{timing}_count"] >= 2
    for kind in ("read", "write"):
        assert 0 < after[f"haloctl_database_seconds_sum{{kind={kind}}}"] < DEADLINE_S
    for folder in ("data", "artifacts"):
        assert after[f"haloctl_free_disk_bytes{{of={folder}}}"] > 0
    assert after["haloctl_leading"] == 1
    assert {metric.name for metric in METRICS if not any(name.startswith(metric.name) for name in after)} == set()


def test_the_lag_grows_while_the_database_is_away(cluster: Cluster) -> None:
    assert cluster.postgres
    with cluster.hosts["head"].cable.entered(), cluster.postgres.stopped():
        until(lambda: scrape(cluster)["haloctl_scheduler_lag_seconds"] > LAG_S, "the lag grows")
    until(lambda: scrape(cluster)["haloctl_scheduler_lag_seconds"] < LAG_S, "the head works again")


def test_the_token_is_on_no_command_line_and_in_no_log(cluster: Cluster) -> None:
    head = cluster.hosts["head"]
    token = head.token.read_text()
    assert head.token.stat().st_mode & 0o777 == 0o600
    processes = [process for host in cluster.hosts.values() for process in host.processes()]
    assert len(processes) > 10
    assert not [process for process in processes if token in command_text(process)]
    holders = {path for path in files_in(cluster.folder) if token.encode() in content(path)}
    assert holders == {head.token, *(cluster.hosts[name].folder / "token" for name in ("n1", "n2"))}


def files_in(folder: Path) -> Iterator[Path]:
    """Regular files, whatever comes and goes meanwhile."""
    for where, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(where, name)).is_file())


def content(path: Path) -> bytes:
    """Return the content of a file, empty if it is gone."""
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return b""


@pytest.mark.parametrize("has_token", [True, False])
def test_a_node_without_the_right_token_is_refused(cluster: Cluster, has_token: bool) -> None:
    stranger = cluster.hosts.get("stranger") or cluster.plug("stranger")
    options: tuple[str, ...] = ()
    if has_token:
        wrong = stranger.folder / "wrong"
        wrong.touch(0o600)
        wrong.write_text(secrets.token_hex(32))
        options = ("--token-file", str(wrong))
    done = stranger.run("node", "--head", f"{cluster.hosts['head'].address}:{PORT}", *options)
    assert (done.code, done.out, len(done.err.splitlines())) == (UNREACHABLE, "", 1), done.err
    assert "token" in done.err
    assert stranger.processes() == []


def test_a_second_head_is_told_who_leads(cluster: Cluster) -> None:
    second = cluster.plug_with_database("second")
    done = second.run("head", "--host", second.address)
    assert (done.code, len(done.err.splitlines())) == (CONFLICT, 1), done.err
    assert "is already the leader" in done.err
    assert f"process {cluster.daemons['head'].process.pid}," in done.err
    assert second.processes() == []


def test_a_node_that_joined_later_leaves_when_what_it_runs_has_ended(cluster: Cluster) -> None:
    cluster.plug("n3")
    cluster.start_node("n3")
    until_equal(cluster.up, {"n1", "n2", "n3"})
    work = cluster.submit_work(3 * CPU_DEVICES)
    work.until_running(3 * CPU_DEVICES)
    leaving = cluster.daemons["n3"]
    leaving.process.terminate()
    leaving.until_says("what runs here may finish")
    until_equal(lambda: cluster.node_states()["n3"], "refusing")
    assert "it is being drained" in cluster.hosts["client"].answer("nodes")
    assert leaving.process.poll() is None
    work.open()
    assert leaving.end().code == 0, leaving.err
    assert cluster.hosts["n3"].processes() == []
    until_equal(cluster.up, {"n1", "n2"})
    assert cluster.attempts(work.job) == {("succeeded",): 3 * CPU_DEVICES}


def test_a_second_signal_has_it_hand_back_what_runs(cluster: Cluster) -> None:
    leaving = cluster.start_node("n3")
    until_equal(cluster.up, {"n1", "n2", "n3"})
    work = cluster.submit_work(3 * CPU_DEVICES)
    work.until_running(3 * CPU_DEVICES)
    leaving.process.terminate()
    leaving.until_says("what runs here may finish")
    leaving.process.terminate()
    assert leaving.end().code == 0, leaving.err
    assert cluster.hosts["n3"].processes() == []
    work.open()
    assert cluster.attempts(work.job) == {("succeeded",): 2 * CPU_DEVICES, ("requeued", "succeeded"): CPU_DEVICES}


def test_a_node_that_is_drained_from_afar_gets_nothing_until_it_is_resumed(cluster: Cluster) -> None:
    client = cluster.hosts["client"]
    client.answer("nodes", "drain", "n1")
    work = cluster.submit_work(CPU_DEVICES + 1)
    work.until_running(CPU_DEVICES)
    assert cluster.hosts["n1"].find(str(work.folder)) == []
    client.answer("nodes", "resume", "n1")
    work.until_running(CPU_DEVICES + 1)
    work.open()
    assert cluster.attempts(work.job) == {("succeeded",): CPU_DEVICES + 1}


def test_a_standby_takes_over_what_runs_when_the_head_is_killed(cluster: Cluster) -> None:
    work = cluster.submit_work(2)
    work.until_running(2)
    standby = cluster.hosts["head"].start("head", "--host", cluster.hosts["head"].address, "--standby")
    standby.until_says("stands by")
    first, cluster.daemons["head"] = cluster.daemons["head"], standby
    first.process.kill()
    first.end()
    standby.until_says("haloctl node --head")
    standby.until_says(LEADS)
    work.open()
    assert cluster.attempts(work.job) == {("succeeded",): 2}
    until_equal(cluster.up, {"n1", "n2"})


def test_a_node_whose_raylet_is_killed_joins_again(cluster: Cluster) -> None:
    joined = cluster.daemons["n2"].err.count(JOINED)
    cluster.hosts["n2"].kill("raylet/raylet")
    until(lambda: cluster.daemons["n2"].err.count(JOINED) > joined, "it joins again")
    until_equal(cluster.up, {"n1", "n2"})
    history = cluster.hosts["client"].json("nodes", "--history")
    assert [event["change"] for event in history if event["subject"] == "n2"][-2:] == ["down", "up"]


def test_nodes_join_again_when_all_that_ray_knew_is_gone(cluster: Cluster) -> None:
    head = cluster.hosts["head"]
    nodes = [cluster.daemons[name] for name in ("n1", "n2")]
    joined = [node.err.count(JOINED) for node in nodes]
    cluster.daemons["head"].signal(signal.SIGSTOP)  # it would start another Ray at once
    ray = str(head.data / "ray")
    head.kill(ray)
    until(lambda: not head.find(ray), lambda: f"Ray is gone, but {head.describe()}")
    shutil.rmtree(ray)
    cluster.daemons["head"].signal(signal.SIGCONT)
    until(
        lambda: all(node.err.count(JOINED) > times for node, times in zip(nodes, joined, strict=True)),
        "both join again",
    )
    work = cluster.submit_work(2 * CPU_DEVICES)
    work.until_running(2 * CPU_DEVICES)
    work.open()
    assert cluster.attempts(work.job) == {("succeeded",): 2 * CPU_DEVICES}


def test_nothing_is_left_of_a_killed_node(cluster: Cluster) -> None:
    n2 = cluster.hosts["n2"]
    work = cluster.submit_work(2 * CPU_DEVICES)
    work.until_running(2 * CPU_DEVICES)
    cluster.daemons["n2"].process.kill()
    until(lambda: not n2.processes(), lambda: f"nothing is left, but {n2.describe()}")
    work.open()
    cluster.start_node("n2")
    ended = cluster.attempts(work.job)
    assert (ended[("succeeded",)], sum(ended.values())) == (CPU_DEVICES, 2 * CPU_DEVICES)
    twice = {(kind, "succeeded") for kind in ("node_lost", "lease_lost")}  # whatever of the node ended first
    assert ended.keys() <= {("succeeded",), *twice}


def test_a_head_that_is_told_to_end_hands_back_and_takes_its_ray_along(cluster: Cluster) -> None:
    work = cluster.submit_work(1)
    work.until_running(1)
    head = cluster.daemons["head"]
    head.process.terminate()
    assert head.end().code == 0, head.err
    assert cluster.hosts["head"].find(str(cluster.hosts["head"].data)) == []
    until_equal(lambda: sum(len(cluster.hosts[name].find(str(work.folder))) for name in ("n1", "n2")), 0)
    work.open()
    cluster.start_head("head")
    assert cluster.attempts(work.job) == {("requeued", "succeeded"): 1}
    until_equal(cluster.up, {"n1", "n2"})
