"""`foresee plan` from outside: what it prints for a scenario and for a folder, and what it says to bad input."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
S1 = ROOT / "scenarios" / "hdmlp-s1.toml"
SMALL = ("--set", "dataset.samples=2000", "--set", "job.epochs=3")
KEYS = {
    "scenario",
    "policy",
    "digest",
    "job",
    "predicted_on",
    "total_s",
    "lower_bound_s",
    "startup_s",
    "stall_s",
    "stall_share",
    "stall_cause",
    "stall_by_s",
    "first_batch_s",
    "source_minimum_bytes",
    "bytes",
    "epochs",
    "smallest_useful_cache_bytes",
    "one_more_gib",
    "foresight_bytes",
    "assumed",
}
CONFIG = """
[staging]
capacity = "1 MiB"
threads = "auto"
[[tier]]
kind = "memory"
capacity = "100 KB"
[[tier]]
kind = "disk"
capacity = "1 GiB"
path = "/nvme/foresee"
threads = 3
"""


def planned(foresee, *args, **how):
    ran = foresee("plan", *args, "--json", timeout_s=300, **how)
    assert ran.code == 0, ran.stderr
    assert ran.stderr == "", "no progress where there is no terminal"
    return json.loads(ran.stdout)


def refused(foresee, *args, **how):
    ran = foresee("plan", *args, **how)
    assert ran.code == 2
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1 and ran.stderr.endswith("\n"), ran.stderr
    return ran.stderr


@pytest.fixture
def dataset(tmp_path):
    """Two class folders, a file beside them and hidden ones: 61 samples, 1 to 61 kB."""
    folder = tmp_path / "dataset"
    for number in range(60):
        path = folder / f"class{number % 2}" / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000 * (number + 1)))
    (folder / "top.jpg").write_bytes(bytes(61_000))
    (folder / ".hidden").write_bytes(bytes(7))
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x.jpg").write_bytes(bytes(7))
    return folder


def test_json_has_every_key_and_adds_up(foresee):
    plan = planned(foresee, S1, *SMALL)
    assert set(plan) == KEYS
    assert plan["scenario"] == "hdmlp-s1" and plan["policy"] == "foresee" and plan["assumed"] == {}
    assert plan["predicted_on"] == {"one_in": 1, "samples": 2000, "epochs": 3}
    assert plan["total_s"] >= plan["lower_bound_s"] > 0
    assert plan["bytes"]["source"] >= plan["source_minimum_bytes"] > 0
    assert sum(plan["stall_by_s"].values()) == pytest.approx(plan["stall_s"])
    assert plan["epochs"][0]["first"] == 0 and plan["epochs"][-1]["last"] == 2
    source = sum(line["bytes"]["source"] * (line["last"] - line["first"] + 1) for line in plan["epochs"])
    assert source == pytest.approx(plan["bytes"]["source"], rel=1e-6)
    assert [saving["name"] for saving in plan["one_more_gib"]] == ["staging", "ram", "ssd"]
    assert plan["foresight_bytes"] >= 4 * 2000
    assert len(plan["digest"]) == 32 and int(plan["digest"], 16) >= 0


def test_the_text_says_the_same(foresee):
    plan = planned(foresee, S1, *SMALL)
    ran = foresee("plan", S1, *SMALL)
    assert ran.code == 0
    for word in ("2,000 samples", "lower bound", "source minimum", "smallest useful cache", plan["digest"]):
        assert word in ran.stdout


@pytest.mark.parametrize(
    "change",
    ["job.seed=5", "job.shuffle=torch", "dataset.samples=2001", "job.epochs=4", "system.tier.1.capacity_mb=1"],
)
def test_the_digest_changes_with_the_plan(foresee, change):
    digest = planned(foresee, S1, *SMALL)["digest"]
    assert planned(foresee, S1, *SMALL)["digest"] == digest
    assert planned(foresee, S1, *SMALL, "--set", change)["digest"] != digest


def test_contention_does_not_change_the_prediction(foresee):
    ranks, reads = (planned(foresee, S1, *SMALL, "--set", f"system.contention={kind}") for kind in ("ranks", "reads"))
    assert ranks == reads


def test_a_slow_source_is_the_cause_and_a_cache_helps(foresee):
    slow = ("--set", "system.source_read_mb_per_s={1=20}", "--set", "system.extrapolate=clamp")
    none = ("--set", "system.tier.1.capacity_mb=0", "--set", "system.tier.2.capacity_mb=0")
    plan = planned(foresee, S1, *SMALL, "--set", "dataset.size_mb={fixed=1}", *slow, *none)
    assert plan["stall_cause"] == "source" and plan["stall_share"] > 0.5
    # All of the dataset has to be cached somewhere, and there are 4 ranks.
    assert plan["smallest_useful_cache_bytes"] == pytest.approx(500e6, rel=0.05)
    _, ram, ssd = plan["one_more_gib"]
    assert ram["saves_s"] > 0 and ram["saves_source_bytes"] == 2 * 2_000_000_000
    assert ssd["saves_source_bytes"] == 2 * 2_000_000_000


def test_a_cache_does_not_help_where_the_source_is_fast(foresee):
    plan = planned(foresee, S1, *SMALL, "--set", "system.source_read_mb_per_s={1=100000}")
    assert plan["smallest_useful_cache_bytes"] == 0


def test_long_jobs_are_predicted_on_some_of_their_samples(foresee):
    plan = planned(foresee, S1, "--set", "dataset.samples=300000", "--set", "job.epochs=100")
    assert plan["predicted_on"]["one_in"] > 1 and plan["predicted_on"]["epochs"] == 10
    assert plan["epochs"][-1]["last"] == 99
    assert plan["total_s"] >= 0.99 * plan["lower_bound_s"]


def test_a_folder_is_a_dataset(foresee, dataset, tmp_path):
    plan = planned(foresee, dataset, cwd=tmp_path)
    assert set(plan) == KEYS
    assert plan["scenario"] == "dataset"
    assert plan["job"]["samples"] == 61 and plan["job"]["dataset_bytes"] == 1000 * 61 * 62 // 2
    assert plan["job"]["global_batch"] == 61 and plan["job"]["epochs"] == 10
    assert plan["assumed"]["source_mb_per_s"] == 100 and plan["assumed"]["staging_mib"] == 512
    given = planned(foresee, dataset, "--source-mb-per-s", "50", "--batch", "8", "--ranks", "4", cwd=tmp_path)
    assert "source_mb_per_s" not in given["assumed"] and given["job"]["ranks"] == 4
    assert given["total_s"] > plan["total_s"] / 4


def test_tiers_come_from_foresee_toml(foresee, dataset, tmp_path):
    options = (dataset, "--ranks", "2", "--batch", "8")
    bare = planned(foresee, *options, cwd=tmp_path)
    (tmp_path / "foresee.toml").write_text(CONFIG)
    found = planned(foresee, *options, cwd=tmp_path)
    named = planned(foresee, *options, "--config", tmp_path / "foresee.toml")
    assert found == named
    assert [saving["name"] for saving in found["one_more_gib"]] == ["staging", "memory", "disk"]
    assert "staging_mib" not in found["assumed"] and found["assumed"]["disk_mb_per_s"] == 500
    assert found["bytes"]["source"] == found["source_minimum_bytes"] == found["job"]["dataset_bytes"]
    assert bare["bytes"]["source"] == 10 * found["bytes"]["source"] and bare["digest"] != found["digest"]


def test_the_environment_wins_over_foresee_toml(foresee, dataset, tmp_path):
    options = (dataset, "--ranks", "2", "--batch", "8")
    path = tmp_path / "named.toml"
    path.write_text(CONFIG)
    named = planned(foresee, *options, "--config", path)
    assert planned(foresee, *options, cwd=tmp_path, env={"FORESEE_CONFIG": str(path)}) == named
    off = {"FORESEE_TIER_0_CAPACITY": "0", "FORESEE_TIER_1_CAPACITY": "0 B"}
    without = planned(foresee, *options, "--config", path, env=off)
    assert without["bytes"]["source"] == 10 * named["bytes"]["source"]
    added = {"FORESEE_TIER_0_KIND": "memory", "FORESEE_TIER_0_CAPACITY": "1 GiB"}
    cached = planned(foresee, *options, cwd=tmp_path, env=added)
    assert [saving["name"] for saving in cached["one_more_gib"]] == ["staging", "memory"]
    assert cached["bytes"]["source"] == named["bytes"]["source"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FORESEE_CONFIG", "nowhere.toml", ["FORESEE_CONFIG=nowhere.toml", "no such file"]),
        ("FORESEE_STAGING_CAPACITY", "lots", ["FORESEE_STAGING_CAPACITY=lots", "is not a size"]),
        ("FORESEE_STAGING_CAPCITY", "1 GiB", ["did you mean FORESEE_STAGING_CAPACITY?"]),
        ("FORESEE_TIER_1_KIND", "memory", ["there is no tier 1", "FORESEE_TIER_0_KIND"]),
    ],
)
def test_a_bad_variable_is_named_in_one_line(foresee, dataset, tmp_path, name, value, words):
    line = refused(foresee, dataset, cwd=tmp_path, env={name: value})
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("1 MiB", "lots"), ["staging.capacity", '"lots" is not a size', "4 GiB"]),
        (("threads = 3", "thread = 3"), ["tier[1].thread", "did you mean tier[1].threads?"]),
        (('kind = "disk"', 'kind = "tape"'), ["tier[1].kind", "memory", "disk"]),
        (('path = "/nvme/foresee"\n', ""), ["tier[1].path", "missing"]),
        (("threads = 3", "threads = 0"), ["tier[1].threads", "too small"]),
        (("[staging]", "[staging"), ["not valid TOML"]),
    ],
)
def test_what_is_wrong_in_foresee_toml_is_named_with_key_and_remedy(foresee, dataset, tmp_path, change, words):
    path = tmp_path / "bad.toml"
    assert change[0] in CONFIG
    path.write_text(CONFIG.replace(*change, 1))
    line = refused(foresee, dataset, "--config", path)
    for word in (str(path), *words):
        assert word in line


def test_steps_and_samples_agree(foresee, tmp_path, dataset):
    (tmp_path / "foresee.toml").write_text(CONFIG)
    options = (dataset, "--ranks", "2", "--batch", "8", "--shuffle", "torch", "--seed", "3", "--epochs", "30")
    shown = planned(foresee, *options, "--show-step", "4:2:1", cwd=tmp_path)
    batch = shown["step"]
    assert (batch["epoch"], batch["step"], batch["rank"], len(batch["samples"])) == (4, 2, 1, 4)
    for sample in batch["samples"]:
        uses = planned(foresee, *options, "--show-sample", str(sample["sample"]), cwd=tmp_path)["sample"]
        assert uses["uses"][4] == {"epoch": 4, "step": 2, "rank": 1}
        assert uses["home"] == sample["home"] is not None and uses["bytes"] == sample["bytes"]
        assert uses["epochs_used"] == 30 and len(uses["uses"]) == 20
        assert uses["first_reader"] == uses["uses"][0]["rank"]
        path = Path(shown["paths"][str(sample["sample"])])
        assert path.stat().st_size == sample["bytes"]
    text = foresee("plan", *options, "--show-step", "4:2:1", "--show-sample", "0", cwd=tmp_path)
    assert "epoch 4, step 2, rank 1: 4 samples" in text.stdout and "and 10 more" in text.stdout


def test_an_epoch_of_steps_holds_every_sample_once(foresee, tmp_path, dataset):
    seen = []
    for step in range(4):
        for rank in range(2):
            args = ("--ranks", "2", "--batch", "16", "--show-step", f"0:{step}:{rank}")
            seen += [sample["sample"] for sample in planned(foresee, dataset, *args, cwd=tmp_path)["step"]["samples"]]
    assert sorted(seen) == list(range(61))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((S1, "--show-step", "10:0:0"), ["--show-step 10:0:0", "no epoch 10", "0 to 9"]),
        ((S1, "--show-step", "0:999999:0"), ["no step 999999", "from 0 to"]),
        ((S1, "--show-step", "0:0:4"), ["no rank 4", "0 to 3"]),
        ((S1, "--show-step", "0:0"), ["--show-step 0:0", "EPOCH:STEP:RANK"]),
        ((S1, "--show-sample", "10000"), ["--show-sample 10000", "no sample 10000", "0 to 9999"]),
        ((S1, "--show-sample", "x"), ["--show-sample x", "whole number"]),
        ((S1, "--policy", "nopf"), ["--policy nopf", "nopfs"]),
        ((S1, "--set", "job.rank=4"), ["--set job.rank=4", "job.ranks"]),
        ((S1, "--ranks", "4"), ["--ranks", "is for a folder", "--set"]),
        ((S1, "--policy", "lbann-preload", "--set", "system.tier.1.capacity_mb=1"), ["lbann-preload", "tier 1"]),
        (("nowhere",), ["nowhere", "no such file"]),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(foresee, args, words):
    line = refused(foresee, *args)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--set", "job.ranks=4"), ["--set job.ranks=4", "is a folder"]),
        (("--batch", "62"), ["--batch 62", "61 samples"]),
        (("--ranks", "3", "--ranks-per-host", "2"), ["--ranks 3", "--ranks-per-host"]),
        (("--config", "nowhere.toml"), ["nowhere.toml", "no such file"]),
    ],
)
def test_bad_options_for_a_folder_get_one_line(foresee, dataset, args, words):
    line = refused(foresee, dataset, *args)
    for word in words:
        assert word in line


def test_a_folder_without_samples_gets_one_line(foresee, tmp_path):
    (tmp_path / ".hidden").write_bytes(b"x")
    assert f"{tmp_path}: no files; give the folder" in refused(foresee, tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    assert "0 bytes" in refused(foresee, tmp_path)


def test_a_folder_that_cannot_be_read_gets_one_line(foresee, dataset):
    # Root without privileges reads no more than others do.
    as_others = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    closed = dataset / "class1"
    closed.chmod(0)
    try:
        assert f"{closed}: cannot be read" in refused(foresee, dataset, prefix=as_others)
    finally:
        closed.chmod(0o755)


def test_a_folder_that_links_to_itself_gets_one_line(foresee, dataset):
    (dataset / "again").symlink_to(dataset)
    assert "link" in refused(foresee, dataset)
