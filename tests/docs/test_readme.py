"""What the README and the guide show runs, at a reduced size."""

from __future__ import annotations

import re
import runpy
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

ROOT = Path(__file__).parents[2]


def blocks(path, language):
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def reduced(code, changes):
    for full, small in changes.items():
        assert full in code
        code = code.replace(full, small)
    return code


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs code as a program, in a folder of its own, and returns its names.

    In this process, because importing JAX into another would take seconds.
    """
    monkeypatch.chdir(tmp_path)
    before = jax.config.jax_enable_x64

    def execute(code):
        program = tmp_path / "example.py"
        program.write_text(code, encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return runpy.run_path(str(program), run_name="__main__")

    yield execute
    jax.config.update("jax_enable_x64", before)


def test_the_estimator_example_and_the_guides_pictures(run, tmp_path):
    code = reduced(
        "".join(blocks("README.md", "python")[:2]),
        {
            "t_shape(128": "t_shape(24",
            "np.arange(128)": "np.arange(24)",
            "(32, 32)": "(8, 8)",
            "(0.05, 0.002)": "(0.05, 0.002), max_iter=5",
        },
    )
    guide = reduced(
        "".join(blocks("docs/guide.md", "python")),
        {
            "MongeMap(epsilon=0.05)": "MongeMap(max_iter=0, hidden_layer_sizes=(4,))",
            "MongeMap(epsilon=0.2)": "MongeMap(max_iter=0, hidden_layer_sizes=(4,), epsilon=0.2)",
        },
    )
    names = run(code + guide)
    model, same, new_points = names["model"], names["same"], names["new_X"]
    assert (same.transform(new_points) == model.transform(new_points)).all()
    files = {path.name for path in tmp_path.iterdir()}
    assert {"model.mongefit", "map.png", "choice.png", "history.png"} <= files


def test_the_functional_core_in_eleven_lines(run):
    """Its last one promises a derivative in every weight."""
    core, adapter = blocks("README.md", "python")[2:4]
    assert len([line for line in core.splitlines() if line.strip()]) == 11
    names = run(core + adapter)
    assert jax.tree.structure(names["gradient"]) == jax.tree.structure(names["cost"])
    for derivative in jax.tree.leaves(names["gradient"]):
        assert bool(jnp.all(jnp.isfinite(derivative) & (derivative != 0)))


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "docs/guide.md", "docs/choosing.md"]
)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target
