"""A model file of every version of the format that was ever written still gives the same map.

A new version of the format comes with a new file, written by the release that it belongs to:

    python -m tests.storage.test_versions tests/data/model-v3.mongefit
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from mongefit import MongeMap, NewtonInverse, SinkhornDual, load, single_cell
from mongefit._io.tensors import read_tensors
from mongefit._storage import models as storage
from mongefit.losses import Directional, Paired
from tests.command_line import run

DATA = Path(__file__).parents[1] / "data"
FILES = sorted(DATA.glob("model-v*.mongefit"))


def query():
    return np.linspace(-1, 1, 10).reshape(5, 2)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_stored_model(path, tmp_path):
    version = int(re.search(r"v(\d+)", path.stem)[1])
    assert read_tensors(path)[0]["version"] == version
    model = load(path)
    with np.load(path.with_suffix(".npz")) as expected:
        close = {"rtol": 0, "atol": 1e-9 if model.map_.x.dtype == np.float64 else 1e-5}
        np.testing.assert_allclose(model.transform(query()), expected["forward"], **close)
        np.testing.assert_allclose(model.inverse_transform(query()), expected["reverse"], **close)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of them had a function for a loss
        model.save(tmp_path / "again")
    np.testing.assert_array_equal(
        load(tmp_path / "again").transform(query()), model.transform(query())
    )
    if path.stem.count("-") == 1:
        assert isinstance(model.losses_[1], Directional) and model.n_iter_ == 3
        assert "trained         3 steps" in run("info", path).stdout


def test_details_of_version_1():
    separate, power, float32 = (
        load(DATA / f"model-v1-{name}.mongefit") for name in ("separate", "power", "float32")
    )
    assert separate.dual == "sinkhorn" and separate.penalties[0].weight == 1e-6
    assert power.dual == SinkhornDual(1e-8, 500) and power.epsilon == (0.5, 0.2)
    conjugate = load(DATA / "model-v1-conjugate.mongefit")
    assert conjugate.map_.cost.h.solver == NewtonInverse(max_iter=200)
    # A function could not be kept: the list is the default.
    assert float32.losses is None and float32.losses_ == (Paired(huber=2.0), None)
    assert float32.map_.x.dtype == np.float32


def test_cells_of_version_1():
    cells = single_cell.load(DATA / "model-v1-cells.mongefit")
    assert cells.representation.fingerprint is None
    assert len(cells.representation.pca.genes) == 6 and cells.times.source == "2"


def test_every_version_has_a_file():
    found = {int(re.search(r"v(\d+)", path.stem)[1]) for path in FILES}
    assert found == set(range(1, storage.FORMAT_VERSION + 1))


def write(path: Path) -> None:
    """A model with a learned cost, a flow and a loss that learned something."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 8, 2))
    model = MongeMap(
        "icnn", "shared", hidden_layer_sizes=(4, 3), epsilon=(0.2, 0.1), max_iter=3,
        losses=[Paired(), 0.1 * Directional(2)], tau_a=0.9,
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
