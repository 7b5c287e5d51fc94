"""`pip install .` gives the package and the `foresee` command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, command)], capture_output=True, encoding="utf-8", check=False, **options)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the installed package and its scripts."""
    pytest.importorskip("maturin", reason="the Python package maturin is missing")
    target = tmp_path_factory.mktemp("installed")
    scripts = str(Path(sys.executable).parent)
    # The debug build that `make test` has made is used again, so with the features that it has for tests. Not `--offline`: cargo wants to know of every crate of
    # Cargo.lock, also those of other systems, and no build for this one has fetched those.
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "MATURIN_PEP517_ARGS": "--profile=dev --locked --features=foresee-runtime/testing",
        "CARGO_TARGET_DIR": str(ROOT / os.environ.get("CARGO_TARGET_DIR", "target")),
    }
    options = ("--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check")
    ran = run(sys.executable, "-m", "pip", "install", *options, "--target", target, ROOT, env=environment, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return target


def test_the_package_can_be_imported_and_is_typed(installed):
    code = "import foresee; print(foresee.__version__, foresee.__file__)"
    ran = run(sys.executable, "-c", code, env={**os.environ, "PYTHONPATH": str(installed)})
    version, place = ran.stdout.split()
    assert (ran.returncode, place) == (0, str(installed / "foresee" / "__init__.py"))
    assert (installed / "foresee" / "py.typed").is_file()
    assert (installed / "foresee" / "_native.pyi").is_file()
    assert (installed / f"foresee-{version}.dist-info").is_dir()


def test_the_command_comes_along(installed):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = installed / "bin" / "foresee"
    ran = run(command, "--version", env=environment)
    assert ran.returncode == 0 and ran.stdout.startswith("foresee "), ran.stderr
    ran = run(command, "simulate", "nowhere.toml", env=environment)
    assert (ran.returncode, ran.stdout) == (2, "") and ran.stderr.startswith("foresee: nowhere.toml: no such file")


def test_programs_run_with_the_library_that_comes_along(installed, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("words")
    words = ("run", "--source", tmp_path / "source", "--cache", tmp_path / "cache", "--quota", "1MB", "--stats", "--")
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    ran = run(installed / "bin" / "foresee", *words, "cat", tmp_path / "source" / "file", env=environment)
    assert (ran.returncode, ran.stdout) == (0, "words")
    # Too young to be copied, but seen.
    assert "source: 1 opens" in ran.stderr, ran.stderr
