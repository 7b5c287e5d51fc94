"""Where the command is that tests run."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def command_path(*beside: str) -> Path:
    """FORESEE_BIN (relative to the checkout, or absolute), else the release build, else the debug build; with the files that
    have to be beside it."""
    if named := os.environ.get("FORESEE_BIN"):
        candidates = [ROOT / named]
    else:
        build_dir = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
        candidates = [build_dir / profile / "foresee" for profile in ("release", "debug")]
    for candidate in candidates:
        if candidate.is_file() and all((candidate.parent / name).is_file() for name in beside):
            return candidate
    with_all = " with ".join(["foresee command", *beside])
    pytest.fail(f"no {with_all} at {' or '.join(map(str, candidates))}; run `make test`", pytrace=False)
