"""The package as `make test-torch` puts it together (FORESEE_PACKAGE), else as the debug build left it; skipped without torch."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_DIR = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
PACKAGE = ROOT / os.environ.get("FORESEE_PACKAGE", BUILD_DIR / "debug" / "python")
NEEDED = ("torch", "torchvision", "PIL")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

if not (PACKAGE / "foresee" / "_native.abi3.so").is_file():
    pytest.exit(f"no package in {PACKAGE}; run `make test-torch`", returncode=1)
sys.path[:0] = [str(PACKAGE), str(ROOT / "tests")]
os.environ["FORESEE_CATALOG_PATH"] = ""
for name in ("FORESEE_CONFIG", "RANK", "WORLD_SIZE", "SLURM_PROCID", "RUST_LOG"):
    os.environ.pop(name, None)
# Modules that import torch cannot even be looked at without it.
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header():
    return [f"tests/torch: skipped, missing: {', '.join(MISSING)}"] if MISSING else []


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder with 37 images of four classes."""
    import numpy as np
    from PIL import Image

    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(7)
    for number in range(37):
        folder = root / f"class{number % 4}"
        folder.mkdir(exist_ok=True)
        pixels = random.integers(0, 256, (40 + number, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    return root


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """41 files of 48 bytes, and their labels."""
    root = tmp_path_factory.mktemp("rows")
    paths = [root / f"{number:03}.bin" for number in range(41)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes((number * 7 + place * 3) % 256 for place in range(48)))
    return paths, [number % 5 for number in range(41)]
