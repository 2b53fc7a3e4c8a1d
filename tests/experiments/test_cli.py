"""``mongefit reproduce``: what it says, what it leaves behind, and how it ends."""

from __future__ import annotations

import importlib
import json
import urllib.request

import pytest

from mongefit.errors import DataError
from tests import command_line
from tests.experiments.test_running import Halves

reproducing = importlib.import_module("mongefit._cli.reproduce")


def run(*arguments, code=0):
    return command_line.run("reproduce", *arguments, code=code)


@pytest.fixture
def halves(monkeypatch):
    """Every experiment but live-seq, whose files are missing, becomes a small one."""

    def experiment(name, *_):
        if name == "live-seq":
            raise DataError("fetch the files.")
        return Halves()

    monkeypatch.setattr(reproducing, "_experiment", experiment)


def test_one_experiment(halves, tmp_path):
    result = run("inverse-ot", "-o", tmp_path)
    assert "0.75 ± 0.56" in result.stdout and "met: mean half ≤ 1" in result.stdout
    assert "4 runs" in result.stderr
    for name in ("figure.png", "figure.pdf", "table.md", "table.csv", "runs.csv", "report.json"):
        assert (tmp_path / "inverse-ot" / name).is_file() and name in result.stdout


def test_quick_has_a_folder_of_its_own_and_json_is_one_object(halves, tmp_path):
    result = run("displacements", "--quick", "--json", "-q", "-o", tmp_path)
    found = json.loads(result.stdout)["displacements"]
    assert found["folder"].endswith("displacements-quick")
    assert found["failed"] == 0 and found["goals"][0]["met"] is True
    assert result.stderr == ""


def test_all_runs_what_can_be_run_and_says_what_could_not(halves, tmp_path):
    result = run("all", "-o", tmp_path, code=1)
    assert "live-seq was not run: fetch the files." in result.stderr
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"inverse-ot", "limited-pairs", "displacements"}


def test_interrupted_runs_are_kept(halves, tmp_path, monkeypatch):
    def interrupt(self, run, model):
        raise KeyboardInterrupt

    monkeypatch.setattr(Halves, "measure", interrupt)
    result = run("inverse-ot", "-o", tmp_path, code=130)
    assert "the same command goes on from there" in result.stderr


def test_live_seq_without_files_and_network(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for options in ((), ("--simulate",)):
        result = run("live-seq", *options, "-o", tmp_path / "out", code=3)
        for part in ("GSE141064", "https://", str(tmp_path / "cache"), "--samples"):
            assert part in result.stderr
        assert not (tmp_path / "out").exists()


def test_usage(tmp_path):
    assert "inverse-ot" in run("--help").stdout
    result = run("live-seq", "--simulate", "--counts", "counts.csv.gz", code=2)
    assert "leave out --counts" in result.stderr
    run("figure-1", code=2)


def test_a_file_in_the_way(halves, tmp_path):
    (tmp_path / "out").write_text("")
    result = run("inverse-ot", "-o", tmp_path / "out", code=1)
    assert str(tmp_path / "out") in result.stderr
