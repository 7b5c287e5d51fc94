"""`foresee cache`: what a cache folder holds, whether it is whole, and emptying it, as jobs left it."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

SIZE, SAMPLES = 3000, 40
NOBODY = 65534


@pytest.fixture
def place(tmp_path):
    """A dataset of two classes, and a configuration with one tier on disk."""
    return made(tmp_path)


def made(tmp_path):
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
    return fill(place, foresee)


def fill(place, foresee):
    ran = foresee("bench", place / "data", "--batch", "8", "--config", place / "foresee.toml")
    assert ran.code == 0, ran.stderr
    return place


@pytest.fixture
def user(foresee):
    """The command of somebody who is not root, and a place of theirs: root may read everything."""
    if os.geteuid():
        with tempfile.TemporaryDirectory() as folder:
            yield made(Path(folder)), foresee
        return
    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")

    def as_nobody(*args):
        return foresee(*args, prefix=prefix, cwd=Path("/"), env={"HOME": "/", "XDG_CACHE_HOME": "/nowhere"})

    try:
        reason = as_nobody("--version").stderr
    except OSError as wrong:
        reason = str(wrong)
    if reason:
        pytest.skip(f"the command cannot be run as another user: {reason.strip()}")
    with tempfile.TemporaryDirectory() as folder:
        place = made(Path(folder))
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        yield place, as_nobody


def found(foresee, action, folder, code=0):
    ran = foresee("cache", action, folder, "--json")
    assert (ran.code, ran.stderr) == (code, "")
    return json.loads(ran.stdout)


def test_status_says_what_is_held_and_that_nobody_uses_it(filled, foresee):
    status = found(foresee, "status", filled / "cache")
    (part,) = status["parts"]
    assert (part["entries"], part["held_bytes"], part["space_bytes"]) == (SAMPLES, SAMPLES * SIZE, SAMPLES * SIZE)
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
    cleared = found(foresee, "clear", cache)
    (emptied,) = cleared["parts"]
    # All of foresee is gone, and the rest is named where it lies.
    assert (emptied["name"], emptied["left"]) == (part.name, None)
    assert {"notes.txt", f"{part.name}/photo.jpg", "0123-slot0", "folder"} == set(cleared["foreign"])
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
        assert ran.code == 1 and f"not cleared: in use by process {job.pid}" in ran.stdout
        assert parts(foresee, place / "cache")[0]["entries"] > 0
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    # Whoever was killed uses nothing any more.
    assert foresee("cache", "clear", place / "cache").code == 0
    assert parts(foresee, place / "cache") == []


def test_clear_says_that_all_is_gone_where_files_of_others_keep_the_folder(filled, foresee):
    (part,) = filled.glob("cache/*-slot0")
    (part / "photo.jpg").write_text("mine")
    (part / "data-00001").symlink_to(filled / "data")
    ran = foresee("cache", "clear", filled / "cache")
    assert (ran.code, ran.stderr) == (0, "")
    assert "not cleared" not in ran.stdout
    for name in ("photo.jpg", "data-00001"):
        assert f"{part.name}/{name}: not of foresee, left alone" in ran.stdout
    assert sorted(path.name for path in part.iterdir()) == ["data-00001", "photo.jpg"]


def test_a_part_that_may_not_be_read_is_named_as_such_and_not_as_foreign(user):
    place, foresee = user
    (part,) = fill(place, foresee).glob("cache/*-slot0")
    part.chmod(0)
    try:
        status = found(foresee, "status", place / "cache", code=1)
        (told,) = status["parts"]
        assert (told["name"], status["foreign"]) == (part.name, [])
        assert "no permission to look into it" in told["unreadable"]
        for action, field in {"verify": "unchecked", "clear": "left"}.items():
            (told,) = found(foresee, action, place / "cache", code=1)["parts"]
            assert "no permission to look into it" in told[field]
        ran = foresee("cache", "status", place / "cache")
        assert ran.code == 1 and f"{part.name}: not looked into: no permission" in ran.stdout
        assert "not of foresee" not in ran.stdout
    finally:
        part.chmod(0o700)
    (part / "index").chmod(0)
    (told,) = found(foresee, "status", place / "cache", code=1)["parts"]
    assert "no permission to read its index" in told["unreadable"] and told["damage"] is None
    assert found(foresee, "clear", place / "cache")["freed_bytes"] > 0


def test_a_folder_that_may_not_be_listed_is_refused_and_not_called_empty(user):
    place, foresee = user
    cache = fill(place, foresee) / "cache"
    cache.chmod(0o300)
    for action in ("status", "verify", "clear"):
        ran = foresee("cache", action, cache)
        assert (ran.code, ran.stdout) == (2, "") and "no permission to list it" in ran.stderr
    cache.chmod(0o700)
    assert parts(foresee, cache)


def test_verify_goes_on_after_a_part_that_it_cannot_compare(filled, foresee):
    cache = filled / "cache"
    (first,) = cache.glob("*-slot0")
    linked, damaged, good = (first.with_name(first.name.replace("slot0", f"slot{slot}")) for slot in (0, 7, 8))
    for copy in (damaged, good):
        shutil.copytree(first, copy)
    data = linked / "data-00000"
    data.rename(filled / "elsewhere")
    data.symlink_to(filled / "elsewhere")
    (damaged / "data-00000").write_bytes(bytes(10**6))
    checks = {check["name"]: check for check in found(foresee, "verify", cache, code=1)["parts"]}
    assert list(checks) == [linked.name, damaged.name, good.name]
    assert "data-00000 is a symbolic link" in checks[linked.name]["unchecked"]
    assert len(checks[damaged.name]["damaged"]) >= SAMPLES - 1
    assert (checks[good.name]["checked"], checks[good.name]["damaged"]) == (SAMPLES, [])
    ran = foresee("cache", "verify", cache)
    assert (
        ran.code == 1 and f"{linked.name}: not compared: " in ran.stdout and f"{damaged.name}: damaged: " in ran.stdout
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("given_away", [".", "foresee.lock", "index", "data-00000"])
def test_what_another_user_owns_is_named_with_the_remedy_of_the_command(filled, foresee, given_away):
    cache = filled / "cache"
    (mine,) = cache.glob("*-slot0")
    theirs = shutil.copytree(mine, mine.with_name(mine.name.replace("slot0", "slot1")))
    os.chown(theirs / given_away, NOBODY, NOBODY)
    for action, field in {"status": "unreadable", "verify": "unchecked"}.items():
        told = {part["name"]: part for part in found(foresee, action, cache, code=1)["parts"]}
        assert told[mine.name][field] is None
        assert f"belongs to user {NOBODY}" in told[theirs.name][field]
        assert "--trust-folder" in told[theirs.name][field]
        ran = foresee("cache", action, cache, "--trust-folder")
        assert (ran.code, ran.stderr) == (0, "")


def test_bytes_at_the_end_of_an_index_that_are_no_records_are_counted(filled, foresee):
    (index,) = filled.glob("cache/*/index")
    whole = index.read_bytes()
    record_bytes = 88
    index.write_bytes(whole[:-5])
    (part,) = found(foresee, "status", filled / "cache")["parts"]
    assert (part["entries"], part["torn_bytes"], part["damage"]) == (SAMPLES - 1, record_bytes - 5, None)
    (check,) = found(foresee, "verify", filled / "cache", code=1)["parts"]
    assert (check["checked"], check["torn_bytes"]) == (SAMPLES - 1, record_bytes - 5)
    for action in ("status", "verify"):
        ran = foresee("cache", action, filled / "cache")
        assert f"the last {record_bytes - 5} bytes of its index are not whole records" in ran.stdout
    # A job cuts it off, and reads what is missing.
    fill(filled, foresee)
    (part,) = found(foresee, "status", filled / "cache")["parts"]
    assert (part["entries"], part["torn_bytes"]) == (SAMPLES, 0)


def test_a_damaged_mark_is_told_from_one_of_another_version(filled, foresee):
    mark = filled / "cache" / ".foresee"
    text = mark.read_text()
    told = {
        text.replace("version 1", "version 7"): "of another version of foresee (its mark .foresee says version 7)",
        text[:30]: "its mark .foresee is damaged",
        "": "its mark .foresee is damaged",
    }
    for content, said in told.items():
        mark.write_text(content)
        for command in (
            ["cache", "status", filled / "cache"],
            ["bench", filled / "data", "--config", filled / "foresee.toml"],
        ):
            ran = foresee(*command)
            assert (ran.code, ran.stdout) == (2, "") and ran.stderr.count("\n") == 1
            assert said in ran.stderr and "delete" in ran.stderr and "is read from the dataset again" in ran.stderr
    mark.write_text(text)
    assert found(foresee, "verify", filled / "cache")["whole"]


def test_command_and_job_each_name_their_own_way_to_trust_a_folder(filled, foresee):
    (filled / "cache").chmod(0o777)
    ran = foresee("cache", "status", filled / "cache")
    assert ran.code == 2 and "--trust-folder" in ran.stderr and "trust_folder" not in ran.stderr
    assert foresee("cache", "status", filled / "cache", "--trust-folder").code == 0
    ran = foresee("bench", filled / "data", "--config", filled / "foresee.toml")
    assert ran.code == 2 and "trust_folder = true" in ran.stderr and "--trust-folder" not in ran.stderr


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
