"""A model file of every version of the format that was ever written still gives the same map.

A new version of the format comes with a new file, written by the release that it belongs to:

    python tests/test_stored_models.py tests/data/model-v1.mongefit
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from mongefit import MongeMap, load, storage
from mongefit.losses import Directional, Paired
from tests.command_line import run

DATA = Path(__file__).parent / "data"
FILES = sorted(DATA.glob("model-v*.mongefit"))


def query():
    return np.linspace(-1, 1, 10).reshape(5, 2)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_stored_model(path, tmp_path):
    version = int(re.search(r"v(\d+)", path.stem)[1])
    assert storage.read_header(path)["version"] == version
    model = load(path)
    with np.load(path.with_suffix(".npz")) as expected:
        np.testing.assert_allclose(model.transform(query()), expected["forward"], atol=1e-9)
        np.testing.assert_allclose(model.inverse_transform(query()), expected["reverse"], atol=1e-9)
    assert isinstance(model.losses_[1], Directional) and model.n_iter_ == 3
    model.save(tmp_path / "again")
    np.testing.assert_array_equal(
        load(tmp_path / "again").transform(query()), model.transform(query())
    )
    assert "trained         3 steps" in run("info", path).stdout


def test_every_version_has_a_file():
    found = {int(re.search(r"v(\d+)", path.stem)[1]) for path in FILES}
    assert found == set(range(1, storage.FORMAT_VERSION + 1))


def write(path: Path) -> None:
    """A model with a learned cost, a flow and a loss that learned something."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 8, 2))
    model = MongeMap(
        "icnn", "shared", hidden_layer_sizes=(4, 3), epsilon=(0.2, 0.1), max_iter=3,
        losses=[Paired(), 0.1 * Directional(2)],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y, pairs=np.stack([np.arange(8)] * 2, axis=1))
    model.save(path)
    np.savez(
        path.with_suffix(".npz"),
        forward=model.transform(query()),
        reverse=model.inverse_transform(query()),
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
