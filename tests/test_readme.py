"""What the README and the guide show runs, at a reduced size."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def blocks(path, language):
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def run(code, folder):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )  # fmt: skip


def test_the_estimator_example_and_the_guides_pictures(tmp_path):
    code = blocks("README.md", "python")[0]
    small = {"t_shape(128": "t_shape(16", "np.arange(128)": "np.arange(16)", "(32, 32)": "(8, 8)"}
    for full, reduced in small.items():
        assert full in code
        code = code.replace(full, reduced)
    code = code.replace("verbose=1", "verbose=1, max_iter=5")
    pictures = "".join(blocks("docs/guide.md", "python"))
    check = "\nassert (same.transform(new_X) == model.transform(new_X)).all()"
    done = run(code + pictures + check, tmp_path)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in tmp_path.iterdir()}
    assert {"model.mongefit", "map.png", "history.png"} <= names


def test_the_functional_core_in_ten_lines(tmp_path):
    core, adapter = blocks("README.md", "python")[1:3]
    assert len([line for line in core.splitlines() if line.strip()]) <= 14
    check = """
leaves = jax.tree.leaves(gradient)
assert leaves and all(bool(jnp.any(leaf != 0)) for leaf in leaves[:-1])
assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)
"""
    done = run(core + adapter + check, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/guide.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target
