"""Tests of tools/setup.sh, on a machine made of stubs: nothing is installed, and nothing is downloaded.

PATH is one directory. It holds links to the few real tools that the script may use, and stubs for all that it asks
about the machine. Each stub adds a line to `calls`, so that a test can see what was run.
"""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REAL_TOOLS = [
    "cat",
    "chmod",
    "cut",
    "dirname",
    "env",
    "flock",
    "mkdir",
    "mktemp",
    "rm",
    "sed",
    "sha256sum",
    "sleep",
    "true",
]

# `apt-get install` puts the packages where the script will look for them.
APT_GET = """
echo "apt-get $1 $DEBIAN_FRONTEND: $*" >>"$calls"
[ "$1" = install ] || exit 0
for word in "$@"; do
    case $word in
        gcc) printf '#!/bin/sh\\necho /lib/crt1.o\\n' >"$bin/cc" && chmod +x "$bin/cc" ;;
        cmake | nasm) printf '#!/bin/sh\\n' >"$bin/$word" && chmod +x "$bin/$word" ;;
        python3-venv) : >"$machine/ensurepip" ;;
        chromium | strace | git | g++ | debootstrap) printf '#!/bin/sh\\n' >"$bin/$word" && chmod +x "$bin/$word" ;;
        musl-tools) printf '#!/bin/sh\\n' >"$bin/musl-gcc" && chmod +x "$bin/musl-gcc" ;;
        openmpi-bin) printf '#!/bin/sh\\n' >"$bin/mpirun.openmpi" && chmod +x "$bin/mpirun.openmpi" ;;
        libopenmpi-dev) printf '#!/bin/sh\\n' >"$bin/mpicc.openmpi" && chmod +x "$bin/mpicc.openmpi" ;;
        mpich) printf '#!/bin/sh\\n' >"$bin/mpirun.mpich" && chmod +x "$bin/mpirun.mpich" ;;
        moosefs-master) printf '#!/bin/sh\\n' >"$bin/mfsmaster" && chmod +x "$bin/mfsmaster" ;;
        moosefs-chunkserver) printf '#!/bin/sh\\n' >"$bin/mfschunkserver" && chmod +x "$bin/mfschunkserver" ;;
        moosefs-client) printf '#!/bin/sh\\n' >"$bin/mfsmount" && chmod +x "$bin/mfsmount" ;;
        slurm-wlm) for each in slurmctld slurmd srun; do printf '#!/bin/sh\\n' >"$bin/$each" && chmod +x "$bin/$each"; done ;;
        munge) printf '#!/bin/sh\\n' >"$bin/munged" && chmod +x "$bin/munged" ;;
        iproute2)
            printf '#!/bin/sh\\n' >"$bin/ip" && chmod +x "$bin/ip"
            printf '#!/bin/sh\\n' >"$bin/tc" && chmod +x "$bin/tc" ;;
    esac
done
"""

# Answers the probe as the real one does; `-m venv DIR` makes a python that only knows pip and only pretends.
PYTHON3 = """
case "$*" in
    *"-I -c "*)
        [ -e "$machine/ensurepip" ] && whole=1 || whole=0
        echo "$(cat "$machine/python_ok") $whole 3.11.2 .cpython-311-x86_64-linux-gnu.so /usr" ;;
    *"-m venv "*)
        echo venv >>"$calls"
        for venv in "$@"; do :; done
        mkdir -p "$venv/bin" && cat "$machine/venv-python" >"$venv/bin/python" && chmod +x "$venv/bin/python" ;;
    *) exit 9 ;;
esac
"""

# What it cannot install is a word in `offline`, or all if that is empty; headers for building from source are there.
VENV_PYTHON = """
case "$*" in *sysconfig*) echo "$machine" && : >"$machine/Python.h" && exit 0 ;; esac
echo pip >>"$calls"
sleep 0.3
[ ! -e "$machine/offline" ] && exit 0
[ -s "$machine/offline" ] || exit 1
case "$*" in *"$(cat "$machine/offline")"*) exit 1 ;; esac
"""


