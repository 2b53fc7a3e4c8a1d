"""Model files: what is saved comes back to the bit, and a bad file never becomes a model."""

from __future__ import annotations

import copy
import errno
import functools
import json
import os
import pickle
import resource
import struct
import zipfile
from collections.abc import Callable
from typing import NewType

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import optax
import pytest
import safetensors
import safetensors.numpy

from mongefit import (
    ICNN,
    AutoregressiveFlow,
    ConjugateICNN,
    EnsembleMap,
    LBFGSInverse,
    Mahalanobis,
    MongeMap,
    PowerNorm,
    SinkhornDual,
    load,
)
from mongefit._convex import SquaredEuclidean
from mongefit._costs import Cost
from mongefit._flows import Diffeo
from mongefit._io.tensors import _checksum, write_tensors
from mongefit._runtime import double_precision
from mongefit._storage import models as storage
from mongefit._storage.objects import fits
from mongefit.errors import ModelFileError, OptionError

N, D = 24, 2
RNG = np.random.default_rng(0)
X, Y, Z = RNG.normal(size=(3, N, D))
PAIRS = np.stack([np.arange(N), RNG.permutation(N)], axis=1)
UNTRAINED = {"hidden_layer_sizes": (8, 8), "max_iter": 0, "epsilon": 0.1}


def bent_flow(seed):
    """A flow that is not the identity, as if it had been trained."""
    with double_precision():
        flow = AutoregressiveFlow(D, key=jr.key(seed), n_blocks=1, width=4)
        noise = np.random.default_rng(seed)
        return jax.tree.map(
            lambda leaf: (
                leaf + 0.1 * noise.normal(size=leaf.shape) if eqx.is_inexact_array(leaf) else leaf
            ),
            flow,
        )


MODELS = {
    "icnn": lambda: {"max_iter": 3},
    "icnn, asymmetric": lambda: {"symmetric": False, "hidden_layer_sizes": (4,)},
    "squared Euclidean": lambda: {"cost": "sqeuclidean", "epsilon": (0.5, 0.1)},
    "squared Euclidean, float32": lambda: {"cost": "sqeuclidean", "dtype": "float32"},
    "Mahalanobis": lambda: {"cost": Mahalanobis(np.array([[2.0, 0.3], [0.3, 1 / 3]]))},
    "power norm": lambda: {"cost": PowerNorm(1.5, 0.1)},
    "debiased": lambda: {"cost": "sqeuclidean", "debias": True},
    "shared flow": lambda: {"cost": "sqeuclidean", "diffeo": bent_flow(0)},
    "separate flows": lambda: {"cost": "sqeuclidean", "diffeo": (bent_flow(0), bent_flow(1))},
}


@pytest.fixture(scope="module")
def models():
    """Fitted estimators by name, each fitted when it is first asked for."""

    @functools.cache
    def fit(name):
        estimator = MongeMap(**(UNTRAINED | MODELS[name]()))
        learns = estimator.cost == "icnn" or estimator.diffeo is not None
        return estimator.fit(X, Y, pairs=PAIRS if learns else None)

    return fit


@pytest.fixture
def model_file(models, tmp_path):
    path = tmp_path / "model.safetensors"
    models("squared Euclidean").save(path)
    return path


def refusal(path):
    """The message with which a file is refused, and which names it."""
    with pytest.raises(ModelFileError) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


def rewrite(path, edit):
    """Change a model file as a forger would, with the checksum made right."""
    with safetensors.safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["mongefit"])
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    edit(header, tensors)
    header["sha256"] = _checksum(header, tensors)
    metadata = {"mongefit": json.dumps(header)}
    path.write_bytes(safetensors.numpy.save(tensors, metadata=metadata))


# What is saved comes back


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_maps_to_the_same_bits(models, name, tmp_path):
    saved = models(name)
    saved.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    for method in ("transform", "inverse_transform"):
        expected = getattr(saved, method)(Z)
        np.testing.assert_array_equal(getattr(loaded, method)(Z), expected)
    assert np.abs(saved.transform(Z) - Z).max() > 0.1
    np.testing.assert_array_equal(loaded.coupling_, saved.coupling_)
    assert eqx.tree_equal(loaded.map_, saved.map_)
    assert eqx.tree_equal(loaded.units_, saved.units_)


