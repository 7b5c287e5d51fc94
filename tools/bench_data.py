#!/usr/bin/env python3
"""The dataset of `make bench`: 12,000 JPEG files in 100 class folders, 106 KB on average, most of 500 x 375.

    tools/bench_data.py [--images N] [--cache FOLDER]     # prints the folder; makes it if it is not there, 1.3 GB

What decoding costs depends on the bytes, so an image has, like a photograph, detail of all scales: layers of blobs, each
half as large and fainter than the one before, colours in the coarse ones, and grain. How fast they fade, how much grain
there is and how well JPEG keeps it differ from image to image. The same on every machine with the same Pillow.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from demo_data import Kind, dataset
from PIL import Image

CLASSES = 100
# Width, height, and how many in a hundred; landscape and portrait as cameras and the web have them.
SHAPES = [(500, 375, 54), (375, 500, 16), (500, 333, 10), (500, 500, 8), (640, 480, 8), (400, 300, 4)]
# Cells of the coarsest and the finest layer along the longer side.
CELLS = (4, 256)
# Finer layers than this have brightness only.
COLOUR_CELLS = 32
# Another look of the images is another dataset: count up.
VERSION = 1


def save(path: Path, index: int) -> None:
    rng = np.random.default_rng((VERSION, index))
    width, height = SHAPES[rng.choice(len(SHAPES), p=[share / 100 for *_, share in SHAPES])][:2]
    pixels = np.full((height, width, 3), rng.uniform(90, 165, 3), np.float32)
    contrast, fade = 55.0, rng.uniform(0.6, 0.85)
    cells = CELLS[0]
    while cells <= CELLS[1]:
        pixels += contrast * layer(rng, cells, width, height)
        contrast *= fade
        cells *= 2
    pixels += rng.normal(0, rng.uniform(9, 28), (height, width, 1))
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    image.save(path, "JPEG", quality=int(rng.integers(85, 96)))


def layer(rng: np.random.Generator, cells: int, width: int, height: int) -> np.ndarray:
    """Blobs between -1 and 1."""
    across, down = max(2, cells * width // max(width, height)), max(2, cells * height // max(width, height))
    colours = 3 if cells <= COLOUR_CELLS else 1
    noise = rng.integers(0, 256, (down, across, colours), dtype=np.uint8)
    small = Image.fromarray(noise if colours == 3 else noise[..., 0])
    blobs = np.asarray(small.resize((width, height), Image.Resampling.BILINEAR), np.float32) / 127.5 - 1
    return blobs.reshape(height, width, colours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--cache", type=Path)
    args = parser.parse_args()

    def progress(done: int) -> None:
        if sys.stderr.isatty() and (done % 100 == 0 or done == args.images):
            print(f"\rmaking images: {done:,} of {args.images:,}", end="", file=sys.stderr)
            if done == args.images:
                print(file=sys.stderr)

    print(dataset(args.images, progress, args.cache, Kind(f"bench-{VERSION}", CLASSES, save)))


if __name__ == "__main__":
    main()
