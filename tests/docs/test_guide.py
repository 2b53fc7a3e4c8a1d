"""The guide's pages show what their examples hold, and the examples run."""

from __future__ import annotations

import re
import runpy
import textwrap
import warnings
from pathlib import Path

import pytest

from mongefit import plotting
from tests.datasets.test_live_seq import sample_rows, write_table

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "guide").glob("*.md"))
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))


def read(path):
    return path.read_text(encoding="utf-8")


def linked(page):
    """The files that a page links to or shows, by their place."""
    targets = re.findall(r"\]\(([^)#]+)", read(page))
    return [(page.parent / target).resolve() for target in targets if "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
class TestPage:
    def test_code_is_that_of_its_examples(self, page):
        code = "".join(read(path) for path in linked(page) if path in EXAMPLES)
        blocks = re.findall(r"```python\n(.*?)```", read(page), flags=re.DOTALL)
        assert blocks
        for block in blocks:
            indented = textwrap.indent(block, "    ")
            assert block in code or indented in code, block

    def test_links_lead_somewhere(self, page):
        for path in linked(page):
            assert path.exists(), path

    def test_an_example_and_its_picture_are_shown(self, page):
        assert DOCS / "examples" / f"{page.stem}.py" in linked(page)
        assert DOCS / "pictures" / f"{page.stem}.png" in linked(page)


def test_the_entry_page_leads_to_all():
    assert set(PAGES) <= set(linked(DOCS / "guide.md"))


def test_pictures_and_examples_belong_to_a_page_and_are_small():
    shown = {path for page in (*PAGES, DOCS / "single-cell.md") for path in linked(page)}
    pictures = list((DOCS / "pictures").iterdir())
    assert {*EXAMPLES, *pictures} <= shown
    assert {path.stem for path in pictures} == {path.stem for path in EXAMPLES}
    for picture in pictures:
        assert picture.stat().st_size < 150_000, picture.name
    for example in EXAMPLES:
        assert len(read(example).splitlines()) <= 40, example.name


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_without_training(example, tmp_path, monkeypatch, capsys):
    save = plotting.save_figure

    def save_elsewhere(figure, path, **options):
        assert Path(path) == DOCS / "pictures" / f"{example.stem}.png"
        save(figure, tmp_path / Path(path).name, **options)

    samples = tmp_path / "mongefit" / "live-seq" / "meta.final.csv"
    samples.parent.mkdir(parents=True)
    write_table(samples, sample_rows())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(plotting, "save_figure", save_elsewhere)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(example), run_name="__main__")
    assert (tmp_path / f"{example.stem}.png").exists()
    assert capsys.readouterr().out
