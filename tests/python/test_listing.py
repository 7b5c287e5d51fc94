"""Of several ranks the first lists, and the others get its catalog: real processes, counted by strace."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from many import free_port

STRACE = shutil.which("strace")
CLASSES, FILES = 6, 250
#: What tells names or sizes of files.
CALLS = "getdents64,stat,lstat,newfstatat,statx,readlink,readlinkat,openat"

#: Makes what it is told, in that order, and says what it found.
RANK = """
import hashlib, json, os, signal, sys, time
import foresee
told = json.loads(sys.argv[1])
rank = int(os.environ["RANK"])
kinds = {"folder": foresee.ImageFolder, "manifest": foresee.Files.from_manifest, "files": lambda text: foresee.Files(open(text).read().split())}
found = {}
time.sleep(told["late_s"].get(str(rank), 0))
began_s = time.monotonic()
for kind, path in told["makes"][rank]:
    dataset = kinds[kind](path)
    sizes, labels = dataset.sizes.tolist(), dataset.labels.tolist()
    found[path] = hashlib.sha256(json.dumps([dataset.paths(), sizes, labels]).encode()).hexdigest()
took_s = time.monotonic() - began_s
print(json.dumps({"found": found, "took_s": took_s, "samples": len(dataset) if found else 0}), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def data(tmp_path):
    """A folder of classes with this many files each; the first byte of each file is its class."""

    def make(name="data", files=FILES):
        root = tmp_path / name
        for label in range(CLASSES):
            folder = root / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(files):
                (folder / f"{number:04}.jpg").write_bytes(bytes([label]) * (1 + number))
        return root

    return make


class Launch:
    """Ranks that make datasets; they stay until all have said what they found, as trainers do."""

    def __init__(self, tmp_path, makes, *, absent=(), trace=False, late_s=None, **variables):
        self.logs = [tmp_path / f"strace{rank}" for rank in range(len(makes))]
        self.errors = [tmp_path / f"stderr{rank}" for rank in range(len(makes))]
        script = tmp_path / "rank.py"
        script.write_text(RANK)
        told = json.dumps(
            {"makes": [[[kind, str(path)] for kind, path in one] for one in makes], "late_s": late_s or {}}
        )
        port = free_port()
        self.processes = {}
        for rank in range(len(makes)):
            if rank in absent:
                continue
            env = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path[:1]),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(makes)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port - 1),
                **variables,
            }
            prefix = [STRACE, "-f", "-s", "400", "-e", f"trace={CALLS}", "-o", self.logs[rank]] if trace else []
            with self.errors[rank].open("w") as stderr:
                self.processes[rank] = subprocess.Popen(
                    [*prefix, sys.executable, "-B", script, told],
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    encoding="utf-8",
                )

    def found(self, *, lost=()):
        """What each rank found, by rank."""
        told = {}
        for rank, process in self.processes.items():
            if rank not in lost:
                line = process.stdout.readline()
                assert line, self.errors[rank].read_text()
                told[rank] = json.loads(line)
        for process in self.processes.values():
            process.communicate("")
        return told

    def said(self, rank):
        return self.errors[rank].read_text()

    def calls(self, rank, root):
        """Calls that look at something below a folder, or list it or something below."""
        text = self.logs[rank].read_text()
        below = len(re.findall(re.escape(f'"{root}/'), text))
        opened = set(re.findall(rf'openat\([^"]*"{re.escape(str(root))}[^"]*".*O_DIRECTORY', text))
        return below + len(opened)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.communicate()


def manifest(root, path):
    files = sorted(root.rglob("*.jpg"))
    # Long paths: a manifest that is short is looked at by each rank.
    path.write_text("".join(f"{file}\t{number % 7}\n" for number, file in enumerate(files)))
    assert path.stat().st_size > 64 << 10
    return path


@pytest.mark.skipif(STRACE is None, reason="install strace")
@pytest.mark.parametrize("kind", ["folder", "manifest", "files"])
def test_the_first_rank_lists_and_the_others_look_at_no_file(data, tmp_path, kind):
    root = data()
    what = root
    if kind == "manifest":
        what = manifest(root, tmp_path / "list.txt")
    elif kind == "files":
        what = tmp_path / "paths.txt"
        what.write_text("\n".join(map(str, sorted(root.rglob("*.jpg")))))
    with Launch(tmp_path, [[(kind, what)]] * 4, trace=True) as launch:
        found = launch.found()
    assert len({json.dumps(one["found"]) for one in found.values()}) == 1
    assert {one["samples"] for one in found.values()} == {CLASSES * FILES}
    assert launch.calls(0, root) >= CLASSES * FILES
    # Of lists of files the first folder is looked at: whether it is the same one here.
    assert [launch.calls(rank, root) for rank in (1, 2, 3)] == ([0] * 3 if kind != "files" else [1] * 3)
    assert not any(launch.said(rank) for rank in range(4))


