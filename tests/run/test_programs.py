"""Real programs, plainly and under `foresee run`: the same output, and the source is opened and read once.

FORESEE_RUN_FILES says of how many files (2,000 for figures that are reported). What strace cannot see, mapped pages, is
covered by opens: a file that is not opened at the source is not mapped from there.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import Runner, needs_strace, rest, traced

HERE = Path(__file__).parent
FILES = int(os.environ.get("FORESEE_RUN_FILES", "60"))
EPOCHS = 3

PYTHON = ["python_read", "python_mmap", "os_pread", "numpy", "memmap", "npz", "pil", "h5py", "parquet"]
TORCH = ["torch_load", "loader_fork", "loader_spawn"]
NEEDS = {"h5py": "h5py", "parquet": "pyarrow", **dict.fromkeys(TORCH, "torch")}


def epochs(words: str) -> list:
    return ["sh", "-c", f"for epoch in {' '.join(map(str, range(EPOCHS)))}; do {words}; done"]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    if shutil.which("g++"):
        subprocess.run(["g++", "-std=c++17", "-O1", "-o", folder / "ifstream", HERE / "ifstream.cc"], check=True)
    if shutil.which("rustc"):
        subprocess.run(["rustc", "-O", "-o", folder / "reading", HERE / "reading.rs"], check=True)
    return folder


def compared(run: Runner, program: list, tmp_path: Path) -> None:
    """Runs it plainly and under `foresee run`, and compares."""
    files = [path for path in run.source.rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    plain = run.plainly(*program)
    assert plain.code == 0, plain.stderr
    trace = tmp_path / "trace"
    done = run(*program, trace=trace, timeout_s=600)
    assert (done.code, done.stdout) == (0, plain.stdout), done.stderr
    seen = traced(trace, run.source)
    large = [path for path in files if path.stat().st_size > 1 << 20]
    print(f"{len(files)} files of {total} B, {EPOCHS} epochs: {seen.opens} opens and {seen.bytes} B at the source")
    if large:
        # Read by the program until its copy is complete, and by who copies it.
        assert seen.opens <= EPOCHS * len(files) and done.copies == len(files)
        assert seen.bytes <= total + done.source["bytes"]
        again = run(*program, trace=trace, timeout_s=600)
        seen = traced(trace, run.source)
    else:
        assert seen.opens == len(files) and seen.bytes <= total and done.copies == len(files)
        again = run(*program, trace=trace, timeout_s=600)
        seen = traced(trace, run.source)
    assert again.stdout == plain.stdout and seen == (0, 0)


@needs_strace
@pytest.mark.parametrize("name", PYTHON + TORCH)
def test_python_programs(name, tmp_path):
    module = NEEDS.get(name)
    if module and importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}")
    source = tmp_path / "source"
    program = [sys.executable, "-W", "ignore", HERE / "programs.py"]
    count = max(4, FILES // 50) if name == "h5py" else FILES
    subprocess.run([*program, "make", name, source, str(count)], check=True)
    rest()
    compared(Runner(source, tmp_path), [*program, name, source, str(EPOCHS)], tmp_path)


COMMANDS = {
    "cat": "cat {source}/*",
    "md5sum": "md5sum {source}/*",
    "tar": "tar -cf - -C {source} --sort=name . | md5sum",
    "cp": "rm -rf {target}; cp -r {source} {target}; cat {target}/* | md5sum",
    "install": "mkdir -p {target}; install {source}/* {target}; cat {target}/* | md5sum",
    "dd": "for file in {source}/*; do dd if=$file bs=4096 status=none; done | md5sum",
    "grep": "grep -c a {source}/* | md5sum",
    "ifstream": "{built}/ifstream {source} 1",
    "rust": "{built}/reading {source} 1",
}


@needs_strace
@pytest.mark.parametrize("name", COMMANDS)
def test_commands(name, tmp_path, built):
    words = COMMANDS[name].format(source=tmp_path / "source", target=tmp_path / "target", built=built)
    if name in ("ifstream", "rust") and not Path(words.split()[0]).exists():
        pytest.skip("needs a compiler: g++ or rustc")
    source = tmp_path / "source"
    subprocess.run([sys.executable, HERE / "programs.py", "make", name, source, str(FILES)], check=True)
    rest()
    compared(Runner(source, tmp_path), epochs(words), tmp_path)
