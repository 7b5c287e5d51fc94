"""Makes the files beside it: small images of every kind, and what PIL and torchvision make of them.

    pip install numpy pillow torch torchvision
    python make_fixtures.py [KIND ...]

With kinds of images (`KINDS`) only these are made. For each image `NAME.EXT` there is `NAME.rgb.png`, what `Image.open(...).convert("RGB")` gives. `cases.json` lists runs
of pipelines; their results by torchvision are `case_NN.png`. Random numbers are those of src/draw.rs, written again
here, so that the tests check both. `normalized.f32` and `.f16` are torchvision's tensors of case 0.
"""

import io
import json
import math
import struct
import sys
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


def bmp(lines, size, bits, *, palette=b"", masks=b"", compression=0, header=40, top_down=False):
    """A BMP by hand. `lines` are the encoded pixels as they are stored, `masks` those of fields of bits."""
    width, height = size
    if header == 12:
        info = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        high = -height if top_down else height
        colours = len(palette) // 4
        info = struct.pack("<IiiHHIIiiII", header, width, high, 1, bits, compression, len(lines), 0, 0, colours, 0)
        info = (info + masks).ljust(header, b"\0")
    at = 14 + len(info) + len(palette)
    return b"BM" + struct.pack("<IHHI", at + len(lines), 0, 0, at) + info + palette + lines


def bmp_lines(array):
    """Lines from the bottom up, each a multiple of four bytes."""
    lines = [line.tobytes() for line in array[::-1]]
    return b"".join(line + bytes(-len(line) % 4) for line in lines)


def runs_of_8(array):
    """RLE8 with runs, absolute pixels, skips and what does not fit a line."""
    out = b""
    for number, line in enumerate(array[::-1]):
        out += bytes([5, int(line[5]), 0, 3]) + line[:3].tobytes() + b"\0"
        rest = line[8:].tobytes()
        if number == 2:
            out += bytes([0, 2, 7, 1])
            continue
        if number == 3:
            out += bytes([255, 9, 0, 0])
            continue
        out += bytes([0, len(rest)]) + rest + bytes(len(rest) % 2) + b"\0\0"
    return out + b"\0\1"


def runs_of_4(array):
    out = b""
    for line in array[::-1]:
        out += bytes([7, (int(line[0]) << 4) | int(line[1]), 0, 5, 0x12, 0x34, 0x50, 0])
        out += bytes([len(line) - 12, 0xAB, 0, 0])
    return out + b"\0\1"


def bmps():
    image = picture(29, 21, 10)
    size = image.size
    array = np.asarray(image)
    palette = image.quantize(200)
    indices = np.asarray(palette)
    colours = np.asarray(palette.getpalette()).reshape(-1, 3)[:200, ::-1].astype(np.uint8)
    quads = np.pad(colours, ((0, 0), (0, 1))).tobytes()
    few = np.asarray(image.quantize(11))
    four = np.pad(few, ((0, 0), (0, 1)))
    four = (four[:, ::2] << 4) | four[:, 1::2]
    blue, green, red = (array[:, :, at].astype(np.uint16) for at in (2, 1, 0))
    fields = "<u2"
    half = ((red >> 3) << 10 | (green >> 3) << 5 | (blue >> 3)).astype(fields)
    most = ((red >> 3) << 11 | (green >> 2) << 5 | (blue >> 3)).astype(fields)
    clear = np.dstack([array[:, :, ::-1], np.asarray(alpha_of(image))])
    yield "plain", encoded(image, "BMP")
    yield "grey", encoded(image.convert("L"), "BMP")
    yield "bits1", encoded(image.convert("1"), "BMP")
    yield "palette", encoded(palette, "BMP")
    yield "palette_short", bmp(bmp_lines(indices), size, 8, palette=quads[:480])
    yield "palette4", bmp(bmp_lines(four), size, 4, palette=quads[: 4 * 11])
    yield "palette1", bmp(bmp_lines(np.packbits(few > 4, axis=1)), size, 1, palette=quads[:8])
    yield "old", bmp(bmp_lines(array[:, :, ::-1]), size, 24, header=12)
    yield "old_palette", bmp(bmp_lines(indices), size, 8, palette=colours.tobytes() + bytes(56 * 3), header=12)
    yield "top_down", bmp(bmp_lines(array[::-1, :, ::-1]), size, 24, top_down=True)
    yield "bits15", bmp(bmp_lines(half), size, 16)
    yield "bits16", bmp(bmp_lines(most), size, 16, compression=3, masks=struct.pack("<III", 0xF800, 0x7E0, 0x1F))
    yield "bits32", bmp(bmp_lines(clear), size, 32)
    masks = struct.pack("<IIII", 0xFF, 0xFF00, 0xFF0000, 0xFF000000)
    yield "alpha", bmp(bmp_lines(clear), size, 32, compression=3, masks=masks, header=108)
    masks = struct.pack("<IIII", 0xFF000000, 0xFF0000, 0xFF00, 0)
    yield "high_fields", bmp(bmp_lines(clear), size, 32, compression=3, masks=masks, header=124)
    yield "rle8", bmp(runs_of_8(indices), size, 8, palette=quads, compression=1)
    yield "rle4", bmp(runs_of_4(few), size, 4, palette=quads[:64], compression=2)


