"""`foresee bench` from outside: what it prints of a run of the loader, Ctrl-C, and what it says to bad input."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import time

import pytest

SAMPLES = 60
BYTES = sum(1000 * (number + 1) for number in range(SAMPLES))
LARGEST = 1000 * SAMPLES
POLICIES = ["foresee", "nopfs", "lobster", "monarch", "staging-buffer", "naive"]
STATS = {"policy", "rank", "world_size", "samples", "bytes", "batches", "stall_s", "stall_by_s", "origins", "hit_ratio"}


@pytest.fixture(autouse=True)
def nothing_saved(monkeypatch, tmp_path):
    """No catalog and no emulated storage of a test stays behind, and no configuration of the machine is used."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("FORESEE_CATALOG_PATH", "")
    monkeypatch.setenv("FORESEE_CONFIG", "")
    monkeypatch.delenv("FORESEE_STAGING_CAPACITY", raising=False)


@pytest.fixture
def dataset(tmp_path):
    """Two class folders: 60 samples, 1 to 60 kB."""
    folder = tmp_path / "dataset"
    for number in range(SAMPLES):
        path = folder / f"class{number % 2}" / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000 * (number + 1)))
    return folder


def benched(foresee, *args, **how):
    ran = foresee("bench", *args, "--json", **how)
    assert ran.code == 0, ran.stderr
    assert ran.stderr == "", "no progress where there is no terminal"
    return json.loads(ran.stdout)


def refused(foresee, *args, **how):
    ran = foresee("bench", *args, **how)
    assert ran.code == 2
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1 and ran.stderr.endswith("\n"), ran.stderr
    return ran.stderr


def test_text_has_a_line_for_each_epoch_and_the_loaders_summary(foresee, dataset):
    ran = foresee("bench", dataset, "--batch", "16", "--epochs", "3", "--memory", "1 MB")
    assert ran.code == 0 and ran.stderr == ""
    head, _, table, *_ = ran.stdout.splitlines()[0], *ran.stdout.split("\n\n")
    assert head.startswith(f"{dataset}: 60 samples, 1.8 MB, opened in ")
    assert table.split()[:5] == ["epoch", "time", "samples/s", "MB/s", "stall"]
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["0", "1", "2"]
    for words in ("foresee (rank 0 of 1)", "180 samples, 5.5 MB in 12 batches", "first batch", "hit ratio", "minimum"):
        assert words in ran.stdout


def test_json_has_every_key_and_adds_up(foresee, dataset):
    bench = benched(foresee, dataset, "--batch", "16", "--memory", "1 MB", "--seed", "7", "--shuffle", "feistel")
    assert set(bench) == {"dataset", "job", "epochs", "interrupted", "stats"}
    opened_s = bench["dataset"].pop("opened_s")
    assert bench["dataset"] == {"name": str(dataset), "samples": SAMPLES, "bytes": BYTES, "classes": 2} and opened_s > 0
    job = {"batch": 16, "epochs": 2, "seed": 7, "shuffle": "feistel", "compute_ms": 0.0, "throttle": None}
    job |= {"assignment": "order", "ranks": None, "lockstep": False}
    assert bench["job"] == job and bench["interrupted"] is False
    stats, epochs = bench["stats"], bench["epochs"]
    assert set(stats) >= STATS
    assert (stats["samples"], stats["bytes"], stats["batches"]) == (2 * SAMPLES, 2 * BYTES, 8)
    assert stats["source_bytes"] == stats["source_minimum_bytes"]
    assert [epoch["epoch"] for epoch in epochs] == [0, 1]
    for epoch in epochs:
        assert (epoch["samples"], epoch["bytes"]) == (SAMPLES, BYTES)
        assert epoch["samples_per_s"] == pytest.approx(SAMPLES / epoch["total_s"])
        assert epoch["mb_per_s"] == pytest.approx(BYTES / 1e6 / epoch["total_s"])
    assert sum(epoch["stall_s"] for epoch in epochs) == pytest.approx(stats["stall_s"])
    for origin, reads in stats["origins"].items():
        assert sum(epoch["read_bytes"][origin] for epoch in epochs) == reads["bytes"]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_delivers_every_sample(foresee, dataset, policy):
    stats = benched(foresee, dataset, "--policy", policy, "--memory", "500 KB", "--batch", "7")["stats"]
    assert (stats["policy"], stats["samples"], stats["bytes"]) == (policy, 2 * SAMPLES, 2 * BYTES)


def test_a_manifest_is_a_dataset(foresee, dataset, tmp_path):
    manifest = tmp_path / "list.txt"
    manifest.write_text("".join(f"dataset/class0/{number:02}.jpg\t1\n" for number in (0, 2, 4)))
    bench = benched(foresee, manifest, "--epochs", "1")
    assert (bench["dataset"]["samples"], bench["stats"]["bytes"]) == (3, 9000)


def test_ranks_share_the_samples(foresee, dataset):
    ranks = [
        benched(foresee, dataset, "--rank", str(rank), "--world-size", "4", "--epochs", "1")["stats"]
        for rank in range(4)
    ]
    assert [rank["samples"] for rank in ranks] == [15] * 4
    assert sum(rank["bytes"] for rank in ranks) == BYTES


