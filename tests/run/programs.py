"""Programs that read a dataset in the ways that training programs do; each prints a digest of all that it read.

programs.py make NAME FOLDER FILES     makes the dataset that NAME reads
programs.py NAME FOLDER EPOCHS         reads it
"""

import hashlib
import io
import mmap
import os
import sys
from pathlib import Path

SIZE = 20_000
# h5py and Arrow read a part of a large file at a time; torch's files are mapped.
LARGE = {"h5py": 2_000_000, "parquet": 300_000}


def body(number: int, size: int = SIZE) -> bytes:
    return hashlib.shake_128(str(number).encode()).digest(size)


def paths(folder: str) -> list[str]:
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))  # noqa: PTH118, PTH208


def shuffled(folder: str, epoch: int) -> list[str]:
    return sorted(paths(folder), key=lambda path: hashlib.md5(f"{epoch}{Path(path).name}".encode()).digest())


# --- Making ----------------------------------------------------------------------------------------------------------


def make(name: str, folder: Path, files: int) -> None:
    folder.mkdir(parents=True)
    for number in range(files):
        make_one(name, folder, number)


def make_one(name: str, folder: Path, number: int) -> None:
    bytes_ = body(number)
    if name in ("numpy", "memmap"):
        import numpy

        numpy.save(folder / f"{number:05}.npy", numpy.frombuffer(bytes_, dtype=numpy.uint8))
    elif name == "npz":
        import numpy

        half = numpy.frombuffer(bytes_, dtype=numpy.uint8)
        numpy.savez(folder / f"{number:05}.npz", first=half[: SIZE // 2], second=half[SIZE // 2 :])
    elif name == "torch_load":
        import torch

        torch.save({"x": torch.frombuffer(bytearray(bytes_), dtype=torch.uint8)}, folder / f"{number:05}.pt")
    elif name in ("pil", "loader_fork", "loader_spawn"):
        from PIL import Image

        Image.frombytes("RGB", (100, 60), bytes_[:18_000]).save(folder / f"{number:05}.png")
    elif name == "h5py":
        import h5py
        import numpy

        with h5py.File(folder / f"{number:05}.h5", "w") as file:
            file["x"] = numpy.frombuffer(body(number, LARGE[name]), dtype=numpy.uint8)
    elif name == "parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({"x": list(body(number, LARGE[name] // 10)), "y": [number] * (LARGE[name] // 10)})
        pyarrow.parquet.write_table(table, folder / f"{number:05}.parquet")
    else:
        (folder / f"{number:05}.bin").write_bytes(bytes_)


# --- Reading ---------------------------------------------------------------------------------------------------------


def python_read(path, digest):
    with open(path, "rb") as file:  # noqa: PTH123
        digest.update(file.read())


def python_mmap(path, digest):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:  # noqa: PTH123
        digest.update(mapped)


def os_pread(path, digest):
    number = os.open(path, os.O_RDONLY)
    size, at = os.fstat(number).st_size, 0
    while at < size:
        piece = os.pread(number, 4096, at)
        digest.update(piece)
        at += len(piece)
    os.close(number)


def numpy(path, digest):
    import numpy

    digest.update(numpy.load(path).tobytes())


def memmap(path, digest):
    import numpy

    digest.update(numpy.load(path, mmap_mode="r").tobytes())


def npz(path, digest):
    import numpy

    with numpy.load(path) as file:
        for name in sorted(file.files):
            digest.update(file[name].tobytes())


def torch_load(path, digest):
    import torch

    digest.update(torch.load(path, mmap=True)["x"].numpy().tobytes())


def pil(path, digest):
    from PIL import Image

    with Image.open(path) as image:
        digest.update(image.convert("RGB").tobytes())


def h5py(path, digest):
    import h5py

    with h5py.File(path, "r") as file:
        digest.update(file["x"][:].tobytes())


def parquet(path, digest):
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    for column in table.columns:
        for chunk in column.chunks:
            digest.update(bytes(chunk.buffers()[1]))


class Images:
    """For torch's loader: the bytes of each image."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        from PIL import Image

        with open(self.files[index], "rb") as file:  # noqa: PTH123
            image = Image.open(io.BytesIO(file.read())).convert("RGB")
        return index, image.tobytes()


def loaded(folder: str, epochs: int, way: str, digest) -> None:
    import torch

    for epoch in range(epochs):
        loader = torch.utils.data.DataLoader(
            Images(paths(folder)),
            batch_size=8,
            shuffle=True,
            num_workers=4,
            multiprocessing_context=way,
            generator=torch.Generator().manual_seed(epoch),
            collate_fn=list,
        )
        for batch in loader:
            for index, bytes_ in batch:
                digest.update(f"{index}".encode() + bytes_)


def main() -> None:
    name, folder, count = sys.argv[1:4]
    if name == "make":
        make(folder, Path(count), int(sys.argv[4]))
        return
    digest = hashlib.sha256()
    if name.startswith("loader_"):
        loaded(folder, int(count), name.removeprefix("loader_"), digest)
    else:
        read = globals()[name]
        for epoch in range(int(count)):
            for path in shuffled(folder, epoch):
                read(path, digest)
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
