"""Sources that tests read, and what runs programs on them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from running import Runner, content, rest


@pytest.fixture
def source(tmp_path) -> Path:
    """A source of 40 small files in four folders, which have rested."""
    folder = tmp_path / "source"
    for number in range(40):
        path = folder / f"class{number % 4}" / f"{number:04}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number, 1000 + 977 * number))
    rest()
    return folder


@pytest.fixture
def run(source, tmp_path) -> Runner:
    return Runner(source, tmp_path)


@pytest.fixture
def large(tmp_path) -> Path:
    """A source of 6 files of 3 MB, which have rested."""
    folder = tmp_path / "large"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.rec").write_bytes(content(number, 3_000_000 + number))
    rest()
    return folder


@pytest.fixture
def run_large(large, tmp_path) -> Runner:
    return Runner(large, tmp_path)
