"""The demo's dataset: JPEG images in class folders, the same on every machine with the same Pillow.

An image is a few soft patches of colour with grain on it, so that it has about the size of a photograph; how much
grain, and so how many bytes, differs from image to image. A dataset is made under another name and then renamed, so
that one that is there is whole. tools/bench_data.py makes its own images and the rest as here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10
WIDTH, HEIGHT = 500, 375
QUALITY = 90
# Another look of the images is another dataset: count up.
VERSION = 1


def cache_folder() -> Path:
    """Where tools/setup.sh keeps what it makes, too."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "foresee"


@dataclass(frozen=True)
class Kind:
    """How the images of a dataset look, and how they are filed. `save` writes one, given its path and its number."""

    name: str
    classes: int
    save: Callable[[Path, int], None]


def dataset(images: int, progress: Callable[[int], None], cache: Path | None = None, kind: Kind | None = None) -> Path:
    """The folder with so many images, made if it is not there; `progress` is told how many there are so far."""
    kind = kind or DEMO
    folder = (cache or cache_folder()) / f"{kind.name}-{images}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        digits = len(str(kind.classes - 1))
        # No folder stays empty: loaders refuse that.
        folders = [made / f"class-{label:0{digits}}" for label in range(min(kind.classes, images))]
        for each in folders:
            each.mkdir()
        paths = [folders[index % kind.classes] / f"{index:05}.jpg" for index in range(images)]
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            for done, _ in enumerate(pool.map(kind.save, paths, range(images), chunksize=20), 1):
                progress(done)
        made.chmod(0o755)
        _rename(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _rename(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        # Another run was first; its images are the same.
        if not folder.is_dir():
            raise


def _save(path: Path, index: int) -> None:
    _image(index).save(path, "JPEG", quality=QUALITY)


def _image(index: int) -> Image.Image:
    rng = np.random.default_rng(index)
    patches = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    smooth = np.asarray(patches.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), dtype=np.int16)
    grain = int(rng.integers(10, 50))
    pixels = smooth + rng.integers(-grain, grain + 1, (HEIGHT, WIDTH, 1), dtype=np.int16)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


DEMO = Kind(f"demo-{VERSION}", CLASSES, _save)