def test_options_win_over_the_environment_and_that_over_the_file(foresee, dataset, tmp_path):
    config = tmp_path / "some.toml"
    config.write_text('[staging]\nthreads = 3\ncapacity = 1\n[[tier]]\nkind = "memory"\ncapacity = 0\nthreads = 1\n')
    how = {"env": {"FORESEE_STAGING_CAPACITY": "60 KB"}}
    stats = benched(foresee, dataset, "--config", config, **how)["stats"]
    # A tier that is switched off has no threads.
    assert stats["threads"] == [3, 0] and stats["origins"]["tier1"]["bytes"] == 0
    stats = benched(foresee, dataset, "--config", config, "--threads", "2", "--memory", "2MB", **how)["stats"]
    assert stats["threads"] == [2, 1] and stats["source_bytes"] == BYTES
    assert "staging.capacity" in refused(foresee, dataset, "--config", config, "--staging", "59999", **how)


def test_a_throttle_slows_down_as_asked(foresee, dataset):
    fast_s = benched(foresee, dataset, "--epochs", "1")["stats"]["elapsed_s"]
    bench = benched(foresee, dataset, "--epochs", "1", "--throttle", "slow:2:1")
    assert (bench["job"]["throttle"]["mb_per_s"], bench["job"]["throttle"]["latency_ms"]) == (2, 1)
    asked_s = BYTES / 2e6
    assert fast_s < asked_s / 2
    assert 0.9 * asked_s < bench["stats"]["elapsed_s"] < 3 * asked_s
    assert bench["stats"]["stall_s"] > 0.5 * asked_s


def test_compute_takes_its_time_with_each_batch(foresee, dataset):
    stats = benched(foresee, dataset, "--epochs", "1", "--batch", "10", "--compute-ms", "50")["stats"]
    assert 6 * 0.05 <= stats["elapsed_s"] < 3


def test_the_trace_has_a_line_for_each_read_and_batch(foresee, dataset, tmp_path):
    trace = tmp_path / "trace.jsonl"
    stats = benched(foresee, dataset, "--batch", "16", "--trace", trace)["stats"]
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert events.count("batch") == stats["batches"] and events.count("read") >= SAMPLES and events[-1] == "end"
    assert all(line["t_s"] >= 0 for line in lines)


def interrupt_when(process, is_time):
    deadline = time.monotonic() + 20
    while not is_time() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=20)


def test_ctrl_c_prints_the_numbers_so_far(command, dataset, tmp_path):
    trace = tmp_path / "trace.jsonl"
    args = ["bench", dataset, "--json", "--batch", "4", "--compute-ms", "40", "--epochs", "1000", "--trace", trace]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen([command, *map(str, args)], **pipes) as process:
        # The trace is buffered: it has content when more than an epoch has passed.
        stdout, stderr = interrupt_when(process, lambda: trace.exists() and trace.stat().st_size > 0)
    assert process.returncode == 130 and stderr == ""
    bench = json.loads(stdout)
    assert bench["interrupted"] is True
    assert 0 < sum(epoch["samples"] for epoch in bench["epochs"]) == bench["stats"]["samples"] < 1000 * SAMPLES


def test_a_terminal_shows_progress_on_standard_error(command, dataset):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 160, 0, 0))
    args = ["bench", str(dataset), "--batch", "4", "--compute-ms", "40", "--epochs", "1"]
    env = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen([command, *args], stdout=subprocess.PIPE, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:
            # The other side is closed.
            pass
        assert process.wait(timeout=20) == 0
    os.close(ours)
    assert b"epoch 0 of 1" in shown and b"samples/s, stall" in shown


def test_bad_datasets_are_refused(foresee, dataset, tmp_path):
    assert "no such folder" in refused(foresee, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(foresee, tmp_path / "empty")
    assert "no class folders" in refused(foresee, dataset / "class0")
    (tmp_path / "list.txt").write_text("gone.jpg\n")
    assert "line 1" in refused(foresee, tmp_path / "list.txt")
    (dataset / "class0" / "00.jpg").write_bytes(b"")
    assert "00.jpg" in refused(foresee, dataset)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--batch", "0"), "--batch"),
        (("--epochs", "0"), "--epochs"),
        (("--seed=-1",), "--seed"),
        (("--shuffle", "riffle"), "--shuffle"),
        (("--policy", "perfect"), "choose from foresee, lobster, nopfs, monarch, locality-aware, "),
        (("--throttle", "slow"), "NAME:MB_PER_S"),
        (("--throttle", "slow:fast"), "MB/s"),
        (("--throttle", "slow:1:-1"), "latency"),
        (("--throttle", "a/b:1"), "a/b"),
        (("--staging", "0"), "more than 0 B"),
        (("--staging", "lots"), "GiB"),
        (("--staging", f"{LARGEST - 1} B"), "59.jpg"),
        (("--memory", "1000000 TB"), "memory"),
        (("--threads", "0"), "--threads"),
        (("--compute-ms", "nan"), "milliseconds"),
        (("--rank", "2", "--world-size", "2"), "--rank 2"),
        (("--world-size", "0"), "--world-size"),
        (("--config", "nowhere.toml"), "nowhere.toml"),
        (("--trace", "nowhere/trace.jsonl"), "--trace nowhere/trace.jsonl"),
    ],
)
def test_bad_options_are_refused(foresee, dataset, options, said):
    assert said in refused(foresee, dataset, *options)


def test_the_dataset_is_not_overwritten_by_its_trace(foresee, dataset, tmp_path):
    manifest = tmp_path / "list.txt"
    manifest.write_text("dataset/class0/00.jpg\n")
    assert "the dataset itself" in refused(foresee, manifest, "--trace", manifest)
    assert manifest.read_text() == "dataset/class0/00.jpg\n"
