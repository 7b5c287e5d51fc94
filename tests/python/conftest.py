"""The package as `make test` puts it together (FORESEE_PACKAGE), else as the debug build left it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_DIR = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
PACKAGE = ROOT / os.environ.get("FORESEE_PACKAGE", BUILD_DIR / "debug" / "python")

if not (PACKAGE / "foresee" / "_native.abi3.so").is_file():
    pytest.exit(f"no package in {PACKAGE}; run `make test`", returncode=1)
sys.path[:0] = [str(PACKAGE), str(Path(__file__).parent), str(ROOT / "tests")]
# A catalog that is saved while a test changes its files would only confuse.
os.environ["FORESEE_CATALOG_PATH"] = ""
for name in ("FORESEE_CONFIG", "RANK", "WORLD_SIZE", "SLURM_PROCID", "RUST_LOG"):
    os.environ.pop(name, None)


@pytest.fixture
def folder(tmp_path):
    """Call it with a number of samples; it returns their paths."""
    from made import content

    def make(samples: int, size: int | None = None) -> list[Path]:
        paths = [tmp_path / f"{sample:04}.bin" for sample in range(samples)]
        for sample, path in enumerate(paths):
            path.write_bytes(content(sample, size))
        return paths

    return make


@pytest.fixture
def files(folder):
    """Call it with a number of samples; it returns a dataset whose labels are three times the samples' numbers."""

    def make(samples: int, size: int | None = None, **options):
        import foresee

        return foresee.Files(folder(samples, size), [3 * sample for sample in range(samples)], **options)

    return make


@pytest.fixture
def script(tmp_path):
    """Runs Python code in a process of its own; returns how it ended."""

    def run(code: str, *args: object, timeout_s: float = 60, prefix: tuple[str, ...] = (), **env: str):
        path = tmp_path / "script.py"
        path.write_text(code)
        return subprocess.run(
            [*prefix, sys.executable, path, *map(str, args)],
            env={**os.environ, "PYTHONPATH": str(PACKAGE), **env},
            timeout=timeout_s,
            capture_output=True,
            check=False,
            encoding="utf-8",
        )

    return run