@pytest.mark.parametrize("name", MODELS)
def test_everything_else_comes_back_too(models, name, tmp_path):
    saved = models(name)
    saved.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    options, given = loaded.get_params(), saved.get_params()
    # Objects come back as they were fitted.
    cost = saved.map_.cost
    given["cost"] = given["cost"] if isinstance(given["cost"], str) else cost.h
    if given["diffeo"] is not None:
        given["diffeo"] = cost.phi_mu if cost.shared else (cost.phi_mu, cost.phi_nu)
    assert options.keys() == given.keys()
    assert all(eqx.tree_equal(options[key], given[key]) for key in given)
    assert loaded.history_.keys() == saved.history_.keys()
    for key, column in saved.history_.items():
        np.testing.assert_array_equal(loaded.history_[key], column)
        assert loaded.history_[key].dtype == column.dtype
    assert bool(loaded.history_) == (name == "icnn")
    for key in ("diagnostics_", "n_iter_", "n_features_in_", "data_sha256_"):
        assert getattr(loaded, key) == getattr(saved, key)


def test_options_given_as_numpy_numbers_come_back(tmp_path):
    saved = MongeMap(
        "sqeuclidean", epsilon=np.float32(0.125), hidden_layer_sizes=np.array([8, 4])
    ).fit(X, Y)
    saved.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.epsilon == 0.125 and loaded.hidden_layer_sizes == (8, 4)


def test_names_of_features_come_back(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["u", "v"])
    saved = MongeMap("sqeuclidean").fit(frame, Y)
    saved.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.feature_names_in_.tolist() == ["u", "v"]
    np.testing.assert_array_equal(loaded.transform(frame), saved.transform(frame))


def test_the_header_records_versions_and_data(model_file, models):
    header = storage.read_header(model_file)
    assert header["version"] == storage.FORMAT_VERSION
    assert header["versions"]["jax"] == jax.__version__
    assert header["data_sha256"] == models("squared Euclidean").data_sha256_


def test_a_model_is_applied_in_its_own_dimension_only(model_file):
    with pytest.raises(ValueError, match="3 features, but MongeMap is expecting 2"):
        load(model_file).transform(np.zeros((4, 3)))


def test_a_field_of_a_kind_that_is_not_known_takes_objects_only():
    kind = NewType("kind", object)
    assert fits(SquaredEuclidean(), kind)
    assert not fits(1.0, kind) and not fits("os.system", kind)


# Saving


def test_a_file_is_replaced_on_request_only(model_file, models):
    before = model_file.read_bytes()
    with pytest.raises(FileExistsError, match=model_file.name):
        models("power norm").save(model_file)
    assert model_file.read_bytes() == before
    models("power norm").save(model_file, overwrite=True)
    assert isinstance(load(model_file).cost, PowerNorm)


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_save_that_fails_leaves_the_earlier_file(model_file, models, monkeypatch, function):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = model_file.read_bytes()
    monkeypatch.setattr(os, function, full)
    with pytest.raises(OSError, match="No space left"):
        models("power norm").save(model_file, overwrite=True)
    monkeypatch.undo()
    assert model_file.read_bytes() == before
    assert os.listdir(model_file.parent) == [model_file.name]


class Doubled(SquaredEuclidean):
    """A cost from outside the library."""


class Still(Diffeo):
    """A flow from outside the library."""

    def forward(self, x):
        return x

    def inverse(self, u):
        return u

    def log_det(self, x):
        return 0 * x[:, 0]


class Secret(SquaredEuclidean):
    """A cost that holds what no file can hold."""

    function: Callable = eqx.field(static=True, default=len)


def with_cost(estimator, cost):
    changed = copy.copy(estimator)
    changed.map_ = eqx.tree_at(lambda entropic_map: entropic_map.cost, estimator.map_, cost)
    return changed


@pytest.mark.parametrize("cost", [Cost(Doubled()), Cost(SquaredEuclidean(), Still())])
def test_own_classes_come_back_where_they_are_passed(models, cost, tmp_path):
    path = tmp_path / "model"
    with_cost(models("squared Euclidean"), cost).save(path)
    found = load(path, classes=[Doubled, Still])
    assert eqx.tree_equal(found.map_.cost, cost)
    name = "Doubled" if cost.phi_mu is None else "Still"
    assert f"class {name}, which is not part of mongefit. Pass" in refusal(path)
    with pytest.raises(OptionError, match="classes must be a list of classes"):
        load(path, classes=["Doubled"])


