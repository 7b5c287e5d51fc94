"""Names of files that try to command the terminal: they are shown, not obeyed."""

import os

import pytest

EVIL = "a\x1b]0;owned\x07\x1b[2J\nforesee: all is well\u202egpj.\x9b1m"


@pytest.fixture(autouse=True)
def nothing_saved(monkeypatch):
    """Each run lists."""
    monkeypatch.setenv("FORESEE_CATALOG_PATH", "")
    monkeypatch.setenv("FORESEE_CONFIG", "")


@pytest.fixture
def evil(tmp_path):
    """A dataset whose folder, class and file have such names."""
    folder = tmp_path / f"data{EVIL}" / f"class{EVIL}"
    folder.mkdir(parents=True)
    (folder / f"{EVIL}.jpg").write_bytes(bytes(100))
    return folder.parent


def assert_harmless(text, lines=None):
    assert not {letter for letter in text if ord(letter) < 32 and letter != "\n"} & set(text), ascii(text)
    assert not set("\x7f\x9b\u202e") & set(text), ascii(text)
    assert "\nforesee: all is well" not in text
    if lines is not None:
        assert text.count("\n") == lines, ascii(text)


def test_plan_shows_the_samples_of_a_step_on_a_line_each(foresee, evil):
    ran = foresee("plan", evil, "--show-step", "0:0:0")
    assert ran.code == 0, ran.stderr
    assert_harmless(ran.stdout)
    assert r"a\u{1b}]0;owned\u{7}\u{1b}[2J\nforesee: all is well\u{202e}gpj.\u{9b}1m.jpg" in ran.stdout
    ran = foresee("plan", evil, "--show-sample", "0")
    assert ran.code == 0
    assert_harmless(ran.stdout)
    assert_harmless(foresee("plan", evil).stdout)


def test_bench_says_what_it_loads_and_what_is_wrong_in_harmless_lines(foresee, evil):
    ran = foresee("bench", evil)
    assert (ran.code, ran.stderr) == (0, "")
    assert_harmless(ran.stdout)
    sample = next(evil.glob("*/*.jpg"))
    os.truncate(sample, 0)
    ran = foresee("bench", evil)
    assert ran.code == 2
    assert_harmless(ran.stderr, lines=1)
    assert "owned" in ran.stderr
    sample.unlink()
    ran = foresee("bench", evil)
    assert ran.code == 2
    assert_harmless(ran.stderr, lines=1)
    assert r"class class" in ran.stderr.replace(EVIL, "") and r"\u{202e}" in ran.stderr


def test_what_the_loader_warns_of_is_harmless(foresee, evil, tmp_path):
    catalogs = tmp_path / f"catalogs{EVIL}"
    catalogs.write_text("not a folder")
    for path in (evil, *evil.rglob("*")):
        os.utime(path, (1, 1))
    ran = foresee("bench", evil, env={"FORESEE_CATALOG_PATH": str(catalogs)})
    assert ran.code == 0
    assert "catalog" in ran.stderr
    assert_harmless(ran.stderr, lines=ran.stderr.count("WARN"))


def test_bad_options_and_files_with_such_names_are_refused_in_one_line(foresee, tmp_path):
    for args in (
        ("plan", tmp_path / EVIL),
        ("simulate", tmp_path / EVIL),
        ("bench", tmp_path / EVIL),
        ("report", tmp_path / EVIL, "--output", tmp_path / "x.html"),
        ("simulate", f"--{EVIL}"),
        ("simulate", "scenarios/hdmlp-s1.toml", "--policy", EVIL),
    ):
        ran = foresee(*args)
        assert ran.code == 2
        assert_harmless(ran.stderr, lines=1)
        assert r"\u{202e}" in ran.stderr, ran.stderr
