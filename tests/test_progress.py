"""Progress where stderr is no terminal: a line every few seconds."""

from __future__ import annotations

import re

import pytest

from mongefit import _progress
from mongefit._progress import ProgressBar


@pytest.fixture
def lines(capsys, monkeypatch):
    """What three parts of some work write, one of which shows a value."""
    monkeypatch.delenv("TQDM_DISABLE", raising=False)

    def written(seconds, *, enabled=True):
        monkeypatch.setattr(_progress, "SECONDS", seconds)
        with ProgressBar(4, enabled=enabled, description="folds") as bar:
            bar.update()
            bar.update(2, {"loss": "1e-2"})
            bar.describe("fitting")
            bar.update()
        return capsys.readouterr().err.splitlines()

    return written


def test_each_says_how_far_it_is(lines):
    first, second, last = lines(0.0)
    assert re.fullmatch(r"folds 1/4, \d+ s left", first)
    assert re.fullmatch(r"folds 3/4, loss 1e-2, \d+ s left", second)
    assert last == "fitting 4/4, loss 1e-2, 0 s left"


def test_they_are_seconds_apart(lines):
    assert lines(60.0) == []


def test_none_where_it_is_switched_off(lines, monkeypatch):
    assert lines(0.0, enabled=False) == []
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert lines(0.0) == []