def pnm(kind, size, body, most=None):
    head = f"{kind}\n# made by hand\n{size[0]} {size[1]}\n" + ("" if most is None else f"{most}\n")
    return head.encode() + body


def pnms():
    image = picture(29, 21, 11)
    size = image.size
    array = np.asarray(image)
    grey = np.asarray(image.convert("L"))
    wide = array.astype(">u2") * 257
    bits = np.asarray(image.convert("1"))
    words = "\n".join(" ".join(str(value) for value in line) for line in (array // 3).reshape(len(array), -1))
    yield "p6", encoded(image, "PPM")
    yield "p5", encoded(image.convert("L"), "PPM")
    yield "p4", encoded(image.convert("1"), "PPM")
    yield "p6_most", pnm("P6", size, (array // 2).tobytes(), 101)
    yield "p6_wide", pnm("P6", size, wide.tobytes(), 65535)
    yield "p6_wide_most", pnm("P6", size, (wide // 7).astype(">u2").tobytes(), 9000)
    yield "p5_most", pnm("P5", size, (grey // 17).tobytes(), 15)
    yield "p5_wide", pnm("P5", size, (grey.astype(">u2") * 2).astype(">u2").tobytes(), 65535)
    yield "p5_wide_most", pnm("P5", size, (grey.astype(">u2") // 64).astype(">u2").tobytes(), 1000)
    yield "p3", pnm("P3", size, words.replace("\n", " # a comment\n", 3).encode(), 86)
    yield "p2", pnm("P2", size, " ".join(str(value) for value in grey.ravel()).encode(), 255)
    yield "p2_wide", pnm("P2", size, " ".join(str(value // 50) for value in grey.ravel()).encode(), 700)
    yield "p1", pnm("P1", size, "\n".join("".join("01"[not bit] for bit in line) for line in bits).encode())


def gif(indices, *, screen=None, at=(0, 0), palette=b"", local=b"", clear=None):
    """A GIF by hand: LZW that says `clear the table` before each pixel or two, so that no code grows."""
    height, width = indices.shape
    screen = screen or (width, height)

    def table(colours):
        bits = max((len(colours) // 3 - 1).bit_length(), 1)
        return (0x80 | (bits - 1), colours.ljust(3 << bits, b"\0")) if colours else (0, b"")

    flags, colours = table(palette)
    out = b"GIF89a" + struct.pack("<HHBBB", *screen, flags, 3, 0) + colours
    if clear is not None:
        out += struct.pack("<BBBBHBB", 0x21, 0xF9, 4, 1, 0, clear, 0)
    flags, colours = table(local)
    out += b"," + struct.pack("<HHHHB", *at, width, height, flags) + colours + b"\x08"
    number = count = 0
    for value in indices.ravel():
        number |= (256 | int(value) << 9) << (18 * count)
        count += 1
    number |= 257 << (18 * count)
    data = number.to_bytes((18 * count + 9 + 7) // 8, "little")
    for start in range(0, len(data), 255):
        part = data[start : start + 255]
        out += bytes([len(part)]) + part
    return out + b"\0;"


def gifs():
    image = picture(29, 21, 12)
    palette = image.quantize(60)
    colours = bytes(palette.getpalette())[:180]
    small = np.asarray(palette)[:12, :15]
    yield "plain", encoded(palette, "GIF", interlace=0)
    yield "interlaced", encoded(palette, "GIF", interlace=1)
    yield "grey", encoded(image.convert("L"), "GIF")
    yield "clear", encoded(palette, "GIF", transparency=7)
    yield "two_colours", encoded(image.convert("1"), "GIF")
    frames = [picture(20, 15, seed).quantize(50) for seed in (13, 14)]
    yield "animated", encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    yield "inside", gif(small, screen=(28, 20), at=(9, 5), palette=colours)
    yield "inside_clear", gif(small, screen=(28, 20), at=(9, 5), palette=colours, clear=21)
    yield "outside", gif(small, screen=(10, 8), at=(3, 2), palette=colours)
    yield "local", gif(small, palette=bytes(24), local=colours)
    yield "palette_short", gif(small, palette=colours[: 3 * 16])


def tiff(order, size, tags, chunks, tile=None):
    """A TIFF by hand. `order` is `<` or `>`, `tags` are shorts, `chunks` strips, or tiles of size `tile`."""
    tags = {256: [size[0]], 257: [size[1]], 259: [1], **tags}
    places, lengths = (273, 279) if tile is None else (324, 325)
    if tile is not None:
        tags |= {322: [tile[0]], 323: [tile[1]]}
    body = b""
    starts = []
    for part in chunks:
        starts.append(8 + len(body))
        body += part + bytes(len(part) % 2)
    tags |= {places: starts, lengths: [len(part) for part in chunks]}
    entries = b""
    beside = b""
    first = 8 + len(body)
    behind = first + 2 + 12 * len(tags) + 4
    for tag, values in sorted(tags.items()):
        # JPEG tables are bytes, places may be large, everything else is short.
        kind, code = (7, "B") if tag == 347 else (4, "I") if tag in (places, lengths) else (3, "H")
        data = struct.pack(f"{order}{len(values)}{code}", *values)
        if len(data) > 4:
            place = struct.pack(f"{order}I", behind + len(beside))
            beside += data + bytes(len(data) % 2)
            data = place
        entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + data.ljust(4, b"\0")
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, first)
    return head + body + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + beside


def big_tiff(array):
    """One strip of RGB behind 64-bit offsets."""
    height, width, _ = array.shape
    tags = {256: width, 257: height, 258: 8, 259: 1, 262: 2, 273: 16, 277: 3, 279: array.size}
    entries = b"".join(struct.pack("<HHQQ", tag, 16, 1, value) for tag, value in sorted(tags.items()))
    data = array.tobytes() + bytes(array.size % 2)
    head = b"II" + struct.pack("<HHHQ", 43, 8, 0, 16 + len(data))
    return head + data + struct.pack("<Q", len(tags)) + entries + bytes(8)


def tiles_of(array, width, height):
    """From left to right and downwards, the last ones filled up."""
    down, across = -(-array.shape[0] // height), -(-array.shape[1] // width)
    fill = ((0, down * height - array.shape[0]), (0, across * width - array.shape[1]))
    padded = np.pad(array, fill + ((0, 0),) * (array.ndim - 2), mode="edge")
    for y in range(0, down * height, height):
        for x in range(0, across * width, width):
            yield padded[y : y + height, x : x + width].tobytes()


def tiffs_by_pil(image):
    clear = Image.merge("RGBA", [*image.split(), alpha_of(image)])
    palette = image.quantize(77)
    yield "plain", encoded(image, "TIFF")
    yield "grey", encoded(image.convert("L"), "TIFF")
    yield "grey_alpha", encoded(Image.merge("LA", [image.convert("L"), alpha_of(image)]), "TIFF")
    yield "bits1", encoded(image.convert("1"), "TIFF")
    yield "alpha", encoded(clear, "TIFF")
    yield "cmyk", encoded(image.convert("CMYK"), "TIFF")
    yield "palette", encoded(palette, "TIFF")
    for name in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        short = name.removeprefix("tiff_adobe_").removeprefix("tiff_")
        yield short, encoded(image, "TIFF", compression=name)
        yield f"{short}_palette", encoded(palette, "TIFF", compression=name)
    yield "lzw_predicted", encoded(image, "TIFF", compression="tiff_lzw", tiffinfo={317: 2})
    yield "lzw_bits1", encoded(image.convert("1"), "TIFF", compression="tiff_lzw")
    yield "deflate_alpha", encoded(clear, "TIFF", compression="tiff_adobe_deflate", tiffinfo={317: 2})
    yield "jpeg", encoded(image, "TIFF", compression="jpeg", quality=85)
    yield "jpeg_alpha", encoded(clear, "TIFF", compression="jpeg", quality=85)
    yield "jpeg_grey", encoded(image.convert("L"), "TIFF", compression="jpeg", quality=85)
    wide = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 2)
    yield "wide_grey", encoded(wide, "TIFF")
    yield "wide_grey_lzw", encoded(wide, "TIFF", compression="tiff_lzw", tiffinfo={317: 2})
    yield "integers", encoded(wide.convert("I"), "TIFF")
    yield "floats", encoded(wide.convert("F"), "TIFF", compression="tiff_adobe_deflate")
    pages = [picture(10, 15, seed) for seed in (15, 16)]
    yield "pages", encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    for turn in range(2, 9):
        yield f"turned{turn}", encoded(picture(15, 10, 17), "TIFF", tiffinfo={274: turn})


def tiffs_by_hand(image):
    size = image.size
    array = np.asarray(image)
    grey = np.asarray(image.convert("L"))
    rgb = {258: [8] * 3, 262: [2], 277: [3]}
    wide = {258: [16] * 3, 262: [2], 277: [3]}
    numbers = array.astype(np.uint16) * 257 - 77 * (array > 0)
    one = {258: [8], 262: [1], 277: [1]}
    strips = [array[y : y + 7].tobytes() for y in range(0, size[1], 7)]
    yield "big_endian", tiff(">", size, {**rgb, 278: [7]}, strips)
    yield "wide", tiff("<", size, wide, [numbers.astype("<u2").tobytes()])
    yield "wide_big_endian", tiff(">", size, wide, [numbers.astype(">u2").tobytes()])
    steps = np.diff(numbers, axis=1, prepend=np.zeros_like(numbers[:, :1]))
    predicted = zlib.compress(steps.astype(">u2").tobytes())
    yield "wide_predicted", tiff(">", size, {**wide, 259: [8], 317: [2]}, [predicted])
    yield (
        "wide_alpha",
        tiff(
            "<",
            size,
            {**wide, 258: [16] * 4, 277: [4], 338: [2]},
            [np.dstack([numbers, numbers[:, :, :1]]).astype("<u2").tobytes()],
        ),
    )
    ink = np.asarray(image.convert("CMYK")).astype(np.uint16) * 257
    yield "wide_cmyk", tiff("<", size, {258: [16] * 4, 262: [5], 277: [4]}, [ink.astype("<u2").tobytes()])
    yield "tiled", tiff("<", size, rgb, list(tiles_of(array, 16, 32)), tile=(16, 32))
    packed = [zlib.compress(part) for part in tiles_of(array, 32, 16)]
    yield "tiled_deflate", tiff(">", size, {**rgb, 259: [8]}, packed, tile=(32, 16))
    yield "tiled_grey", tiff("<", size, one, list(tiles_of(grey, 16, 16)), tile=(16, 16))
    yield "planes", tiff("<", size, {**rgb, 284: [2]}, [array[:, :, at].tobytes() for at in range(3)])
    planes = [zlib.compress(array[y : y + 11, :, at].tobytes()) for at in range(3) for y in range(0, size[1], 11)]
    yield "planes_deflate", tiff("<", size, {**rgb, 259: [8], 278: [11], 284: [2]}, planes)
    yield "inverted", tiff("<", size, {**one, 262: [0]}, [(255 - grey).tobytes()])
    four = np.pad(grey >> 4, ((0, 0), (0, 1)))
    four = ((four[:, ::2] << 4) | four[:, 1::2]).astype(np.uint8).tobytes()
    yield "bits4", tiff("<", size, {**one, 258: [4]}, [four])
    yield "bits4_inverted", tiff("<", size, {**one, 258: [4], 262: [0]}, [four])
    colours = [int(value) * 257 for value in np.random.default_rng(18).integers(0, 256, 48)]
    yield "palette4", tiff(">", size, {**one, 258: [4], 262: [3], 320: colours}, [four])
    yield "bits1_inverted", tiff("<", size, {**one, 258: [1], 262: [0]}, [np.packbits(grey > 99, axis=1).tobytes()])
    turned = np.packbits(grey > 99, axis=1, bitorder="little").tobytes()
    yield "bits1_turned", tiff("<", size, {**one, 258: [1], 266: [2]}, [turned])
    extra = np.dstack([array, grey])
    yield "extra", tiff("<", size, {**rgb, 258: [8] * 4, 277: [4], 338: [0]}, [extra.tobytes()])
    alpha = np.asarray(alpha_of(image))
    covered = (array.astype(np.uint16) * alpha[:, :, None] // 255).astype(np.uint8)
    yield "covered", tiff("<", size, {**rgb, 258: [8] * 4, 277: [4], 338: [1]}, [np.dstack([covered, alpha]).tobytes()])
    stream = encoded(image, "JPEG", quality=85, keep_rgb=True)
    # Colours as they are, and no marker that says so: the photometric interpretation does.
    start, end = stream.index(b"\xff\xee"), stream.index(b"\xff\xdb")
    stream = stream[:start] + stream[end:]
    yield "jpeg_rgb", tiff("<", size, {**rgb, 259: [7]}, [stream])
    yield "big", big_tiff(array)


def tiffs():
    image = picture(29, 21, 19)
    yield from tiffs_by_pil(image)
    yield from tiffs_by_hand(image)


KINDS = {"jpg": jpegs, "png": pngs, "webp": webps, "bmp": bmps, "pnm": pnms, "gif": gifs, "tif": tiffs}


def write_images(kinds):
    for kind in kinds:
        for name, data in KINDS[kind]():
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
    write_images(sys.argv[1:] or KINDS)
    if sys.argv[1:]:
        sys.exit()
    write_cases()
    write_tensors()
    draws = Draws((7, 3, 812), 1)
    print("draw.rs, golden numbers:", [draws.next() for _ in range(4)])
