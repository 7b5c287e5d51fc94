"""`foresee report`: runs in, a page out; one line for what is wrong."""

import copy
import json

import pytest

RUN = {
    "epochs": [
        {"total_s": 4.5, "stall_s": 2.0, "read_bytes": {"source": 100, "tier1": 0}},
        {"total_s": 2.5, "stall_s": 0.5, "read_bytes": {"source": 60, "tier1": 40}},
    ],
    "stats": {
        "policy": "nopfs",
        "first_batch_s": 0.2,
        "stall_by_s": {"source": 2.5},
        "origins": {"source": {"samples": 8, "bytes": 160}, "tier1": {"samples": 2, "bytes": 40}},
        "source_bytes": 160,
        "source_minimum_bytes": 150,
    },
    "prediction": {"policy": "nopfs", "total_s": 7.1, "stall_s": 2.4, "bytes": {"source": 158, "tier1": 42}},
}


@pytest.fixture
def report(foresee, tmp_path):
    """Call it with runs (or any text); it returns how the command ended, and the page."""

    def run(runs, *options):
        text = runs if isinstance(runs, str) else json.dumps(runs)
        (tmp_path / "runs.json").write_text(text, encoding="utf-8")
        output = tmp_path / "page.html"
        ended = foresee("report", tmp_path / "runs.json", "--output", output, *options)
        return ended, output.read_text(encoding="utf-8") if output.exists() else None

    return run


def refused(ended) -> str:
    assert (ended.code, ended.stdout) == (2, "")
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    return ended.stderr


def test_a_page_shows_runs_beside_their_predictions(report):
    ended, page = report({"name": "mine", "lower_bound_s": 4.0, "inputs": {"job.batch": 32}, "runs": [RUN]})
    assert ended == (0, "", "")
    assert "<title>mine: foresee report</title>" in page
    assert 'data-name="nopfs"' in page and 'data-name="nopfs, predicted"' in page
    assert "lower bound 4.00" in page and "job.batch" in page


def test_a_run_of_bench_is_taken_as_it_is(foresee, report, tmp_path):
    for label in "ab":
        (tmp_path / "data" / label).mkdir(parents=True)
        for sample in range(4):
            (tmp_path / "data" / label / f"{sample}.jpg").write_bytes(b"x" * 5000)
    ran = foresee("bench", tmp_path / "data", "--batch", "2", "--json", env={"FORESEE_CATALOG_PATH": ""})
    assert ran.code == 0, ran.stderr
    ended, page = report({"name": "bench", "runs": [json.loads(ran.stdout)]})
    assert ended.code == 0, ended.stderr
    assert "1 real run, 2 epochs" in page


def test_texts_are_escaped(report):
    hostile = "<script>alert(1)</script>"
    run = {**RUN, "name": hostile}
    ended, page = report({"name": hostile, "inputs": {hostile: hostile}, "runs": [run]})
    assert ended.code == 0
    assert "<script" not in page and "&lt;script" in page


def changed(**changes) -> dict:
    runs = {"name": "mine", "runs": [copy.deepcopy(RUN)]}
    for path, value in changes.items():
        *way, last = [int(word) if word.isdigit() else word for word in path.split("__")]
        place = runs
        for word in way:
            place = place[word]
        place[last] = value
    return runs


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ("{", "not in the form of docs/report.md"),
        ("[]", "not in the form of docs/report.md"),
        ({"name": "mine"}, "missing field `runs`"),
        (changed(runs=[]), "runs: empty"),
        (changed(runs=[RUN, RUN]), "runs[1].name: another run is called nopfs"),
        (changed(runs__0__epochs=[]), "runs[0]: epochs: empty"),
        (changed(runs__0__epochs__1__stall_s=-1), "runs[0]: epochs[1].stall_s: -1; give seconds"),
        (changed(runs__0__stats__source_bytes="much"), "invalid type: string"),
        (changed(lower_bound_s=-3), "lower_bound_s: -3"),
    ],
)
def test_bad_runs_are_refused_in_one_line(report, runs, said):
    ended, page = report(runs)
    line = refused(ended)
    assert said in line and "runs.json" in line
    assert page is None


def test_paths_that_cannot_be_are_refused_in_one_line(foresee, tmp_path):
    runs = tmp_path / "runs.json"
    runs.write_text(json.dumps({"name": "mine", "runs": [RUN]}))
    assert "absent.json" in refused(foresee("report", tmp_path / "absent.json", "--output", tmp_path / "a.html"))
    assert "is a folder" in refused(foresee("report", tmp_path, "--output", tmp_path / "a.html"))
    assert "no such folder" in refused(foresee("report", runs, "--output", tmp_path / "no" / "a.html"))
    assert "give another name" in refused(foresee("report", runs, "--output", runs))
    assert "--output" in refused(foresee("report", runs))
