"""Source files that change in every way that files do, with a journal of what each path held when; caches that rot.

Every version of a file is bytes that say of themselves which version they are and where in it they lie, so that whatever
a job hands over can be told: this version, a mixture of two, a part of one, another file's. All changes are made by one
process, one step after the other. After each step the journal looks at all paths anew, through links as a reader would,
so nobody has to work out what a change of a link or a folder means.

A write in place takes its time, and what it has done so far is what the file holds at that moment: the beginning of the
new bytes before the rest of the old ones. Any other mixture was never there.

Left out: writes through a mapping. The system may note their time whenever it likes, so no reader can know of them.
"""

import contextlib
import hashlib
import itertools
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

BLOCK_BYTES = 64


def content(version: int, size: int) -> bytes:
    """The bytes of a version. Even the first alone differs from that of versions made shortly before and after."""
    return b"".join(_block(version, offset) for offset in range(0, size, BLOCK_BYTES))[:size]


def _block(version: int, offset: int) -> bytes:
    return (version.to_bytes(4, "little") + b" version %d at %d " % (version, offset)).ljust(BLOCK_BYTES, b".")


def digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def described(data: bytes) -> str:
    """What bytes are, for a person: parts of which versions."""
    runs: list[tuple[str, int]] = []
    for offset in range(0, len(data), BLOCK_BYTES):
        block = data[offset : offset + BLOCK_BYTES]
        found = re.search(rb" version (\d+) at (\d+) ", block)
        if found and _block(int(found[1]), int(found[2])).startswith(block):
            late = offset - int(found[2])
            name = f"version {int(found[1])}" + (f" {late} B late" if late else "")
        elif _block(version := int.from_bytes(block[:4], "little"), offset).startswith(block):
            name = f"version {version}"  # the end of a file
        else:
            name = "zeros" if not any(block) else f"bytes {block[:24]!r}"
        if not runs or runs[-1][0] != name:
            runs.append((name, offset))
    return f"{len(data)} B: " + ", ".join(f"{name} from {offset}" for name, offset in runs[:8])


@dataclass(frozen=True)
class Held:
    """What a path held: its content, and what the system said about the file."""

    digest: str
    stamp: tuple[int, ...]

    @property
    def file(self) -> int:
        """Which file it was, whatever its names."""
        return self.stamp[0]

    @property
    def size(self) -> int:
        return self.stamp[1]


@dataclass(frozen=True)
class Write:
    """One write in place: to which file, and what was in it before and after."""

    file: int
    before: bytes
    after: bytes

    def could_show(self, data: bytes) -> bool:
        """Whether a reader may have found this while it was under way."""
        done = len(os.path.commonprefix([data, self.after]))
        return data[done:] == self.before[done : len(data)]


@dataclass(frozen=True)
class State:
    """What all paths held from some moment between `begin_ns` and `end_ns` until the next state."""

    begin_ns: int
    end_ns: int
    what: str
    held: dict[str, Held]
    write: Write | None = None


def in_order(paths: Iterable[str]) -> list[str]:
    """Samples in the order of torchvision's ImageFolder: class by class, then by name."""
    return sorted(paths, key=lambda path: path.split("/")[-2:])


