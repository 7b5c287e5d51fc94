"""The predicting simulator against the real loader, on an emulated source: a scaled-down `bench/prediction.py`."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARGIN = 0.3
# A machine that stands still for a moment gets another chance.
TRIES = 3


@pytest.fixture
def bench(monkeypatch, command):
    """The benchmark as a module, with the command under test."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setenv("FORESEE_BIN", str(command))
    import common
    import prediction

    return common, prediction


@pytest.mark.parametrize(
    "source",
    [
        {"mb_per_s": {1: 20}},
        {"mb_per_s": {1: 8, 4: 20}, "latency_ms": 2, "cached": 0.4},
    ],
    ids=["staging", "memory"],
)
def test_the_simulator_predicts_how_long_the_loader_takes(bench, source, tmp_path):
    common, prediction = bench
    sizes = common.make_dataset(tmp_path / "dataset", samples=200, mean_kb=40)
    setting = prediction.Setting("small", **source)
    expected = prediction.predicted(tmp_path, setting, sizes, epochs=2)
    measured = []
    for _ in range(TRIES):
        measured = prediction.measured(tmp_path, setting, sizes, epochs=2)
        if measured == pytest.approx(expected, rel=MARGIN):
            break
    assert measured == pytest.approx(expected, rel=MARGIN)


def test_threads_that_wait_for_a_sample_read_others_meanwhile(bench, tmp_path):
    """While tiers are filled, too, all threads keep a source busy that gives its best only to four readers."""
    common, prediction = bench
    sizes = common.make_dataset(tmp_path / "dataset", samples=200, mean_kb=40)
    setting = prediction.Setting("filling", {1: 4, 4: 10}, cached=0.4)
    first, _ = prediction.predicted(tmp_path, setting, sizes, epochs=2)
    assert first == pytest.approx(sum(sizes) / 10e6, rel=0.05)