def test_a_class_of_the_same_name_as_ours_is_another_one(models, tmp_path):
    ours = Mahalanobis

    class Mahalanobis_(SquaredEuclidean):
        pass

    Mahalanobis_.__name__ = ours.__name__
    path = tmp_path / "model"
    with_cost(models("squared Euclidean"), Cost(Mahalanobis_())).save(path)
    assert "not part of mongefit" in refusal(path)
    assert type(load(path, classes=[Mahalanobis_]).map_.cost.h) is Mahalanobis_


def test_what_cannot_be_saved_is_refused_before_anything_is_written(models, tmp_path):
    estimator = with_cost(models("squared Euclidean"), Cost(Secret()))
    with pytest.raises(OptionError, match=r"map\.cost\.h\.function is len, which a file cannot"):
        estimator.save(tmp_path / "model")
    assert not os.listdir(tmp_path)


def test_functions_among_the_options_are_left_out_with_a_warning(models, tmp_path):
    estimator = copy.copy(models("icnn")).set_params(
        losses=[lambda context: 0.0], optimizer=optax.adam(0.1)
    )
    with pytest.warns(UserWarning, match="does not keep options.losses, options.optimizer"):
        estimator.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.losses is None and loaded.optimizer is None
    np.testing.assert_array_equal(loaded.transform(Z), estimator.transform(Z))


def test_solvers_come_back(tmp_path):
    """Those of a cost as well as those of the estimator."""
    with double_precision():
        cost = ConjugateICNN(2, (4,), key=jr.key(0), solver=LBFGSInverse(max_iter=77))
    saved = MongeMap(cost, max_iter=0, epsilon=0.1, dual=SinkhornDual(1e-7, 99))
    saved.fit(X, Y, pairs=PAIRS).save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.map_.cost.h.solver == LBFGSInverse(max_iter=77)
    assert loaded.dual == SinkhornDual(1e-7, 99)


class OwnDual(SinkhornDual):
    """A solver from outside the library."""


def test_an_own_solver_comes_back_too(tmp_path):
    saved = MongeMap("sqeuclidean", epsilon=0.1, dual=OwnDual(1e-7, 99)).fit(X, Y)
    saved.save(tmp_path / "model")
    assert "class OwnDual" in refusal(tmp_path / "model")
    assert load(tmp_path / "model", classes=[OwnDual]).dual == OwnDual(1e-7, 99)


def test_an_ensemble_comes_back_with_its_options_and_members(tmp_path):
    """A cost that was given as an object comes back as the first member fitted it."""
    with double_precision():
        cost = ICNN(2, (4,), key=jr.key(0))
    saved = EnsembleMap(MongeMap(cost, max_iter=1, epsilon=0.3), n_members=2, max_points=None)
    saved.fit(X, Y, pairs=PAIRS[:12]).save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    for method in ("transform", "inverse_transform", "spread", "informed"):
        np.testing.assert_array_equal(getattr(loaded, method)(Z), getattr(saved, method)(Z))
    np.testing.assert_array_equal(loaded.scores_, saved.scores_)
    assert (loaded.n_members, loaded.max_points) == (2, None)
    first, second = (member.map_.cost.h for member in saved.members_)
    assert eqx.tree_equal(loaded.estimator.cost, first) and not eqx.tree_equal(first, second)
    assert (loaded.estimator.max_iter, loaded.estimator.epsilon) == (1, 0.3)


# Bad files


def test_a_missing_file_and_a_folder(tmp_path):
    assert "not found. Check the name" in refusal(tmp_path / "absent")
    assert "there is no folder" in refusal(tmp_path / "absent" / "model")
    assert "is a folder" in refusal(tmp_path)


def test_a_missing_file_names_its_near_matches(model_file):
    said = refusal(model_file.with_name("modle.safetensors"))
    assert said.endswith("not found. Did you mean model.safetensors?")


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def test_a_pickle_in_disguise_is_not_opened(model_file, tmp_path):
    mark = tmp_path / "mark"
    payload = pickle.dumps(Trap(mark))
    disguises = [payload, struct.pack("<Q", len(payload)) + payload + model_file.read_bytes()]
    archive = tmp_path / "archive.npz"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("data.pkl", payload)
    disguises.append(archive.read_bytes())
    for content in disguises:
        model_file.write_bytes(content)
        assert "is not a mongefit model, or is damaged" in refusal(model_file)
    assert not mark.exists()


def test_another_safetensors_file(tmp_path):
    path = tmp_path / "other.safetensors"
    for metadata in (None, {"format": "pt"}, {"mongefit": "{"}, {"mongefit": "[]"}):
        path.write_bytes(safetensors.numpy.save({"weight": X}, metadata=metadata))
        assert "not a mongefit model" in refusal(path)


