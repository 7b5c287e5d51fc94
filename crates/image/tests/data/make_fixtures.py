"""Makes the files beside it: small images of every kind, and what PIL and torchvision make of them.

    pip install numpy pillow torch torchvision
    python make_fixtures.py

For each image `NAME.EXT` there is `NAME.rgb.png`, what `Image.open(...).convert("RGB")` gives. `cases.json` lists runs
of pipelines; their results by torchvision are `case_NN.png`. Random numbers are those of src/draw.rs, written again
here, so that the tests check both. `normalized.f32` and `.f16` are torchvision's tensors of case 0.
"""

import io
import json
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torchvision.transforms.v2 import functional as tv

HERE = Path(__file__).parent
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


# --- Images ----------------------------------------------------------------------------------------------------------


def picture(width, height, seed):
    """Smooth colours, a little noise and sharp edges."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (5, 5, 3), np.uint8)
    base = np.asarray(Image.fromarray(small).resize((width, height), Image.BICUBIC), np.int16)
    noise = random.integers(-6, 7, (height, width, 1), np.int16)
    image = Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        x, y = int(random.integers(0, width)), int(random.integers(0, height))
        colour = tuple(int(value) for value in random.integers(0, 256, 3))
        draw.ellipse([x, y, x + width // 5, y + height // 4], outline=colour, width=2)
    return image


def alpha_of(image):
    ramp = np.linspace(0, 255, image.width).astype(np.uint8)
    return Image.fromarray(np.tile(ramp, (image.height, 1)))


def encoded(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(array, depth, colour, interlaced=False):
    """A PNG by hand, for what PIL does not write. `array` has the depth's type and a last dimension of channels."""
    array = array.astype(">u2") if depth == 16 else array
    steps = [(0, 0, 1, 1)]
    if interlaced:
        steps = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    lines = b""
    for x, y, dx, dy in steps:
        part = array[y::dy, x::dx]
        if part.size:
            lines += b"".join(b"\0" + line.tobytes() for line in part)
    # Two pixels of four bits share a byte.
    width = array.shape[1] * (2 if depth == 4 else 1)
    header = struct.pack(">IIBBBBB", width, array.shape[0], depth, colour, 0, 0, int(interlaced))
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def ycck(image):
    """CMYK whose Adobe marker says that the first three are YCbCr."""
    data = encoded(image.convert("CMYK"), "JPEG", quality=85)
    at = data.index(b"Adobe")
    return data[: at + 11] + b"\x02" + data[at + 12 :]


def turned_chroma(data):
    """4:2:2 with its sampling factors exchanged is 4:4:0 of another picture."""
    at = data.index(b"\xff\xc0")
    assert data[at + 11] == 0x21
    return data[: at + 11] + b"\x12" + data[at + 12 :]


def jpegs():
    image = picture(101, 77, 1)
    exif = Image.Exif()
    exif[0x0112] = 6
    yield "420", encoded(image, "JPEG", quality=88, subsampling="4:2:0")
    yield "422", encoded(image, "JPEG", quality=88, subsampling="4:2:2")
    # As many blocks in both directions, or the exchange would cut the file short.
    yield "440", turned_chroma(encoded(picture(96, 96, 9), "JPEG", quality=88, subsampling="4:2:2"))
    yield "444", encoded(image, "JPEG", quality=88, subsampling="4:4:4")
    yield "progressive", encoded(image, "JPEG", quality=85, progressive=True)
    yield "restarts", encoded(image, "JPEG", quality=85, restart_marker_blocks=3)
    yield "optimized", encoded(image, "JPEG", quality=60, optimize=True)
    yield "rgb", encoded(image, "JPEG", quality=85, keep_rgb=True)
    yield "grey", encoded(image.convert("L"), "JPEG", quality=85)
    yield "cmyk", encoded(image.convert("CMYK"), "JPEG", quality=85)
    yield "ycck", ycck(image)
    yield "rotated", encoded(image, "JPEG", quality=70, exif=exif)
    yield "dot", encoded(picture(1, 1, 2), "JPEG")
    yield "tiny", encoded(picture(7, 5, 3), "JPEG", subsampling="4:2:0")
    yield "line", encoded(picture(300, 1, 4), "JPEG")
    yield "trailing", encoded(image, "JPEG", quality=50) + bytes(100)


def pngs():
    image = picture(45, 33, 5)
    array = np.asarray(image)
    wide = (array.astype(np.uint16) << 8) | np.arange(45, dtype=np.uint16)[None, :, None]
    palette = image.quantize(12)
    yield "plain", encoded(image, "PNG")
    yield "grey", encoded(image.convert("L"), "PNG")
    yield "bits1", encoded(image.convert("1"), "PNG")
    yield "grey4", png(array[:, ::2, :1], 4, 0)
    yield "palette", encoded(palette, "PNG")
    yield "palette_clear", encoded(palette, "PNG", transparency=3)
    yield "palette_bits", encoded(image.quantize(4), "PNG", bits=2)
    yield "rgb_clear", encoded(image, "PNG", transparency=tuple(int(value) for value in array[0, 0]))
    yield "alpha", encoded(Image.merge("RGBA", [*image.split(), alpha_of(image)]), "PNG")
    yield "grey_alpha", encoded(Image.merge("LA", [image.convert("L"), alpha_of(image)]), "PNG")
    yield "wide_grey", png((wide[:, :, :1] >> 7), 16, 0)
    yield "wide_rgb", png(wide, 16, 2)
    yield "wide_grey_alpha", png(wide[:, :, :2], 16, 4)
    yield "wide_alpha", png(np.concatenate([wide, wide[:, :, :1]], axis=2), 16, 6)
    yield "interlaced", png(array, 8, 2, interlaced=True)


