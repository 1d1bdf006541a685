"""`onnx-ops run --cluster` on a Ray cluster of two nodes, which these tests start."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from test_cli import call_json
from test_files import contents
from test_many_files import (
    PATIENCE,
    assert_complete,
    damaged,
    fold,
    inputs,
    lines,
    results,
    run_arguments,
    slow_fold,
    wait_for_lines,
)  # fmt: skip

from onnx_ops.cli import items

pytestmark = [pytest.mark.ray, pytest.mark.skipif(not find_spec("ray"), reason="Ray is not installed")]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cluster():
    """The cluster's (process, address)."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(HERE)}
    command = [sys.executable, HERE / "support/cluster.py"]
    with subprocess.Popen(command, text=True, env=environment, **streams) as process:
        address = next(line.strip() for line in process.stdout if line[:1].isdigit())
        yield process, address
        process.stdin.close()
        process.wait(PATIENCE)


def started(*arguments):
    command = [sys.executable, "-m", "onnx_ops", *map(str, arguments), "--json"]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def report(process, exit_code=0):
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == exit_code, err
    return json.loads(out)


def at_work(cluster):
    """Return the processes that run our tasks."""
    children = psutil.Process(cluster[0].pid).children(recursive=True)
    return [child for child in children if "ray::do" in " ".join(child.cmdline())]


def test_two_nodes_give_the_files_of_one_process(cluster, tmp_path):
    arrays, model = inputs(2000, tmp_path), fold(tmp_path)
    call_json(*run_arguments(model, tmp_path, "one"))
    summary = report(started(*run_arguments(model, tmp_path, "cluster", "--cluster", cluster[1])))
    assert (summary["run"], summary["failed"]) == (2000, [])
    assert_complete(arrays, tmp_path, "cluster")
    one, other = contents(tmp_path / "one"), contents(tmp_path / "cluster")
    assert sorted(one.pop(items.MANIFEST).splitlines()) == sorted(other.pop(items.MANIFEST).splitlines())
    assert one == other


def test_bad_files_and_batches(cluster, tmp_path):
    problems, others = damaged(tmp_path)
    command = run_arguments(fold(tmp_path), tmp_path, "out", "--cluster", cluster[1], "--batch", 3)
    summary = report(started(*command), exit_code=1)
    assert {each["item"] for each in summary["failed"]} == problems.keys()
    assert_complete(others, tmp_path)


def test_nothing_is_imported_from_the_current_folder(cluster, tmp_path, monkeypatch):
    arrays, here = inputs(2, tmp_path), tmp_path / "here"
    here.mkdir()
    for name in ("numpy", "onnx_ops"):
        (here / f"{name}.py").write_text("import os; os._exit(1)")
    monkeypatch.chdir(here)
    call_json(*run_arguments(fold(tmp_path), tmp_path, "out", "--cluster", cluster[1]))
    assert_complete(arrays, tmp_path)
    assert Path.cwd() == here


def test_processes_that_are_killed_lose_nothing(cluster, tmp_path):
    arrays, model = inputs(60, tmp_path), slow_fold(tmp_path)
    process = started(*run_arguments(model, tmp_path, "out", "--cluster", cluster[1]))
    wait_for_lines(5, tmp_path)
    while len(processes := at_work(cluster)) < 2:  # between two tasks, Ray gives a process another title
        time.sleep(0.01)
    for each in processes:
        each.kill()
    summary = report(process)
    assert (summary["run"], summary["failed"]) == (60, [])
    assert results(tmp_path).keys() == arrays.keys()


def test_the_rest_after_the_program_was_killed(cluster, tmp_path):
    arrays, model = inputs(60, tmp_path), slow_fold(tmp_path)
    command = run_arguments(model, tmp_path, "out", "--cluster", cluster[1])
    process = started(*command)
    wait_for_lines(10, tmp_path)
    process.kill()
    process.communicate(timeout=PATIENCE)
    finished = len(lines(tmp_path))
    assert 10 <= finished < 60
    summary = report(started(*command))
    assert (summary["finished_before"], summary["run"]) == (finished, 60 - finished)
    assert sorted(line["item"] for line in lines(tmp_path)) == sorted(arrays)


def test_ctrl_c(cluster, tmp_path):
    inputs(100, tmp_path)
    process = started(*run_arguments(slow_fold(tmp_path), tmp_path, "out", "--cluster", cluster[1]))
    wait_for_lines(5, tmp_path)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE) == ("", "")
    assert (process.returncode, time.monotonic() - began < 3) == (130, True)
    assert 5 <= len(results(tmp_path)) < 100


DEADLY = """
import sys
from onnx_ops.cli import run as many
from onnx_ops.runtime import cluster
from support.worker import Deadly
def engine(batches):
    for index, _, results, has_ended in cluster.answers(Deadly(), batches, sys.argv[1], 1):
        yield index, results, has_ended
outcomes = dict(many.outcomes(engine, ["a", "b", "deadly", "c", "d", "e", "f"], 3))
for name in sorted(outcomes):
    print(name, outcomes[name] is many.ENDED or outcomes[name])
"""


def test_an_item_that_ends_its_process_costs_itself(cluster):
    command = [sys.executable, "-c", DEADLY, cluster[1]]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE)
    expected = ["a A", "b B", "c C", "d D", "deadly True", "e E", "f F"]
    assert done.stdout.splitlines() == expected, done.stderr


OTHER_VERSION = """
import sys
from onnx_ops.cli import main
from onnx_ops.runtime import cluster
cluster.versions = lambda: {"onnx_ops": "0.0"}
sys.argv[0] = "onnx-ops"
main()
"""


def test_machines_of_other_versions(cluster, tmp_path):
    inputs(1, tmp_path)
    command = run_arguments(fold(tmp_path), tmp_path, "out", "--cluster", cluster[1])
    done = subprocess.run([sys.executable, "-c", OTHER_VERSION, *map(str, command)], capture_output=True, text=True)
    assert done.returncode == 3
    assert "must be those of the machine that sends it work, {'onnx_ops': '0.0'}" in done.stderr
    assert not list((tmp_path / "out").rglob("*.npy"))


def test_a_cluster_that_is_not_there(tmp_path):
    inputs(1, tmp_path)
    process = started(*run_arguments(fold(tmp_path), tmp_path, "out", "--cluster", "127.0.0.1:9"))
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (3, "")
    assert err.startswith("Error: onnx_ops: cluster = '127.0.0.1:9': can't be reached: ")
    assert err.count("\n") == 1


def test_a_machine_with_too_few_cores(cluster, tmp_path):
    inputs(1, tmp_path)
    process = started(*run_arguments(fold(tmp_path), tmp_path, "out", "--cluster", cluster[1], "--threads", 3))
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    assert "threads = 3: no machine of the cluster" in err