class Machine:
    """A stubbed machine; by default an ordinary user's, with all in place."""

    def __init__(self, home: Path):
        self.home = home
        self.bin = home / "bin"
        self.calls_file = home / "calls"
        self.bin.mkdir(parents=True)
        self.calls_file.touch()
        for tool in REAL_TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.write("python_ok", "1")
        self.write("ensurepip", "")
        self.write("venv-python", self.script(VENV_PYTHON))
        self.stub("cc", "echo /lib/crt1.o")
        self.stub("cmake", "exit 9")
        self.stub("nasm", "exit 9")
        self.stub("uname", "echo x86_64")
        self.stub("cargo", "echo 'cargo 1.9999.0'")
        self.stub("python3", PYTHON3)
        self.stub("apt-get", APT_GET)
        self.user_without_sudo()

    def write(self, name: str, text: str) -> None:
        (self.home / name).write_text(text, encoding="utf-8")

    def script(self, body: str) -> str:
        names = f'machine="{self.home}" bin="{self.bin}" calls="{self.calls_file}"'
        return f"#!/bin/sh\n{names}\n{body}\n"

    def stub(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(self.script(body), encoding="utf-8")
        path.chmod(0o755)

    def lacks(self, *names: str) -> None:
        for name in names:
            (self.home / "ensurepip" if name == "ensurepip" else self.bin / name).unlink()

    def user_without_sudo(self) -> None:
        self.stub("id", "echo 1000")
        self.stub("sudo", "exit 1")

    def user_with_sudo(self) -> None:
        self.stub("id", "echo 1000")
        self.stub("sudo", '[ "$1" = -n ] || exit 1; shift; [ "$1" = true ] || echo sudo >>"$calls"; exec "$@"')

    def root_without_sudo(self) -> None:
        self.stub("id", "echo 0")
        self.lacks("sudo")

    def setup(self, *words: str, root: Path = ROOT, **env: str | None) -> subprocess.CompletedProcess:
        """Runs setup.sh; a variable given as None is unset."""
        environ = {"PATH": str(self.bin), "HOME": str(self.home)} | env
        return subprocess.run(
            [root / "tools" / "setup.sh", *words],
            env={name: value for name, value in environ.items() if value is not None},
            check=False,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
        )

    def calls(self) -> list[str]:
        return self.calls_file.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def machine(tmp_path):
    # A space in every path, for all tests.
    return Machine(tmp_path / "a home")


@pytest.fixture
def other_checkout(tmp_path):
    """A second checkout, which asks for Rust 1.88."""
    checkout = tmp_path / "other checkout"
    (checkout / "tools").mkdir(parents=True)
    (checkout / "Cargo.toml").write_text('[workspace.package]\nrust-version = "1.88"\n', encoding="utf-8")
    for name in ("setup.sh", "requirements-test.txt"):
        shutil.copy(ROOT / "tools" / name, checkout / "tools")
    return checkout


def assert_fails_with_one_line(done: subprocess.CompletedProcess, *parts: str) -> None:
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr


UPDATE = "apt-get update noninteractive: update -qq"


def test_silent_when_nothing_is_missing(machine):
    done = machine.setup("build")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.calls() == []


def test_root_installs_all_missing_packages_at_once(machine):
    machine.root_without_sudo()
    machine.lacks("cc", "ensurepip")
    done = machine.setup("build", "venv")
    assert done.returncode == 0, done.stderr
    update, install, *rest = machine.calls()
    assert update == UPDATE
    assert install.startswith("apt-get install noninteractive: install -y ")
    assert install.endswith(" gcc libc6-dev python3-venv")
    assert rest == ["venv", "pip"]


def test_sudo_installs_when_it_asks_no_password(machine):
    machine.user_with_sudo()
    machine.lacks("cc")
    done = machine.setup("build")
    assert done.returncode == 0, done.stderr
    assert machine.calls()[:3] == ["sudo", UPDATE, "sudo"]
    assert machine.calls()[3].endswith(" gcc libc6-dev")


def test_without_root_or_sudo_one_line_names_all_packages(machine):
    machine.lacks("cc", "ensurepip")
    done = machine.setup("build", "venv")
    assert_fails_with_one_line(done, "apt-get install gcc libc6-dev python3-venv")
    assert machine.calls() == []


def test_without_apt_one_line_names_the_packages_even_for_root(machine):
    machine.root_without_sudo()
    machine.lacks("cc", "apt-get")
    assert_fails_with_one_line(machine.setup("build"), "gcc libc6-dev")


def test_a_compiler_that_cannot_link_counts_as_missing(machine):
    machine.stub("cc", '[ "$1" = -print-file-name=crt1.o ] && echo crt1.o && exit 0; exit 1')
    assert_fails_with_one_line(machine.setup("build"), "gcc libc6-dev")


def test_what_builds_the_image_decoder_is_installed_too(machine):
    machine.user_with_sudo()
    machine.lacks("cmake", "nasm")
    done = machine.setup("build")
    assert done.returncode == 0, done.stderr
    assert machine.calls()[3].endswith(" cmake nasm")


def test_other_processors_need_no_assembler(machine):
    machine.stub("uname", "echo aarch64")
    machine.lacks("nasm")
    done = machine.setup("build")
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_python_is_a_missing_package(machine):
    machine.lacks("python3")
    assert_fails_with_one_line(machine.setup("venv"), "python3 python3-venv")


def test_old_python_is_named(machine):
    machine.write("python_ok", "0")
    assert_fails_with_one_line(machine.setup("venv"), "python3 is not Python 3.11 or newer")


def test_packages_that_do_not_help_are_named(machine):
    machine.root_without_sudo()
    machine.lacks("ensurepip")
    machine.stub("apt-get", 'echo apt-get >>"$calls"')
    done = machine.setup("venv")
    assert done.returncode == 1
    assert "still missing after apt-get install: python3-venv" in done.stderr


def test_root_installs_a_browser(machine):
    machine.root_without_sudo()
    done = machine.setup("browser")
    assert done.returncode == 0, done.stderr
    assert machine.calls()[1].endswith(" chromium")
    machine.calls_file.write_text("")
    assert machine.setup("browser").stderr == ""
    assert machine.calls() == []


@pytest.mark.parametrize("browser", ["chromium", "chromium-browser", "google-chrome"])
def test_a_browser_that_is_there_is_taken(machine, browser):
    machine.stub(browser, "exit 0")
    done = machine.setup("browser")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_root_or_sudo_one_line_names_the_browser_and_the_rest_goes_on(machine):
    done = machine.setup("build", "venv", "browser")
    assert done.returncode == 0
    (line, *_) = done.stderr.splitlines()
    assert "skipped" in line and "sudo apt-get install chromium" in line
    assert machine.calls() == ["venv", "pip"]


def test_a_browser_that_cannot_be_installed_is_no_failure(machine):
    machine.root_without_sudo()
    machine.stub("apt-get", "exit 100")
    done = machine.setup("browser")
    assert done.returncode == 0
    assert "could not install: chromium" in done.stderr
    assert "skipped" in done.stderr.splitlines()[-1]


MPI = " openmpi-bin mpich libopenmpi-dev"
MOOSEFS = " moosefs-master moosefs-chunkserver moosefs-client iproute2"


def test_root_installs_what_tests_look_with_from_outside(machine):
    machine.root_without_sudo()
    done = machine.setup("tools")
    assert done.returncode == 0, done.stderr
    update, tools, mpi, moosefs, slurm = machine.calls()
    assert update == UPDATE
    assert tools.endswith(" strace git g++ musl-tools")
    assert mpi.endswith(MPI)
    assert moosefs.endswith(MOOSEFS)
    assert slurm.endswith(" slurm-wlm libpmix-dev munge")
    machine.calls_file.write_text("")
    assert machine.setup("tools").stderr == ""
    assert machine.calls() == []


def test_who_is_not_root_needs_no_shared_file_system(machine):
    machine.user_with_sudo()
    done = machine.setup("tools")
    assert done.returncode == 0, done.stderr
    tools, mpi = (call for call in machine.calls() if call.startswith("apt-get install"))
    assert tools.endswith(" strace git g++ musl-tools")
    assert mpi.endswith(MPI)


def test_without_root_or_sudo_one_line_names_the_tools_and_the_rest_goes_on(machine):
    done = machine.setup("build", "venv", "tools")
    assert done.returncode == 0
    tools, mpi, *_ = done.stderr.splitlines()
    assert "skipped" in tools and "sudo apt-get install strace git" in tools
    assert "skipped" in mpi and f"sudo apt-get install{MPI}" in mpi
    assert machine.calls() == ["venv", "pip"]


def test_a_system_without_packages_of_moosefs_gets_strace(machine):
    machine.root_without_sudo()
    machine.stub("apt-get", 'case "$*" in *moosefs*) exit 100 ;; esac\n' + APT_GET)
    done = machine.setup("tools")
    assert done.returncode == 0
    assert (machine.bin / "strace").exists()
    assert f"could not install:{MOOSEFS}" in done.stderr
    assert any(line.endswith("the tests on a shared file system are skipped") for line in done.stderr.splitlines())


def test_what_makes_a_new_debian_is_installed_or_named(machine):
    done = machine.setup("fresh")
    assert_fails_with_one_line(done, "sudo apt-get install debootstrap debian-archive-keyring git")
    machine.root_without_sudo()
    assert machine.setup("fresh").returncode == 0
    assert machine.calls()[0] == UPDATE
    assert machine.calls()[1].endswith(" debootstrap debian-archive-keyring git")


def test_missing_cargo_names_rustup(machine):
    machine.lacks("cargo")
    assert_fails_with_one_line(machine.setup("build"), "cargo is missing", "rustup")


@pytest.mark.parametrize("version", ["1.87.0", "0.99.0"])
def test_old_cargo_names_rustup(machine, other_checkout, version):
    machine.stub("cargo", f"echo 'cargo {version}'")
    done = machine.setup("build", root=other_checkout)
    assert_fails_with_one_line(done, f"cargo {version} is too old; get 1.88", "rustup update")


@pytest.mark.parametrize("version", ["1.88.0", "1.100.0-nightly (abc 2027-01-01)", "2.0.0"])
def test_new_enough_cargo_is_taken(machine, other_checkout, version):
    machine.stub("cargo", f"echo 'cargo {version}'")
    assert machine.setup("build", root=other_checkout).returncode == 0


def test_rustup_adds_missing_lint_components(machine):
    machine.stub("cargo", "case $1 in --version) echo cargo 1.9999.0 ;; fmt) exit 0 ;; *) exit 1 ;; esac")
    machine.stub("rustup", 'echo "rustup $*" >>"$calls"')
    assert machine.setup("lint").returncode == 0
    assert machine.calls() == ["rustup component add clippy"]


def test_second_call_makes_no_pip_call(machine):
    first = machine.setup("venv")
    second = machine.setup("venv")
    assert first.returncode == 0, first.stderr
    assert machine.calls() == ["venv", "pip"]
    assert second.stdout == first.stdout
    assert second.stderr == ""


def test_venv_lives_in_the_cache_and_only_its_path_is_on_stdout(machine):
    (line,) = machine.setup("build", "venv").stdout.splitlines()
    assert Path(line).parent == machine.home / ".cache" / "foresee"
    assert Path(line).name.startswith("venv-") and len(Path(line).name) == len("venv-") + 16
    assert os.access(Path(line) / "bin" / "python", os.X_OK)


def test_another_checkout_shares_the_venv_until_its_requirements_differ(machine, other_checkout):
    first = machine.setup("venv")
    assert machine.setup("venv", root=other_checkout).stdout == first.stdout
    assert machine.calls() == ["venv", "pip"]
    with (other_checkout / "tools" / "requirements-test.txt").open("a") as requirements:
        requirements.write("# changed\n")
    assert machine.setup("venv", root=other_checkout).stdout != first.stdout
    assert machine.calls() == ["venv", "pip"] * 2


def test_interrupted_creation_is_repaired_by_the_next_run(machine):
    machine.write("offline", "")
    failed = machine.setup("venv")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "check the network" in failed.stderr.splitlines()[-1]
    (machine.home / "offline").unlink()
    assert machine.setup("venv").returncode == 0
    assert machine.calls() == ["venv", "pip"] * 2


def test_venv_whose_python_is_gone_is_made_again(machine):
    venv = Path(machine.setup("venv").stdout.strip())
    (venv / "bin" / "python").unlink()
    assert machine.setup("venv").returncode == 0
    assert machine.calls() == ["venv", "pip"] * 2


def test_concurrent_runs_make_the_venv_once(machine):
    with ThreadPoolExecutor(4) as pool:
        runs = [run.result() for run in [pool.submit(machine.setup, "venv") for _ in range(4)]]
    assert [run.returncode for run in runs] == [0] * 4
    assert len({run.stdout for run in runs}) == 1
    assert machine.calls() == ["venv", "pip"]


PARTS = ["torch", "dali", "spdl", "tf.data", "ffcv"]


@pytest.fixture
def bench_machine(machine):
    """With what FFCV is built from, and FFmpeg for SPDL."""
    for tool in ("g++", "pkg-config", "ffmpeg"):
        machine.stub(tool, "exit 0")
    return machine


def test_loaders_to_compare_with_go_into_an_environment_of_their_own(bench_machine):
    done = bench_machine.setup("bench")
    assert done.returncode == 0, done.stderr
    assert bench_machine.calls() == ["venv"] + ["pip"] * (1 + len(PARTS))
    assert done.stdout == bench_machine.setup("bench-or-venv").stdout == bench_machine.setup("bench").stdout
    assert len(bench_machine.calls()) == 2 + len(PARTS)
    assert bench_machine.setup("venv").stdout != done.stdout


def test_a_loader_that_cannot_be_installed_is_named_and_tried_again(bench_machine):
    bench_machine.write("offline", "nvidia-dali")
    done = bench_machine.setup("bench")
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "without" in line] == [
        "foresee: without dali, until the next `make bench-setup` can install it"
    ]
    (bench_machine.home / "offline").unlink()
    bench_machine.calls_file.write_text("")
    assert bench_machine.setup("bench").returncode == 0
    assert bench_machine.calls() == ["pip"]


def test_packages_that_a_loader_needs_are_named(machine):
    done = machine.setup("bench")
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if "without" in line]
    assert len(lines) == 2
    assert "spdl" in lines[0] and lines[0].endswith("sudo apt-get install ffmpeg")
    assert "ffcv" in lines[1] and lines[1].endswith("apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev")


def test_without_other_loaders_the_test_tools_do(machine):
    assert machine.setup("bench-or-venv").stdout == machine.setup("venv").stdout
    assert machine.calls() == ["venv", "pip"]


def test_cache_home_is_honoured_without_home(machine, tmp_path):
    done = machine.setup("venv", HOME=None, XDG_CACHE_HOME=str(tmp_path / "a cache"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}/a cache/foresee/venv-")


@pytest.mark.parametrize("cache", [None, "relative"])
def test_without_home_and_cache_home_one_line_says_so(machine, cache):
    assert_fails_with_one_line(machine.setup("venv", HOME=None, XDG_CACHE_HOME=cache), "set HOME or XDG_CACHE_HOME")


def test_unknown_word_is_refused(machine):
    assert_fails_with_one_line(machine.setup("biuld"), "biuld")
    assert_fails_with_one_line(machine.setup(), "usage")
