"""Sources that tests read, and what runs programs on them."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from running import Runner, content, rest

# As many are made at once as rest together.
AT_ONCE = 8
SMALL_AT_ONCE = 24


def small(folder: Path) -> None:
    for number in range(40):
        path = folder / f"class{number % 4}" / f"{number:04}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number, 1000 + 977 * number))


def records(folder: Path) -> None:
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.rec").write_bytes(content(number, 3_000_000 + number))


def rested(folder: Path, make: Callable[[Path], None], at_once: int) -> Iterator[Path]:
    """Sources that have rested, each for one test. To be renamed: that leaves the files in them as they are."""
    number = 0
    while True:
        made = [folder / str(number + index) for index in range(at_once)]
        number += at_once
        for path in made:
            make(path)
        rest()
        yield from made


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> Iterator[Path]:
    return rested(tmp_path_factory.mktemp("sources"), small, SMALL_AT_ONCE)


@pytest.fixture(scope="session")
def large_sources(tmp_path_factory) -> Iterator[Path]:
    return rested(tmp_path_factory.mktemp("large"), records, AT_ONCE)


@pytest.fixture
def source(sources, tmp_path) -> Path:
    """A source of 40 small files in four folders, which have rested."""
    return next(sources).rename(tmp_path / "source")


@pytest.fixture
def run(source, tmp_path) -> Runner:
    return Runner(source, tmp_path)


@pytest.fixture
def large(large_sources, tmp_path) -> Path:
    """A source of 6 files of 3 MB, which have rested."""
    return next(large_sources).rename(tmp_path / "large")


@pytest.fixture
def run_large(large, tmp_path) -> Runner:
    return Runner(large, tmp_path)
