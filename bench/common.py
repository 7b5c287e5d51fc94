"""What the benchmarks on emulated storage share: where the command is, a dataset of their own, and runs of the command."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def command() -> Path:
    """FORESEE_BIN (relative to the checkout, or absolute), else the release build."""
    build = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    found = ROOT / os.environ.get("FORESEE_BIN", build / "release" / "foresee")
    if not found.is_file():
        sys.exit(f"no foresee command at {found}; run `cargo build --release --package foresee-cli` or set FORESEE_BIN")
    return found


def make_dataset(folder: Path, samples: int, mean_kb: float) -> list[int]:
    """Ten class folders of noise in files between half and one and a half times the mean size. Returns the sizes in the order of
    the samples."""
    draw = random.Random(0)
    sizes = []
    for number in range(samples):
        # Class by class, so that samples are numbered in the order in which they are made.
        path = folder / f"class{number * 10 // samples}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = draw.randbytes(int(draw.uniform(0.5, 1.5) * mean_kb * 1e3))
        path.write_bytes(content)
        sizes.append(len(content))
    return sizes


def run(scratch: Path, *args: object) -> dict:
    """The JSON that the command prints, with no configuration but the arguments and nothing left behind outside of
    `scratch`."""
    runtime = scratch / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FORESEE_")}
    env = {**kept, "XDG_RUNTIME_DIR": str(runtime), "FORESEE_CATALOG_PATH": "", "FORESEE_CONFIG": ""}
    done = subprocess.run(
        [command(), *map(str, args), "--json"], env=env, cwd=scratch, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"foresee {' '.join(map(str, args))}: {done.stderr}")
    return json.loads(done.stdout)