def webps():
    image = picture(83, 59, 6)
    clear = Image.merge("RGBA", [*image.split(), alpha_of(image)])
    yield "lossy", encoded(image, "WEBP", quality=80)
    yield "lossless", encoded(image, "WEBP", lossless=True)
    yield "lossy_alpha", encoded(clear, "WEBP", quality=80)
    yield "lossless_alpha", encoded(clear, "WEBP", lossless=True)
    frames = [picture(40, 30, seed) for seed in (7, 8)]
    yield "animated", encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], quality=80)


def write_images():
    for kind, images in (("jpg", jpegs()), ("png", pngs()), ("webp", webps())):
        for name, data in images:
            name = f"{kind}_{name}"
            (HERE / f"{name}.{kind}").write_bytes(data)
            Image.open(io.BytesIO(data)).convert("RGB").save(HERE / f"{name}.rgb.png", optimize=True)


# --- Random numbers, as src/draw.rs ----------------------------------------------------------------------------------


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Draws:
    def __init__(self, key, place):
        self.state = 0
        for part in (*key, place):
            self.state = mix(((self.state + GOLDEN) & MASK) ^ mix(part))

    def next(self):
        self.state = (self.state + GOLDEN) & MASK
        return mix(self.state)

    def between(self, low, high):
        return low + (high - low) * ((self.next() >> 11) / (1 << 53))

    def below(self, count):
        return ((self.next() >> 32) * count) >> 32


# --- Pipelines, as torchvision's v2 transforms -----------------------------------------------------------------------


def draw_crop(draws, width, height, scale, ratio):
    """torchvision's RandomResizedCrop.make_params, with our numbers."""
    for _ in range(10):
        area = width * height * draws.between(*scale)
        aspect = math.exp(draws.between(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = draws.below(height - h + 1)
            return top, draws.below(width - w + 1), h, w
    w, h = width, height
    if width / height < min(ratio):
        h = round(w / min(ratio))
    elif width / height > max(ratio):
        w = round(h * max(ratio))
    return (height - h) // 2, (width - w) // 2, h, w


def step(image, transform, draws):
    """The transformed image and what was drawn."""
    name, *words = transform
    if name == "random_resized_crop":
        size, scale, ratio = words
        crop = draw_crop(draws, image.width, image.height, scale, ratio)
        return tv.resized_crop(image, *crop, size, antialias=True), list(crop)
    if name == "resize":
        size, longer_max = words
        return tv.resize(image, size, max_size=longer_max, antialias=True), None
    if name == "center_crop":
        return tv.center_crop(image, words[0]), None
    flips = draws.between(0, 1) < words[0]
    flip = tv.horizontal_flip if name == "horizontal_flip" else tv.vertical_flip
    return (flip(image) if flips else image), flips


SCALE, RATIO = [0.08, 1.0], [3 / 4, 4 / 3]
PIPELINES = [
    [["random_resized_crop", [40, 40], SCALE, RATIO], ["horizontal_flip", 0.5]],
    [["random_resized_crop", [64, 96], SCALE, RATIO], ["horizontal_flip", 0.5], ["vertical_flip", 0.5]],
    [["random_resized_crop", [24, 24], [0.9, 1.0], [5.0, 6.0]]],
    [["resize", [36], None], ["center_crop", [32, 32]]],
    [["resize", [50], 60], ["center_crop", [64, 48]]],
    [["resize", [31, 83], None], ["vertical_flip", 1.0]],
    [["center_crop", [120, 60]], ["horizontal_flip", 1.0]],
    [["horizontal_flip", 1.0], ["center_crop", [33, 34]]],
    [["resize", [60, 60], None], ["random_resized_crop", [32, 32], SCALE, RATIO]],
    [["center_crop", [130, 130]], ["random_resized_crop", [32, 32], SCALE, RATIO], ["resize", [20, 50], None]],
]
FILES = ["jpg_420.jpg", "jpg_progressive.jpg", "jpg_422.jpg", "png_plain.png", "webp_lossless.webp", "jpg_tiny.jpg"]
KEYS = [(0, 0, 0), (7, 3, 812), (2**63 + 5, 1, 2**40)]


def run(image, pipeline, key):
    drawn = []
    for place, transform in enumerate(pipeline):
        image, draw = step(image, transform, Draws(key, place))
        drawn.append(draw)
    return image, drawn


def write_cases():
    cases = []
    for number, pipeline in enumerate(PIPELINES):
        for turn, key in enumerate(KEYS):
            file = FILES[(number + 2 * turn) % len(FILES)]
            image, drawn = run(Image.open(HERE / file).convert("RGB"), pipeline, key)
            result = f"case_{len(cases):02}.png"
            image.save(HERE / result, optimize=True)
            cases.append({"file": file, "transforms": pipeline, "key": key, "drawn": drawn, "result": result})
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "cases.json").write_text(f"[\n{lines}\n]\n")


def write_tensors():
    image = tv.to_dtype(tv.pil_to_tensor(Image.open(HERE / "case_00.png")), torch.float32, scale=True)
    tensor = tv.normalize(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    (HERE / "normalized.f32").write_bytes(tensor.numpy().astype("<f4").tobytes())
    (HERE / "normalized.f16").write_bytes(tensor.half().numpy().astype("<f2").tobytes())


if __name__ == "__main__":
    write_images()
    write_cases()
    write_tensors()
    draws = Draws((7, 3, 812), 1)
    print("draw.rs, golden numbers:", [draws.next() for _ in range(4)])
