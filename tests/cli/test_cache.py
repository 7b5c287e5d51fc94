"""`foresee cache`: what a cache folder holds, whether it is whole, and emptying it, as jobs left it."""

import json
import signal
import subprocess
import time

import pytest

SIZE, SAMPLES = 3000, 40


@pytest.fixture
def place(tmp_path):
    """A dataset of two classes, and a configuration with one tier on disk."""
    for sample in range(SAMPLES):
        path = tmp_path / "data" / f"class{sample % 2}" / f"{sample:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([sample]) * SIZE)
    (tmp_path / "foresee.toml").write_text(
        f'[[tier]]\nkind = "disk"\npath = "{tmp_path / "cache"}"\ncapacity = "1 MB"\nfree_space_floor = 0\n'
        '[catalog]\npath = ""\n'
    )
    return tmp_path


@pytest.fixture
def filled(place, foresee):
    """The same after a job."""
    ran = foresee("bench", place / "data", "--batch", "8", "--config", place / "foresee.toml")
    assert ran.code == 0, ran.stderr
    return place


def found(foresee, action, folder, code=0):
    ran = foresee("cache", action, folder, "--json")
    assert (ran.code, ran.stderr) == (code, "")
    return json.loads(ran.stdout)


def test_status_says_what_is_held_and_that_nobody_uses_it(filled, foresee):
    status = found(foresee, "status", filled / "cache")
    (part,) = status["parts"]
    assert (part["entries"], part["held_bytes"], part["capacity_bytes"]) == (SAMPLES, SAMPLES * SIZE, 10**6)
    assert part["disk_bytes"] >= part["held_bytes"] == status["held_bytes"]
    assert (part["in_use_by"], part["damage"], status["foreign"], status["kind"]) == (None, None, [], "tiers")
    ran = foresee("cache", "status", filled / "cache")
    assert ran.code == 0 and part["name"] in ran.stdout and "nobody" in ran.stdout


def test_verify_names_what_is_damaged_and_a_job_reads_that_again(filled, foresee):
    (data,) = filled.glob("cache/*/data-00000")
    assert found(foresee, "verify", filled / "cache")["whole"]
    with data.open("r+b") as file:
        file.seek(5 * SIZE + 7)
        file.write(b"\xff")
    verified = found(foresee, "verify", filled / "cache", code=1)
    (part,) = verified["parts"]
    assert not verified["whole"]
    assert (part["checked"], part["checked_bytes"], len(part["damaged"])) == (SAMPLES, SAMPLES * SIZE, 1)
    ran = foresee("cache", "verify", filled / "cache")
    assert ran.code == 1 and f"damaged: {part['damaged'][0]}" in ran.stdout
    index = data.with_name("index")
    index.write_bytes(index.read_bytes()[:20])
    assert "index is damaged" in foresee("cache", "verify", filled / "cache").stdout
    assert "index is damaged" in foresee("cache", "status", filled / "cache").stdout
    ran = foresee("bench", filled / "data", "--batch", "8", "--config", filled / "foresee.toml")
    assert ran.code == 0
    assert found(foresee, "verify", filled / "cache")["whole"]


def test_clear_deletes_what_foresee_made_and_nothing_else(filled, foresee):
    cache = filled / "cache"
    (part,) = (path for path in cache.iterdir() if path.is_dir())
    mine = [cache / "notes.txt", part / "photo.jpg", cache / "0123-slot0" / "index", cache / "folder" / "data-00000"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    assert {"notes.txt", f"{part.name}/photo.jpg", "0123-slot0", "folder"} == set(
        found(foresee, "status", cache)["foreign"]
    )
    cleared = found(foresee, "clear", cache, code=1)
    assert "not of foresee" in cleared["parts"][0]["left"]
    assert cleared["freed_bytes"] >= SAMPLES * SIZE
    assert all(path.read_text() == "mine" for path in mine)
    assert sorted(path.name for path in part.iterdir()) == ["photo.jpg"]
    # It is still a cache, and can be used.
    ran = foresee("bench", filled / "data", "--batch", "8", "--config", filled / "foresee.toml")
    assert ran.code == 0
    assert found(foresee, "status", cache)["held_bytes"] == SAMPLES * SIZE


def test_what_a_job_uses_is_neither_compared_nor_cleared_and_that_is_said(place, foresee, command):
    told = ["--batch", "8", "--epochs", "1000000", "--config", str(place / "foresee.toml")]
    job = subprocess.Popen([command, "bench", str(place / "data"), *told, "--compute-ms", "1"])
    try:
        end_s = time.monotonic() + 60
        while not (place / "cache").is_dir() or not any(part["entries"] for part in parts(foresee, place / "cache")):
            assert time.monotonic() < end_s and job.poll() is None
            time.sleep(0.05)
        (part,) = parts(foresee, place / "cache")
        assert part["in_use_by"] == str(job.pid)
        assert (
            f"in use by process {job.pid}" in found(foresee, "verify", place / "cache", code=1)["parts"][0]["unchecked"]
        )
        ran = foresee("cache", "clear", place / "cache")
        assert ran.code == 1 and f"in use by process {job.pid}: not cleared" in ran.stdout
        assert parts(foresee, place / "cache")[0]["entries"] > 0
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    # Whoever was killed uses nothing any more.
    assert foresee("cache", "clear", place / "cache").code == 0
    assert parts(foresee, place / "cache") == []


def parts(foresee, folder):
    ran = foresee("cache", "status", folder, "--json")
    # A job that starts makes the folder first and its mark after.
    return json.loads(ran.stdout)["parts"] if ran.code == 0 else []


@pytest.mark.parametrize("action", ["status", "verify", "clear"])
def test_what_is_no_cache_is_refused_in_one_line(tmp_path, foresee, action):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    for path, said in {
        tmp_path: "not a cache of foresee",
        tmp_path / "absent": "no such folder",
        tmp_path / "file": "not a folder",
        tmp_path / "open": "can be written by others",
    }.items():
        ran = foresee("cache", action, path)
        assert (ran.code, ran.stdout) == (2, "")
        assert said in ran.stderr and str(path) in ran.stderr and ran.stderr.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"