@pytest.mark.parametrize(("dtype", "size"), [("F8_E4M3", 1), ("BF16", 2), ("I128", 16)])
def test_a_tensor_of_a_type_that_numpy_does_not_have(tmp_path, dtype, size):
    path = tmp_path / "other.safetensors"
    header = {"map.x": {"dtype": dtype, "shape": [1], "data_offsets": [0, size]}}
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(size))
    assert "not a mongefit model" in refusal(path)


def test_a_truncated_file(model_file):
    content = model_file.read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for length in (0, 1, 7, 8, 9, header // 2, header - 1, header, header + 1, len(content) - 1):
        model_file.write_bytes(content[:length])
        refusal(model_file)
    model_file.write_bytes(content + b"\0")
    refusal(model_file)


@pytest.mark.parametrize("length", [0, 2**24, 2**40, 2**63, 2**64 - 1])
def test_an_absurd_length_of_the_header(model_file, length):
    content = model_file.read_bytes()
    model_file.write_bytes(struct.pack("<Q", length) + content[8:])
    refusal(model_file)


def test_a_flipped_bit_never_gives_another_model(model_file):
    content = model_file.read_bytes()
    header, tensors = storage._read(model_file)
    refused = 0
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        model_file.write_bytes(damaged)
        try:
            found_header, found = storage._read(model_file)
        except ModelFileError:
            refused += 1
            continue
        # Such as 1e-07 written as 1E-07.
        assert found_header == header
        assert found.keys() == tensors.keys()
        assert all(np.array_equal(found[name], tensors[name]) for name in tensors)
    assert refused > 0.99 * len(content) / 7


def set_header(*keys_and_value):
    *keys, last, value = keys_and_value

    def edit(header, tensors):
        for key in keys:
            header = header[key]
        header[last] = value

    return edit


def at(header, *keys):
    for key in keys:
        header = header[key]
    return header


def spoil(name, value):
    def edit(header, tensors):
        tensors[name] = tensors[name].copy()
        tensors[name].flat[0] = value

    return edit


def replace(name, function):
    return lambda header, tensors: tensors.update({name: function(tensors.pop(name))})


COST = ("map", "fields", "cost", "fields")
FLOW = (*COST, "phi_mu", "fields")
FORGERIES = {
    "NaN": ("icnn", spoil("map.cost.h.out", np.nan), "map.cost.h.out contains NaN or infinity"),
    "infinity": ("icnn", spoil("map.f", np.inf), "map.f contains NaN or infinity"),
    "missing tensor": (
        "icnn",
        lambda header, tensors: tensors.pop("map.cost.h.bias[1]"),
        "map.cost.h.bias[1] is missing",
    ),
    "extra tensor": (
        "icnn",
        lambda _, tensors: tensors.update({"map.h": X}),
        "map.h does not belong",
    ),
    "stray tensor": ("icnn", lambda _, tensors: tensors.update(other=X), "other does not belong"),
    "path as a name": (
        "icnn",
        lambda _, tensors: tensors.update({"../../etc/passwd": X}),
        "does not belong",
    ),
    "wrong shape": ("icnn", replace("map.g", lambda g: g[1:]), "map.g is float64[23]; this model"),
    "transposed": ("icnn", replace("map.x", lambda x: x.T.copy()), "map.x is float64[2, 24]"),
    "wrong type": ("icnn", replace("map.b", lambda b: b.astype("f4")), "map.b is float32[24]"),
    "whole numbers": ("icnn", replace("map.b", lambda b: b.astype("i8")), "real numbers"),
    "vector for a matrix": (
        "icnn",
        replace("map.cost.h.quadratic", lambda q: q[0]),
        "its ICNN has a quadratic of the wrong kind",
    ),
    "other widths": (
        "icnn",
        replace("map.cost.h.passthrough[1]", lambda weight: weight[1:]),
        "not one of 2 features",
    ),
    "other features": (
        "icnn",
        replace("map.cost.h.passthrough[0]", lambda weight: weight[:, :1].copy()),
        "not one of 2 features",
    ),
    "other precision": (
        "icnn",
        replace("map.cost.h.out", lambda out: out.astype("f4")),
        "a tensor of its cost is not float64",
    ),
    "fewer layers": (
        "icnn",
        lambda header, tensors: at(header, *COST, "h", "fields", "bias", "tuple").pop(),
        "",
    ),
    "short potentials within": (
        "debiased",
        replace("map.own.source", lambda f: f[1:]),
        "potentials within each cloud",
    ),
    "other precision within": (
        "debiased",
        replace("map.own.target", lambda g: g.astype("f4")),
        "within each cloud",
    ),
    "centre of other features": (
        "icnn",
        replace("map.units.centre", lambda c: c[1:]),
        "its units are not those of 2",
    ),
    "several scales": (
        "icnn",
        replace("map.units.scale", lambda s: s[None]),
        "its Units has a scale of the wrong kind",
    ),
    "huge cloud": ("icnn", set_header("shape", [10**9, 24, 2]), "needs float64[1000000000"),
    "many blocks": ("shared flow", set_header(*FLOW, "n_blocks", 10**9), "do not fit its sizes"),
    "deep blocks": ("shared flow", set_header(*FLOW, "depth", 10**9), "do not fit its sizes"),
    "wide blocks": ("shared flow", set_header(*FLOW, "width", 10_000), "do not fit its sizes"),
    "unknown class": ("icnn", set_header(*COST, "h", "class", "os.system"), "unknown class"),
    "class of another kind": ("icnn", set_header(*COST, "h", "class", "Paired"), "other fields"),
    "loss for a cost": (
        "icnn",
        set_header(*COST, "h", {"class": "CostSize", "fields": {}}),
        "its Cost has a h of the wrong kind",
    ),
    "field too many": ("icnn", set_header(*COST, "h", "fields", "__class__", 1), "other fields"),
    "unknown activation": (
        "icnn",
        set_header(*COST, "h", "fields", "activation", "__import__"),
        "activation of the wrong kind",
    ),
    "unknown option": ("icnn", set_header("options", "__class__", 1), "not a valid model"),
    "unknown precision": ("icnn", set_header("dtype", "object"), "unknown type 'object'"),
    "unknown estimator": ("icnn", set_header("estimator", "Popen"), "unknown kind 'Popen'"),
    "setting as code": (
        "icnn",
        set_header(*COST, "h", "fields", "alpha", "(1),f8"),
        "its ICNN has a alpha of the wrong kind",
    ),
    "setting as list": (
        "icnn",
        set_header(
            "losses",
            {"tuple": [{"class": "Paired", "fields": {"huber": {"list": [2.0]}, "direction": ""}}]},
        ),
        "its Paired has a",
    ),
    "nothing for an object": ("icnn", set_header("map", []), "where an object should be"),
    "another object": (
        "icnn",
        set_header("map", {"class": "SquaredEuclidean", "fields": {}}),
        "holds no map",
    ),
    "size as code": ("shared flow", set_header("shape", [24, 24, "(1),f8"]), "whole numbers"),
    "precision as code": ("icnn", set_header("dtype", "(1).__class__,f8"), "unknown type"),
    "newer format": ("icnn", set_header("version", 7), "format version 7; this release"),
    **{
        f"format version {version}": (
            "icnn",
            set_header("version", version),
            f"format version {version!r}, which no release",
        )
        for version in (0, -1, True, 1.0, "1", None)
    },
    **{
        f"no {column} in the history": (
            "icnn",
            lambda _, tensors, column=column: tensors.pop(f"history.{column}"),
            f"history.{column} is missing from a model trained for 3 steps",
        )
        for column in ("step", "loss", "epsilon", "applied")
    },
    "no history": (
        "icnn",
        lambda _, tensors: [tensors.pop(key) for key in list(tensors) if "history" in key],
        "history.step is missing",
    ),
    "no format": ("icnn", lambda header, _: header.pop("version"), "not a mongefit model"),
    **{
        f"{key}: {value}": ("icnn", set_header(key, value), "")
        for key in ("map", "options", "shape", "format", "version", "estimator", "losses")
        for value in (None, "x", [], [None, 1.5, -1])
    },
}


@pytest.mark.parametrize(("name", "edit", "words"), FORGERIES.values(), ids=FORGERIES)
def test_a_forged_file_with_the_right_checksum(models, name, edit, words, tmp_path):
    path = tmp_path / "model.safetensors"
    models(name).save(path)
    rewrite(path, lambda header, tensors: None)
    assert eqx.tree_equal(load(path).map_, models(name).map_)
    rewrite(path, edit)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert words in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB


def test_the_order_of_a_header_does_not_show_in_the_file(tmp_path):
    for name, header in (("one", {"a": 1, "b": 2}), ("other", {"b": 2, "a": 1})):
        write_tensors(tmp_path / name, header, {"x": X})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
