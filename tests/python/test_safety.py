"""Caches and catalogs that somebody else could have written are not trusted, and catalogs do not pile up."""

import logging
import os
import time

import foresee
import pytest

STRANGER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to somebody else")


@pytest.fixture
def files(tmp_path):
    """Ten files that nobody has changed for a while."""
    folder = tmp_path / "data"
    folder.mkdir()
    paths = [folder / f"{number}.bin" for number in range(10)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 100)
    return paths


def on_disk(files, cache, **tier):
    config = {"tier": [{"kind": "disk", "capacity": "1 MB", "path": str(cache), "free_space_floor": 0, **tier}]}
    with foresee.Job(foresee.Files(files), batch_size=5, epochs=1, seed=0, config=config) as job:
        assert len(list(job)) == 2


def refused(files, cache):
    with pytest.raises(foresee.CacheError) as caught:
        on_disk(files, cache)
    said = str(caught.value)
    assert "\n" not in said and said.endswith("or trust it (trust_folder = true)")
    return said


def test_a_cache_folder_that_others_may_write_is_refused_unless_it_is_trusted(files, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    assert f"cache folder {cache} can be written by others (mode 777)" in refused(files, cache)
    on_disk(files, cache, trust_folder=True)
    variables = {
        "KIND": "disk",
        "CAPACITY": "1 MB",
        "PATH": str(cache),
        "FREE_SPACE_FLOOR": "0",
        "TRUST_FOLDER": "true",
    }
    for name, value in variables.items():
        monkeypatch.setenv(f"FORESEE_TIER_0_{name}", value)
    on_disk(files, cache)


@needs_root
def test_a_cache_folder_that_another_user_made_is_refused_unless_it_is_trusted(files, tmp_path):
    cache = tmp_path / "cache"
    on_disk(files, cache)
    os.chown(cache, STRANGER, -1)
    assert f"cache folder {cache} belongs to user {STRANGER}, and this is user 0" in refused(files, cache)
    on_disk(files, cache, trust_folder=True)


@needs_root
def test_files_that_another_user_left_in_a_cache_folder_are_refused(files, tmp_path):
    cache = tmp_path / "cache"
    on_disk(files, cache)
    [index] = cache.glob("*/index")
    os.chown(index, STRANGER, -1)
    assert f"its file index belongs to user {STRANGER}" in refused(files, cache)


@pytest.fixture
def catalogs(tmp_path, monkeypatch):
    folder = tmp_path / "catalogs"
    monkeypatch.setenv("FORESEE_CATALOG_PATH", str(folder))
    return folder


def test_a_folder_of_catalogs_that_others_may_write_is_not_used_unless_it_is_trusted(
    files, catalogs, caplog, monkeypatch
):
    # A folder that was changed just now may change again unseen: what was listed is not saved.
    time.sleep(2.5)
    foresee.Files(files)
    [saved] = catalogs.iterdir()
    assert saved.stat().st_mode & 0o777 == 0o600
    catalogs.chmod(0o777)
    caplog.set_level(logging.WARNING, logger="foresee")
    foresee.Files(files)
    [said] = [record.getMessage() for record in caplog.records]
    assert "can be written by others (mode 777)" in said and "catalog.trust_folder" in said
    caplog.clear()
    monkeypatch.setenv("FORESEE_CATALOG_TRUST_FOLDER", "true")
    foresee.Files(files)
    assert not caplog.records


def test_catalogs_do_not_pile_up(files, catalogs):
    time.sleep(2.5)
    for number in range(80):
        foresee.Files(files, labels=[number] * len(files))
    assert len(list(catalogs.iterdir())) == 64
