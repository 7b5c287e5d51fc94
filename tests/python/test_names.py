"""Names of files that try to command the terminal: warnings, errors and descriptions show them harmlessly, and programs get
them as they are."""

import logging

import foresee
import pytest

EVIL = "a\x1b]0;owned\x07\nWARNING:root:all is well\u202egpj.\x9b1m"
SHOWN = r"a\u{1b}]0;owned\u{7}\nWARNING:root:all is well\u{202e}gpj.\u{9b}1m"


@pytest.fixture
def files(tmp_path):
    """Ten files, the last of which is gone before it is read."""
    paths = [tmp_path / f"{number}{EVIL}.bin" for number in range(10)]
    for path in paths:
        path.write_bytes(b"some bytes")
    listed = foresee.Files(paths)
    paths[-1].unlink()
    return listed


def test_a_skipped_sample_is_named_in_one_harmless_line(files, caplog):
    caplog.set_level(logging.WARNING, logger="foresee")
    with foresee.Job(files, batch_size=10, epochs=1, seed=0, on_error="skip") as job:
        assert len(list(job)) == 1
    [said] = [record.getMessage() for record in caplog.records if "in its place" in record.getMessage()]
    assert SHOWN in said and "\n" not in said and "\x1b" not in said


def test_an_error_shows_the_name_and_carries_the_path_as_it_is(files):
    with foresee.Job(files, batch_size=10, epochs=1, seed=0) as job, pytest.raises(foresee.SampleError) as caught:
        list(job)
    assert SHOWN in str(caught.value)
    assert caught.value.path.endswith(f"9{EVIL}.bin")


def test_a_dataset_describes_itself_in_one_line(tmp_path):
    (tmp_path / EVIL / "class").mkdir(parents=True)
    (tmp_path / EVIL / "class" / "a.jpg").write_bytes(b"x")
    assert repr(foresee.ImageFolder(tmp_path / EVIL)) == f"ImageFolder({tmp_path}/{SHOWN}, 1 samples)"
