"""`foresee bench` given a file that is no manifest: it says so at once, however large that file is."""

import os
import resource
import subprocess
import tarfile

import pytest

MEMORY_MAX = 1 << 30
REMEDY = "give a folder that holds class folders, or a text file with a path a line"


@pytest.fixture
def refused(command, tmp_path):
    """The one line that the command says of a dataset, with little memory to say it in."""

    def refused(*args):
        ran = subprocess.run(
            [command, *args],
            env={"FORESEE_CATALOG_PATH": "", "FORESEE_CONFIG": "", "XDG_RUNTIME_DIR": str(tmp_path)},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=20,
            check=False,
        )
        assert (ran.returncode, ran.stdout) == (2, ""), ran
        assert ran.stderr.count("\n") == 1, ran.stderr
        return ran.stderr

    return refused


def test_an_archive_of_gigabytes_is_no_manifest(refused, tmp_path):
    (tmp_path / "a.jpg").write_bytes(bytes(100))
    archive = tmp_path / "big.tar"
    with tarfile.open(archive, "w") as out:
        out.add(tmp_path / "a.jpg", "a.jpg")
    os.truncate(archive, 3 << 30)
    assert refused("bench", archive) == f"foresee: manifest {archive}: it is not text; {REMEDY}\n"


def test_a_line_longer_than_any_path_is_none_of_a_manifest(refused, tmp_path):
    (tmp_path / "a").write_bytes(b"")
    long = tmp_path / "long.json"
    long.write_text("a\n" + "[1]," * 50_000)
    said = f"manifest {long}: line 2 is longer than 65536 bytes, so it is not a list of paths; {REMEDY}\n"
    assert refused("bench", long) == f"foresee: {said}"


def test_a_device_or_a_pipe_is_no_manifest(refused, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in ("/dev/zero", pipe):
        assert refused("bench", path) == f"foresee: manifest {path}: it is not a regular file; {REMEDY}\n"


def test_a_long_text_of_something_else_is_refused_by_its_first_line(refused, tmp_path):
    log = tmp_path / "all.log"
    with log.open("wb") as out:
        out.write(b"a line of a log\n" * 100_000)
        out.truncate(2 << 30)
    assert refused("bench", log).startswith(
        f"foresee: manifest {log}: line 1: file {tmp_path}/a line of a log: no such file"
    )


def test_a_report_of_what_has_no_end_is_refused(refused, tmp_path):
    assert "give a file in the form of docs/report.md" in refused(
        "report", "/dev/zero", "--output", tmp_path / "x.html"
    )