@pytest.mark.skipif(STRACE is None, reason="install strace")
def test_without_peers_each_rank_lists(data, tmp_path):
    root = data()
    with Launch(tmp_path, [[("folder", root)]] * 2, trace=True, FORESEE_PEERS_TRANSPORT="none") as launch:
        found = launch.found()
    assert found[0]["found"] == found[1]["found"]
    assert [launch.calls(rank, root) >= CLASSES * FILES for rank in (0, 1)] == [True, True]


def test_ranks_may_make_datasets_in_any_order(data, tmp_path):
    train, val = data("train"), data("val", 20)
    one, other = ("folder", train), ("folder", val)
    with Launch(tmp_path, [[one, other], [other, one], [other, one, one], [one]]) as launch:
        found = launch.found()
    for rank in (1, 2):
        assert found[rank]["found"] == found[0]["found"]
    assert not any(launch.said(rank) for rank in range(4))


def test_who_comes_before_the_first_rank_waits_for_it(data, tmp_path):
    root = data()
    with Launch(tmp_path, [[("folder", root)]] * 3, late_s={"0": 4}) as launch:
        found = launch.found()
    assert found[1]["took_s"] > 2 and found[2]["took_s"] > 2
    assert found[0]["found"] == found[1]["found"] == found[2]["found"]
    assert not any(launch.said(rank) for rank in range(3))


def test_the_first_rank_waits_for_nobody(data, tmp_path):
    root = data()
    with Launch(tmp_path, [[("folder", root)], [], [], []]) as launch:
        assert launch.found()[0]["took_s"] < 10
    with Launch(tmp_path, [[("folder", root)]] * 4, absent=(1, 2, 3)) as launch:
        assert launch.found()[0]["took_s"] < 10


def test_who_gets_no_catalog_lists_after_a_bound_and_says_so_once(data, tmp_path):
    root, other = data(), data("other", 20)
    makes = [[], *[[("folder", root), ("folder", other)]] * 3]
    with Launch(tmp_path, makes, absent=(0,), FORESEE_PEERS_PATIENCE="5 s") as launch:
        began_s = time.monotonic()
        found = launch.found()
    assert time.monotonic() - began_s < 25
    assert len({json.dumps(one["found"]) for one in found.values()}) == 1
    for rank in (1, 2, 3):
        # For the second dataset less patience is left.
        assert 5 <= found[rank]["took_s"] < 12
        said = launch.said(rank).splitlines()
        assert len(said) == 2, said
        assert f"rank {rank}: {root}: no catalog from rank 0" in said[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_first_rank_that_dies_or_stops_is_done_without(data, tmp_path, number):
    root, never = data(), data("never", 1)
    # The first rank is there, and never makes what the others want.
    with Launch(tmp_path, [[("folder", never)], [("folder", never), ("folder", root)]]) as launch:
        assert launch.processes[0].stdout.readline()
        time.sleep(1)
        launch.processes[0].send_signal(number)
        began_s = time.monotonic()
        line = launch.processes[1].stdout.readline()
        waited_s = time.monotonic() - began_s
        launch.processes[0].send_signal(signal.SIGCONT)
        launch.processes[0].kill()
    assert json.loads(line)["samples"] == CLASSES * FILES
    assert waited_s < 25, waited_s
    assert "no catalog from rank 0 (rank 0 is not heard any more)" in launch.said(1)


def test_a_path_that_is_not_there_is_an_error_at_once_on_every_rank(tmp_path):
    began_s = time.monotonic()
    with Launch(tmp_path, [[("folder", tmp_path / "nowhere")]] * 3) as launch:
        for process in launch.processes.values():
            assert process.wait(30) != 0
    assert time.monotonic() - began_s < 20
    assert all("DatasetError: " in launch.said(rank) and "nowhere" in launch.said(rank) for rank in range(3))


def test_a_dataset_that_is_unpickled_is_listed_where_it_is(data, tmp_path, script):
    """A child that inherited the launcher's variables is no rank."""
    code = """
import multiprocessing, sys
import foresee
if __name__ == "__main__":
    dataset = foresee.ImageFolder(sys.argv[1])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(len, (dataset,)))
"""
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port() - 1)}
    began_s = time.monotonic()
    ended = script(code, data(), **variables)
    assert ended.stdout.strip() == str(CLASSES * FILES), ended.stderr
    assert time.monotonic() - began_s < 20


def test_saved_catalogs_are_whole_though_ranks_list_at_once(data, tmp_path):
    """Ranks without peers save the same catalog at the same time; each one that is loaded is whole."""
    root = data()
    time.sleep(2.1)
    saved = tmp_path / "catalogs"
    with Launch(
        tmp_path, [[("folder", root)] * 3] * 6, FORESEE_PEERS_TRANSPORT="none", FORESEE_CATALOG_PATH=str(saved)
    ) as launch:
        found = launch.found()
    assert len({json.dumps(one["found"]) for one in found.values()}) == 1
    assert [path.suffix for path in saved.iterdir()] == [".catalog"]
    assert not any(launch.said(rank) for rank in range(6))
