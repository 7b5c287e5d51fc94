"""maturin's build backend, with the library that `foresee run` preloads beside the package's own."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import *  # what a build frontend may ask for, but for the two below

ROOT = Path(__file__).resolve().parents[1]
NAME = "libforesee_preload.so"


def _build_library() -> None:
    """Builds it in the profile that maturin builds in, and puts it where maturin finds it."""
    given = shlex.split(os.environ.get("MATURIN_PEP517_ARGS", ""))
    profiles = [word.partition("=")[2] for word in given if word.startswith("--profile=")]
    profile = profiles[-1] if profiles else "release"
    locked = [word for word in given if word in ("--locked", "--offline", "--frozen")]
    words = ["cargo", "build", "--package", "foresee-preload", "--profile", profile, *locked]
    subprocess.run(words, cwd=ROOT, check=True)
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    folder = target / ("debug" if profile in ("dev", "test") else profile)
    shutil.copy(folder / NAME, ROOT / "python" / "foresee" / NAME)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _build_library()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _build_library()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)
