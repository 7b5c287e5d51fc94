"""Real programs, plainly and under `foresee run`: the same output, and the source is opened and read once.

FORESEE_RUN_FILES says of how many files (2,000 for figures that are reported). What strace cannot see, mapped pages, is
covered by opens, as a file that is not opened at the source is not mapped from there, and where this is root by the sectors
that a disk of the source's own was asked for. Programs that need torch are run by FORESEE_TORCH_PYTHON.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import TORCH_PYTHON, Runner, has, needs_strace, rest, traced

HERE = Path(__file__).parent
FILES = int(os.environ.get("FORESEE_RUN_FILES", "60"))
EPOCHS = 3

PYTHON = ["python_read", "python_mmap", "os_pread", "numpy", "memmap", "npz", "pil", "h5py", "parquet"]
TORCH = ["torch_load", "loader_fork", "loader_spawn"]
NEEDS = {"h5py": "h5py", "parquet": "pyarrow", **dict.fromkeys(TORCH, "torch")}
MAPPED = ["python_mmap", "memmap", "torch_load"]
# Enough for `make test`; programs differ in what they call, and most call the same.
QUICK = ["python_read", "os_pread", "md5sum", "cp"]


def some_long(names) -> list:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in names]


def reader(name: str) -> list:
    """The Python that runs a program, and the program."""
    python = TORCH_PYTHON if name in TORCH else sys.executable
    module = NEEDS.get(name)
    if module and not has(python, module):
        pytest.skip(f"needs {module}")
    return [python, "-W", "ignore", HERE / "programs.py"]


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
@pytest.mark.parametrize("name", some_long(PYTHON + TORCH))
def test_python_programs(name, tmp_path):
    source = tmp_path / "source"
    program = reader(name)
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
@pytest.mark.parametrize("name", some_long(COMMANDS))
def test_commands(name, tmp_path, built):
    words = COMMANDS[name].format(source=tmp_path / "source", target=tmp_path / "target", built=built)
    if name in ("ifstream", "rust") and not Path(words.split()[0]).exists():
        pytest.skip("needs a compiler: g++ or rustc")
    source = tmp_path / "source"
    subprocess.run([sys.executable, HERE / "programs.py", "make", name, source, str(FILES)], check=True)
    rest()
    compared(Runner(source, tmp_path), epochs(words), tmp_path)


class Disk:
    """A disk of the source's own, which counts what is read of it: a file as a block device, without read-ahead."""

    def __init__(self, folder: Path, mount_point: Path, size_bytes: int):
        self.mount_point = mount_point
        image = folder / "disk"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0", image], check=True)
        words = ["losetup", "--find", "--show", image]
        self.device = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        mount_point.mkdir()
        self.mount()

    def mount(self) -> None:
        """With nothing of it in memory."""
        subprocess.run(["blockdev", "--flushbufs", self.device], check=True)
        subprocess.run(["blockdev", "--setra", "0", self.device], check=True)
        subprocess.run(["mount", "-o", "noatime", self.device, self.mount_point], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", self.mount_point], check=True)

    def read_bytes(self) -> int:
        numbers = (Path("/sys/block") / Path(self.device).name / "stat").read_text().split()
        return 512 * int(numbers[2])

    def remove(self) -> None:
        subprocess.run(["umount", "-l", self.mount_point], check=False)
        subprocess.run(["losetup", "--detach", self.device], check=False)


@pytest.fixture
def disk(tmp_path):
    if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.ext4", "losetup", "blockdev"))):
        pytest.skip("needs root, and mkfs.ext4, losetup, blockdev")
    try:
        made = Disk(tmp_path, tmp_path / "source", (64 << 20) + FILES * 40_000)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no block devices here: {error}")
    yield made
    made.remove()


@pytest.mark.long
@pytest.mark.parametrize("name", MAPPED)
def test_mapped_files_are_read_from_the_source_once(name, tmp_path, disk):
    source = disk.mount_point / "files"
    program = reader(name)
    subprocess.run([*program, "make", name, source, str(FILES)], check=True)
    rest()
    sizes = [path.stat().st_size for path in source.iterdir()]
    blocks = sum(-(-size // 4096) * 4096 for size in sizes)
    run = Runner(source, tmp_path)

    def read(words: list, call) -> int:
        disk.unmount()
        disk.mount()
        before = disk.read_bytes()
        done = call(*words)
        assert (done.code, done.stderr) == (0, ""), done.stderr
        return disk.read_bytes() - before

    words = [*program, name, source, str(EPOCHS)]
    plain, first, later = read(words, run.plainly), read(words, run), read(words, run)
    print(f"{FILES} files of {blocks} B in blocks: {plain} B of the disk plainly, {first} B, then {later} B")
    # What is left is the file system's own: folders and inodes, which are looked at by each open.
    # Blocks of a small disk may be smaller than pages.
    assert plain >= sum(sizes) and first <= blocks + later and later <= blocks // 10