class Tree:
    """A dataset in class folders at `root`, which is a folder or a link to one.

    Two that are made with the same random numbers have the same names and sizes, often also the same times.
    """

    def __init__(self, folder: Path, rng: random.Random, first_version: int) -> None:
        self.root = folder / "data"
        self.shelf = folder / "shelf"  # where things are made before they are put in place, and where links lead
        self.rng = rng
        self.contents: dict[str, str] = {}
        self.version = first_version
        self.journal: list[State] = []
        self.overtaken: set[Held] = set()  # what a job found out that its catalog had wrongly
        self._names = 0
        self._past: list[tuple[bytes, int]] = []
        self._favourite = rng.choice(CHANGES) if rng.random() < 0.4 else None
        self.shelf.mkdir(parents=True)
        first = self._new_place() if rng.random() < 0.4 else self.root
        self._equal_times = rng.random() < 0.5
        for label in range(rng.randint(1, 3)):
            (first / f"class{label}").mkdir(parents=True)
            for number in range(rng.randint(1, 8)):
                self._make(first / f"class{label}" / f"{number:03}.jpg", self._size())
            self._set_time(first / f"class{label}", 0)
        if first != self.root:
            self.root.symlink_to(first)
        self.step("made", lambda: None)

    def step(self, what: str, change: Callable[[], object]) -> None:
        """Makes a change that readers see at once, and notes what all paths hold after it."""
        begin_ns = time.monotonic_ns()
        change()
        self.journal.append(State(begin_ns, time.monotonic_ns(), what, dict(self._look())))

    def _write(self, what: str, path: Path, offset: int, data: bytes) -> None:
        """A step that writes into a file."""
        before = path.read_bytes()
        with path.open("r+b", buffering=0) as file:
            self.step(what, lambda: os.pwrite(file.fileno(), data, offset))
        write = Write(path.stat().st_ino, before, path.read_bytes())
        self.journal[-1] = replace(self.journal[-1], write=write)

    def _look(self) -> Iterator[tuple[str, Held]]:
        for path in sorted(self.root.glob("*/*.jpg")):
            # A link may lead nowhere for a moment.
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
                data = path.read_bytes()
                name = digest(data)
                if name not in self.contents:
                    self.contents[name] = described(data)
                yield str(path), Held(name, stamp)

    def during(self, since_ns: int, until_ns: int) -> list[State]:
        """The states that may have been seen between two moments."""
        ends = [state.end_ns for state in self.journal[1:]] + [until_ns]
        pairs = zip(self.journal, ends, strict=True)
        return [state for state, end_ns in pairs if state.begin_ns <= until_ns and end_ns >= since_ns]

    @property
    def paths(self) -> list[str]:
        """All samples that there are now."""
        return in_order(self.journal[-1].held)

    def mutate(self) -> str:
        """Changes something, in one or more steps."""
        if self._favourite is not None and self.rng.random() < 0.7:
            return self._favourite(self) or "nothing"
        return self.rng.choices(CHANGES, WEIGHTS)[0](self) or "nothing"

    # What the changes are made of.

    def _new_place(self) -> Path:
        self._names += 1
        return self.shelf / f"{self._names}"

    def _new_name(self) -> str:
        self._names += 1
        return f"{self._names + 100}.jpg"

    def _size(self) -> int:
        low, high = self.rng.choice([(1, 64), (1, 4096), (4090, 4100), (1000, 40_000), (60_000, 300_000)])
        return self.rng.randint(low, high)

    def _content(self, size: int) -> bytes:
        self.version += 1
        return content(self.version, size)

    def _set_time(self, path: Path, kept_ns: int | None) -> None:
        """The time of a change as it is, an earlier one as `cp -p` and `rsync -t` leave, or that of all others."""
        if self._equal_times:
            os.utime(path, ns=(0, 0))
        elif kept_ns is not None:
            os.utime(path, ns=(kept_ns, kept_ns))

    def _make(self, path: Path, size: int, kept_ns: int | None = None) -> Path:
        path.write_bytes(self._content(size))
        self._set_time(path, kept_ns)
        return path

    def _pick(self) -> Path:
        return Path(self.rng.choice(self.paths))

    def _pick_class(self) -> Path:
        return self.rng.choice(sorted(self.root.iterdir()))

    def _size_like(self, path: Path) -> int:
        return path.stat().st_size if self.rng.random() < 0.7 else self._size()

    def _pieces(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        cuts = sorted({0, len(data), *(self.rng.randint(0, len(data)) for _ in range(self.rng.choice([0, 0, 1, 4])))})
        yield from ((start, data[start:end]) for start, end in itertools.pairwise(cuts))

    def _twin_folder(self, old: Path) -> Path:
        """A folder with other versions of a class: the same names and mostly the same sizes and times."""
        new = self._new_place()
        new.mkdir(parents=True)
        for path in sorted(old.glob("*.jpg")):
            self._make(new / path.name, self._size_like(path), path.stat().st_mtime_ns)
        if self.rng.random() < 0.3:
            self._make(new / self._new_name(), self._size())
        os.utime(new, ns=(old.stat().st_mtime_ns,) * 2)
        return new

    def _link_instead(self, path: Path, target: Path) -> str:
        said = f"{path.name} links to {target.name} instead"
        link = self._new_place()
        link.symlink_to(target)
        if path.is_dir() and not path.is_symlink():
            self.step(f"{path.name} moved away", lambda: path.rename(self._new_place()))
        self.step(said, lambda: link.replace(path))
        return said

    # The changes.

    def rewrite(self) -> str:
        path = self._pick()
        kept_ns = path.stat().st_mtime_ns if self.rng.random() < 0.5 else None
        data = self._content(self._size_like(path))
        said = f"{path.name} rewritten in place, {path.stat().st_size} B to {len(data)} B, version {self.version}"
        if self.rng.random() < 0.2 or len(data) < path.stat().st_size:
            shorter = self.rng.choice([0, len(data)])
            self.step(f"{path.name} cut to {shorter} B", lambda: os.truncate(path, shorter))
        for offset, piece in self._pieces(data):
            self._write(said, path, offset, piece)
        if kept_ns is not None:
            self.step(f"{path.name}: time set back", lambda: os.utime(path, ns=(kept_ns, kept_ns)))
        return said

    def append(self) -> str:
        path = self._pick()
        more = self._content(self._size())
        self._write(f"{path.name} longer by {len(more)} B", path, path.stat().st_size, more)
        return self.journal[-1].what

    def cut(self) -> str:
        path = self._pick()
        size = self.rng.randint(1, path.stat().st_size)
        self.step(f"{path.name} cut to {size} B", lambda: os.truncate(path, size))
        return self.journal[-1].what

    def replace(self) -> str:
        path = self._pick()
        kept_ns = path.stat().st_mtime_ns if self.rng.random() < 0.6 else None
        new = self._make(self._new_place(), self._size_like(path), kept_ns)
        self.step(f"{path.name} replaced by version {self.version}", lambda: new.replace(path))
        return self.journal[-1].what

    def put_back(self) -> str:
        path = self._pick()
        self._past.append((path.read_bytes(), path.stat().st_mtime_ns))
        data, mtime_ns = self.rng.choice(self._past)
        new = self._new_place()
        new.write_bytes(data)
        os.utime(new, ns=(mtime_ns, mtime_ns))
        self.step(f"{path.name} replaced by a copy of {described(data)}", lambda: new.replace(path))
        return self.journal[-1].what

    def touch(self) -> str:
        paths = [*map(Path, self.paths), *self.root.iterdir()]
        when_ns = self.rng.choice([0, 10**18, time.time_ns()])
        self.step(f"all times set to {when_ns}", lambda: [os.utime(path, ns=(when_ns, when_ns)) for path in paths])
        return self.journal[-1].what

    def delete(self) -> str | None:
        path = self._pick()
        if len(list(path.parent.iterdir())) == 1:
            return None  # a class without a file is refused
        size = path.stat().st_size
        mtime_ns = path.stat().st_mtime_ns
        self.step(f"{path.name} deleted", path.unlink)
        if self.rng.random() < 0.6:
            new = self._make(self._new_place(), size, mtime_ns)
            self.step(f"{path.name} made again, version {self.version}", lambda: new.rename(path))
        return self.journal[-1].what

    def add(self) -> str:
        path = self._pick_class() / self._new_name()
        if self.rng.random() < 0.5:
            other = self._pick().resolve()
            self.step(f"{path.name} is another name of {other.name}", lambda: path.hardlink_to(other))
        else:
            new = self._make(self._new_place(), self._size())
            self.step(f"{path.name} added", lambda: new.rename(path))
        return self.journal[-1].what

    def swap(self) -> str:
        one, other = self._pick(), self._pick()
        if one != other:
            aside = self._new_place()
            self.step(f"{one.name} put aside", lambda: one.rename(aside))
            self.step(f"{other.name} renamed to {one.name}", lambda: other.rename(one))
            self.step(f"{one.name} renamed to {other.name}", lambda: aside.rename(other))
        return self.journal[-1].what

    def link_file(self) -> str:
        path = self._pick()
        return self._link_instead(path, self._make(self._new_place(), self._size_like(path), path.stat().st_mtime_ns))

    def link_class(self) -> str:
        folder = self._pick_class()
        return self._link_instead(folder, self._twin_folder(folder))

    def link_root(self) -> str | None:
        if not self.root.is_symlink():
            return None
        new = self._new_place()
        new.mkdir()
        for folder in sorted(self.root.iterdir()):
            self._twin_folder(folder).rename(new / folder.name)
        os.utime(new, ns=(self.root.stat().st_mtime_ns,) * 2)
        return self._link_instead(self.root, new)

    def move_class(self) -> str:
        folder = self._pick_class()
        name = f"class{self.rng.randint(0, 9)}-{len(self.journal)}"
        self.step(f"{folder.name} renamed to {name}", lambda: folder.rename(folder.with_name(name)))
        return self.journal[-1].what


_WEIGHTED: dict[Callable[[Tree], str | None], int] = {
    Tree.rewrite: 6,
    Tree.append: 1,
    Tree.cut: 1,
    Tree.replace: 4,
    Tree.put_back: 2,
    Tree.touch: 1,
    Tree.delete: 2,
    Tree.add: 2,
    Tree.swap: 2,
    Tree.link_file: 2,
    Tree.link_class: 2,
    Tree.link_root: 3,
    Tree.move_class: 1,
}
CHANGES = list(_WEIGHTED)
WEIGHTS = list(_WEIGHTED.values())


def damage(folders: list[Path], rng: random.Random) -> str | None:
    """Does to a file of a cache what bad disks, full disks and tidy people do."""
    found = (path for folder in folders for path in folder.rglob("*"))
    # The mark says that a folder is the project's to write to: one that is gone or damaged is refused, as it should be.
    files = sorted(path for path in found if path.is_file() and not path.name.startswith(".foresee"))
    if not files:
        return None
    path = rng.choice(files)
    how = rng.choice(["flip", "flip", "flip", "zero", "cut", "grow", "delete", "other"])
    # A job may remove it at any moment.
    with contextlib.suppress(FileNotFoundError):
        size = path.stat().st_size
        if how == "delete" or size == 0:
            path.unlink()
        elif how == "cut":
            os.truncate(path, rng.randrange(size))
        elif how == "other":
            path.write_bytes(rng.choice(files).read_bytes())
        else:
            _scribble(path, how, rng, size)
    return f"{how} {path.relative_to(folders[0].parent)}"


def _scribble(path: Path, how: str, rng: random.Random, size: int) -> None:
    with path.open("r+b", buffering=0) as file:
        if how == "grow":
            os.pwrite(file.fileno(), rng.randbytes(rng.randint(1, 5000)), size)
            return
        for _ in range(rng.choice([1, 1, 5, 50])):
            at = rng.randrange(size)
            old = os.pread(file.fileno(), 1, at) or b"\0"
            os.pwrite(file.fileno(), bytes(200) if how == "zero" else bytes([old[0] ^ 1 << rng.randrange(8)]), at)
