"""tools/fresh.sh with real namespaces and mounts, on a tiny project and a tiny system: nothing is downloaded.

The system is what a stub in debootstrap's place makes: copies of the few commands that the script and the project's
Makefile call. The project shows what it sees there.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMMANDS = ("sh", "make", "date", "umount", "cat", "env", "ls", "sleep")
START_S_MAX = 30

MAKEFILE = """
demo:
	@echo variables: $$(env)
	@echo files: $$(ls -A / /root /foresee /dev/shm)
	@cat /proc/self/mounts | while read -r from at rest; do echo "mounted: $$at"; done
	@if [ -n "$$PIP_CERT" ]; then cat "$$PIP_CERT"; fi
test:
	@test ! -e waits || { : >started; sleep 86399; }
	@test ! -e fails
"""

# What is given last may be a mirror; the folder is the one that has to be made.
DEBOOTSTRAP = """
for word in "$@"; do case $word in */root) new=$word ;; esac; done
mkdir -p "$new/usr/bin" "$new/usr/sbin" "$new/etc/apt/apt.conf.d"
cd "$new"
mkdir -p dev mnt opt proc root sys tmp
ln -s usr/bin bin
for each in $commands; do
    from=$(command -v $each)
    cp -L "$from" "usr/bin/$each"
    for library in $(ldd "$from" | grep -o '/[^ ]*'); do
        mkdir -p ".${library%/*}"
        cp -L "$library" ".$library"
    done
done
printf '#!/bin/sh\\n' >usr/sbin/update-ca-certificates
chmod +x usr/sbin/update-ca-certificates
"""


class Project:
    """A checkout that has been committed, and a machine with Rust and debootstrap around it."""

    def __init__(self, place: Path):
        self.checkout = place / "checkout"
        self.folder = place / "fresh"
        self.bin = place / "bin"
        rust = place / "rust"
        (self.checkout / "tools").mkdir(parents=True)
        self.bin.mkdir()
        (rust / "bin").mkdir(parents=True)
        for name in ("fresh.sh", "setup.sh"):
            shutil.copy(ROOT / "tools" / name, self.checkout / "tools")
        self._stub(self.bin / "debootstrap", f'set -e\ncommands="{" ".join(COMMANDS)}"\n{DEBOOTSTRAP}')
        self._stub(self.bin / "rustc", f"echo '{rust}'")
        self._stub(rust / "bin" / "cargo", "exit 0")
        (self.checkout / "Makefile").write_text(MAKEFILE)
        self.git("init", "--quiet")
        self.commit()

    def _stub(self, path: Path, body: str) -> None:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def not_root(self) -> None:
        self._stub(self.bin / "id", "echo 1000")

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        subprocess.run(["git", "-C", self.checkout, *who, *words], check=True)

    def commit(self, *files: str) -> None:
        for name in files:
            (self.checkout / name).touch()
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "A state")

    def start(self, **variables: str) -> subprocess.Popen:
        # Where tests run in the background these signals may be ignored, and a shell could not undo that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        return subprocess.Popen(
            [self.checkout / "tools" / "fresh.sh", self.folder],
            env={"PATH": f"{self.bin}:{SYSTEM_PATH}", "HOME": str(self.checkout.parent)} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def run(self, **variables: str) -> tuple[int, str, str]:
        process = self.start(**variables)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def mounts(self) -> list[str]:
        return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self.folder) in line]


@pytest.fixture
def project(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes namespaces and mounts")
    if not shutil.which("git"):
        pytest.skip("no git: install Debian's package git")
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this root may make no namespaces")
    return Project(tmp_path)


def test_both_commands_run_in_a_new_system_and_nothing_is_left(project):
    code, output, errors = project.run()
    assert code == 0, output + errors
    *_, demo, test = output.splitlines()
    assert demo.startswith("==> make demo: ") and demo.endswith(" s, exit 0")
    assert test.startswith("==> make test: ") and test.endswith(" s, exit 0")
    assert project.mounts() == []
    assert not project.folder.exists()


def test_nothing_of_the_machine_outside_is_seen(project, tmp_path):
    shared = Path("/dev/shm") / f"foresee-test-{os.getpid()}"
    shared.touch()
    try:
        code, output, errors = project.run(SECRET="outside", CARGO_REGISTRY_TOKEN="outside")
    finally:
        shared.unlink()
    assert code == 0, errors
    assert "outside" not in output
    assert shared.name not in output
    mounted = {line.removeprefix("mounted: ") for line in output.splitlines() if line.startswith("mounted: ")}
    assert {"/", "/proc", "/dev", "/dev/shm", "/opt/rust"} <= mounted
    assert not any(at.startswith(("/mnt", str(tmp_path))) for at in mounted)


def test_package_managers_keep_their_settings(project, tmp_path):
    certificate = tmp_path / "certificate.pem"
    certificate.write_text("a certificate\n")
    settings = {"PIP_CERT": str(certificate), "CARGO_NET_RETRY": "7", "https_proxy": "http://proxy:1"}
    code, output, errors = project.run(**settings, FORESEE_SKIP_TORCH="1")
    assert code == 0, errors
    (variables,) = (line for line in output.splitlines() if line.startswith("variables: "))
    assert {f"{name}={value}" for name, value in settings.items()} <= set(variables.split())
    assert "FORESEE_SKIP_TORCH=1" in variables
    assert "a certificate" in output.splitlines()


def test_a_command_that_fails_is_told_and_its_system_kept_until_the_next_run(project):
    project.commit("fails")
    code, output, errors = project.run()
    assert code == 1
    assert output.splitlines()[-1].endswith(" s, exit 2")
    assert errors.splitlines()[-1] == f"foresee: failed; {project.folder} is kept to look at"
    assert (project.folder / "root" / "foresee" / "fails").exists()
    assert (project.mounts(), project.folder.stat().st_mode & 0o777) == ([], 0o700)
    project.git("rm", "--quiet", "fails")
    project.commit()
    assert project.run()[0] == 0
    assert not project.folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_in_the_middle_it_leaves_neither_mounts_nor_processes(project, number):
    project.commit("waits")
    process = project.start()
    deadline = time.monotonic() + START_S_MAX
    while not (project.folder / "root" / "foresee" / "started").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    code, _, refusal = project.run()
    assert (code, len(refusal.splitlines())) == (1, 1) and "another `make fresh` is in" in refusal
    process.send_signal(number)
    # Ends only when nothing inside holds its pipe any more.
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "stopped" in errors
    assert project.mounts() == []
    shutil.rmtree(project.folder)


def test_what_is_not_committed_stays_out_with_a_warning(project):
    (project.checkout / "fails").touch()
    code, _, errors = project.run()
    assert code == 0, errors
    assert "WARNING: what is not committed does not go in" in errors


def test_a_folder_of_somebody_else_is_refused(project):
    project.folder.mkdir()
    (project.folder / "thesis").touch()
    code, _, errors = project.run()
    assert (code, len(errors.splitlines())) == (1, 1)
    assert "was not made by `make fresh`" in errors and "FRESH=FOLDER" in errors
    assert (project.folder / "thesis").exists()


def test_who_is_not_root_is_told_how(project):
    project.not_root()
    code, _, errors = project.run()
    assert (code, len(errors.splitlines())) == (1, 1)
    assert 'sudo env "HOME=$HOME" "PATH=$PATH" make fresh' in errors
    assert not project.folder.exists()
