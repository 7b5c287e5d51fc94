"""`foresee simulate` from outside: what it prints, and what it says to bad input."""

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
POLICIES = [
    "perfect",
    "naive",
    "staging-buffer",
    "deepio-ordered",
    "deepio-opportunistic",
    "parallel-staging",
    "lbann-dynamic",
    "lbann-preload",
    "distributed-cache",
    "locality-aware",
    "monarch",
    "nopfs",
    "lobster",
    "foresee",
]
S1 = ROOT / "scenarios" / "hdmlp-s1.toml"
SHIPPED = sorted((ROOT / "scenarios").glob("*.toml"))


def simulated(foresee, *args):
    ran = foresee("simulate", *args, "--json", timeout_s=300)
    assert ran.code == 0, ran.stderr
    assert ran.stderr == "", "no progress where there is no terminal"
    return json.loads(ran.stdout)


def refused(foresee, *args):
    ran = foresee("simulate", *args)
    assert ran.code == 2
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1 and ran.stderr.endswith("\n"), ran.stderr
    return ran.stderr


def test_json_has_every_policy_and_every_origin(foresee):
    printed = simulated(foresee, S1)
    assert set(printed) == {"scenario", "lower_bound_s", "source_minimum_bytes", "results"}
    assert printed["scenario"] == "hdmlp-s1"
    assert [result["policy"] for result in printed["results"]] == POLICIES
    for result in printed["results"]:
        assert set(result) == {
            "policy",
            "supported",
            "reason",
            "total_s",
            "startup_s",
            "stall_s",
            "first_batch_s",
            "epochs_s",
            "hit_ratio",
            "imbalanced_steps",
            "steps_s",
            "reads",
            "bytes",
        }
        assert set(result["steps_s"]) == {"p50", "p95", "p99", "max"}
        assert 0 <= result["imbalanced_steps"] <= 1
        # What needs no read hits nothing.
        assert result["policy"] == "perfect" or 0 <= result["hit_ratio"] <= 1
        assert set(result["reads"]) == set(result["bytes"]) == {"source", "peer", "host_peer", "tier1", "tier2"}
        assert result["supported"] and result["reason"] is None
        assert result["total_s"] >= printed["lower_bound_s"] * 0.99
        assert sum(result["epochs_s"]) == pytest.approx(result["total_s"])
        if result["policy"] != "perfect":
            assert result["bytes"]["source"] >= printed["source_minimum_bytes"]


def test_a_policy_that_cannot_run_says_why(foresee):
    args = ("--set", "system.tier.1.capacity_mb=1", "--policy", "lbann-dynamic")
    (result,) = simulated(foresee, S1, *args)["results"]
    assert not result["supported"] and result["total_s"] is None
    assert "larger than tier 1" in result["reason"]
    table = foresee("simulate", S1, *args)
    assert table.code == 0 and "lbann-dynamic: not supported: the dataset" in table.stdout


def test_policies_and_settings_can_be_chosen(foresee):
    args = ("--policy", "nopfs", "--policy", "naive")
    printed = simulated(foresee, S1, *args, "--set", "job.ranks=8", "--set", "job.shuffle=torch")
    assert [result["policy"] for result in printed["results"]] == ["nopfs", "naive"]
    assert printed["results"][1]["reads"]["source"] == 10_000 * 10


def test_a_sweep_runs_every_combination(foresee):
    axes = ("--sweep", "system.tier.1.capacity_mb=0,100", "--sweep", "job.ranks=2,4")
    printed = simulated(foresee, S1, *axes, "--policy", "nopfs", "--policy", "foresee")
    assert set(printed) == {"sweep"}
    settings = [point["set"] for point in printed["sweep"]]
    assert settings == [
        {"system.tier.1.capacity_mb": capacity, "job.ranks": ranks} for capacity in (0, 100) for ranks in (2, 4)
    ]
    for point in printed["sweep"]:
        assert [result["policy"] for result in point["results"]] == ["nopfs", "foresee"]
        alone = simulated(
            foresee, S1, "--policy", "foresee", *(f"--set={key}={value}" for key, value in point["set"].items())
        )
        assert point["results"][1] == alone["results"][0]
    table = foresee("simulate", S1, *axes, "--policy", "nopfs")
    assert table.code == 0 and table.stdout.count("\n") == 5


def test_the_same_scenario_prints_the_same(foresee):
    assert simulated(foresee, S1) == simulated(foresee, S1)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_scenario_runs(foresee, path):
    """On fewer samples where there are many: the tests run a debug build."""
    text = path.read_text()
    samples = int(re.search(r"^samples = ([\d_]+)", text, re.MULTILINE)[1])
    args = ["--set", f"dataset.samples={min(samples, 100_000)}"]
    printed = simulated(foresee, path, *args)
    times = {result["policy"]: result["total_s"] for result in printed["results"]}
    assert times["nopfs"] <= times["staging-buffer"] <= times["naive"]


def test_the_source_minimum_counts_whole_samples_that_the_tiers_carry(foresee):
    # 4 ranks x (2 + 1) whole samples of 400 MB stay; 88 of 100 are read again in epochs 2 and 3.
    sets = [
        "dataset.samples=100",
        "dataset.size_mb={fixed=400}",
        "job.epochs=3",
        "job.global_batch=4",
        "system.tier.1.capacity_mb=1000",
        "system.tier.2.capacity_mb=799",
    ]
    args = [arg for one in sets for arg in ("--set", one)]
    printed = simulated(foresee, S1, *args, "--policy", "staging-buffer")
    assert printed["source_minimum_bytes"] == (100 + 2 * 88) * 400_000_000


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((S1, "--policy", "nopf"), ["--policy nopf", "did you mean nopfs?"]),
        ((S1, "--policy", "xyz"), ["--policy xyz", "choose from", "foresee"]),
        ((S1, "--policy", "a\nb"), ["no such policy"]),
        ((S1, "--frobnicate"), ["--frobnicate", "--help"]),
        ((), ["FILE.toml", "--help"]),
        ((S1, "--sweep", "job.ranks"), ["--sweep job.ranks", "KEY=V1,V2"]),
        ((S1, "--sweep", "job.rank=4,8"), ["--sweep job.rank=4", "job.ranks"]),
        ((S1, "--sweep", "job.ranks=4,0"), ["job.ranks=0", "too small"]),
        ((S1, *("--sweep", "job.seed=1,2") * 3), ["too many"]),
        ((S1, "--report", "/nowhere/page.html"), ["--report /nowhere/page.html", "no such folder"]),
        ((S1, "--set", "job.epochs=1000000", "--set", "dataset.size_mb={fixed=1e9}"), ["dataset.size_mb", "epochs"]),
        ((S1, "--set", 'name="a\\u001bb"'), ["name", "control character"]),
        ((S1, "--set", "job.rank=4"), ["--set job.rank=4", "job.ranks"]),
        ((S1, "--set", "job.ranks"), ["--set job.ranks", "KEY=VALUE"]),
        ((S1, "--set", "job.ranks=0"), ["--set job.ranks=0", "too small"]),
        ((S1, "--set", "job.compute_mb_per_s=nan"), ["job.compute_mb_per_s", "not finite"]),
        ((S1, "--set", "job.global_batch=10001"), ["job.global_batch", "10000 samples"]),
        ((S1, "--set", "system.tier.9.threads=1"), ["system.tier.9", "no tier 9"]),
        (("nowhere.toml",), ["nowhere.toml", "no such file"]),
        ((ROOT,), [str(ROOT), "folder"]),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(foresee, args, words):
    line = refused(foresee, *args)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("epochs = 10", "epochs = ten"), ["epochs", "not valid TOML"]),
        (("epochs = 10", 'epochs = "ten"'), ["job.epochs", "wanted a whole number"]),
        (("global_batch", "globl_batch"), ["job.globl_batch", "did you mean job.global_batch?"]),
        (("samples = 10_000", "samples = -1"), ["dataset.samples", "negative"]),
        (("{ 1 = 66, 2 = 86, 3 = 129, 4 = 146 }", "{}"), ["system.source_read_mb_per_s", "no points"]),
    ],
)
def test_bad_files_are_named_with_key_and_remedy(foresee, tmp_path, change, words):
    path = tmp_path / "bad.toml"
    text = S1.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    line = refused(foresee, path)
    assert str(path) in line
    for word in words[1:]:
        assert word in line


def test_a_reader_that_goes_away_is_no_error(command):
    piped = f"'{command}' simulate '{S1}' --policy naive | true"
    ran = subprocess.run(["bash", "-o", "pipefail", "-c", piped], capture_output=True, timeout=60, check=False)
    assert ran.stderr == b""


def test_a_terminal_sees_a_bar_for_long_work_and_a_table(command):
    terminal, inside = pty.openpty()
    arguments = [command, "simulate", ROOT / "scenarios" / "hdmlp-s2.toml", "--policy", "nopfs"]
    running = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=inside, stdin=subprocess.DEVNULL)
    os.close(inside)
    seen = b""
    try:
        while chunk := os.read(terminal, 4096):
            seen += chunk
    except OSError:
        pass  # how a terminal says that its other end is closed
    os.close(terminal)
    table, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert b"%" in seen and b"nopfs" in seen
    assert b"hdmlp-s2: lower bound" in table
