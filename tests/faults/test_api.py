"""The fault table through Python: errors name what, where and how to mend it; nothing is fitted.

Rows with a right result, with or without a warning, are in tests/test_estimator.py; those of files,
checkpoints and model files in tests/files, tests/test_checkpoints.py and tests/test_storage.py.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse

from mongefit import Mahalanobis, MongeMap
from mongefit._validation import (
    check_layers,
    check_pairs,
    check_points,
    check_schedule,
    check_seed,
    check_weights,
)
from mongefit.errors import DataError, NotFittedError, OptionError
from mongefit.losses import LowRank

N, M, D = 24, 20, 2
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, D)), RNG.normal(size=(M, D))
PAIRS = np.stack([np.arange(6), np.arange(6)], axis=1)


def refusal(error, *, options=None, source=X, target=Y, **data):
    """The message with which a fit is refused, after checking that it left nothing behind."""
    estimator = MongeMap(**(options or {}))
    before = dict(vars(estimator))
    with pytest.raises(error) as caught:
        estimator.fit(source, target, **data)
    assert isinstance(caught.value, ValueError)
    assert vars(estimator) == before
    with pytest.raises(NotFittedError):
        estimator.transform(X)
    return str(caught.value)


def with_entry(array, index, value):
    changed = array.astype(float)
    changed[index] = value
    return changed


BAD_POINTS = {
    "1-D": (lambda p: p[:, 0], ["two-dimensional", "1D array", "reshape(-1, 1)"]),
    "3-D": (lambda p: p[None], ["two-dimensional, points in rows", "3D array", f", {D})"]),
    "no points": (lambda p: p[:0], ["no points", "(0, 2)", "minimum of 1"]),
    "no features": (lambda p: p[:, :0], ["no features", ", 0)", "minimum of 1"]),
    "NaN": (lambda p: with_entry(p, (5, 1), np.nan), ["row 5 column 1", "Remove these rows"]),
    "inf": (lambda p: with_entry(p, (7, 0), np.inf), ["row 7 column 0", "Remove these rows"]),
    "-inf": (lambda p: with_entry(p, (0, 0), -np.inf), ["row 0 column 0", "Remove these rows"]),
    "many NaN": (
        lambda p: with_entry(p, [3, 4, 9, 11], np.nan),
        ["4 rows", "row 3 column 0, row 3 column 1, row 4 column 0 and 5 more"],
    ),
    "strings": (lambda p: p.astype(str), ["type <U", "dtype=float"]),
    "objects": (lambda p: p.astype(object), ["type object", "dtype=float"]),
    "booleans": (lambda p: p > 0, ["type bool", "dtype=float"]),
    "masked": (
        lambda p: np.ma.masked_greater(p, np.sort(p[:, 0])[-2]),
        ["masked in", "first: row", "Remove these rows or fill them in"],
    ),
    "complex": (lambda p: p + 1j, ["Complex data not supported", "real numbers are needed"]),
    "ragged": (lambda p: [[1.0, 2.0], [3.0]], ["rows differ in length", "Make them equal"]),
    "sparse NaN": (
        lambda p: scipy.sparse.csr_array(with_entry(p, (5, 1), np.nan)),
        ["row 5 column 1"],
    ),
}


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(("spoil", "words"), BAD_POINTS.values(), ids=BAD_POINTS)
def test_points_that_cannot_be_used(spoil, words, side):
    name, points = {"source": ("X", X), "target": ("Y", Y)}[side]
    message = refusal(DataError, **{side: spoil(points)})
    assert message.startswith(f"{name} ")
    assert all(word in message for word in words), message


def test_clouds_of_different_dimension():
    message = refusal(DataError, target=Y[:, :1])
    assert "X has 2 features and Y has 1; both clouds must have the same" in message


def test_a_sparse_matrix_too_large_for_memory_is_refused_before_it_is_densified(monkeypatch):
    huge = scipy.sparse.csr_array((2**20, 2**20))
    monkeypatch.setattr("mongefit._runtime.memory.available_memory", lambda: 2**30)
    message = refusal(DataError, source=huge)
    assert "making it dense needs about 1.64e+04 GiB; 1 GiB are free. Reduce it first" in message


BAD_WEIGHTS = {
    "masked": (lambda w: np.ma.array(w, mask=np.arange(len(w)) == 4), ["masked in 1 rows"]),
    "negative": (lambda w: with_entry(w, 3, -0.1), ["negative at row 3 (-0.1)", "≥ 0"]),
    "NaN": (lambda w: with_entry(w, 4, np.nan), ["NaN or infinite at row 4", "Set it to 0"]),
    "inf": (lambda w: with_entry(w, 4, np.inf), ["NaN or infinite at row 4", "Set it to 0"]),
    "too short": (lambda w: w[1:], ["has shape", "one weight per point"]),
    "a column": (lambda w: w[:, None], ["has shape", "one weight per point"]),
    "all zero": (lambda w: 0 * w, ["zero everywhere", "At least one weight must be positive"]),
    "strings": (lambda w: w.astype(str), ["type <U", "real numbers are needed"]),
    "sum": (lambda w: 2 * w, ["sum 2, not 1", "normalize_weight=True"]),
}


@pytest.mark.parametrize("side", ["source_weight", "target_weight"])
@pytest.mark.parametrize(("spoil", "words"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_weights_that_cannot_be_used(spoil, words, side):
    size = N if side == "source_weight" else M
    message = refusal(DataError, **{side: spoil(np.full(size, 1 / size))})
    assert message.startswith(f"{side} ")
    assert all(word in message for word in words), message


def test_only_the_sum_of_weights_is_forgiven_on_request():
    weight = np.array([3, 0, 1])
    np.testing.assert_array_equal(check_weights(weight, 3, "w", normalize=True), [0.75, 0, 0.25])
    with pytest.raises(DataError, match="negative at row 1"):
        check_weights([3, -1, 1], 3, "w", normalize=True)
    np.testing.assert_array_equal(check_weights(None, 4, "w"), np.full(4, 0.25))


BAD_PAIRS = {
    "source too large": ([[0, 0], [N, 1]], ["1 of 2", "source row", "pair 1, row 24", "0 to 23"]),
    "target too large": ([[0, 0], [1, M]], ["1 of 2", "target row", "pair 1, row 20", "0 to 19"]),
    "negative": ([[-1, 0]], ["source row", "pair 0, row -1", "numbered 0 to 23"]),
    "negative target": ([[0, -1]], ["target row", "pair 0, row -1", "numbered 0 to 19"]),
    "float": (PAIRS.astype(float), ["type float64", ".astype(int)"]),
    "masked": (np.ma.array(PAIRS, mask=PAIRS == 3), ["pairs is masked in 1 rows (first: row 3)"]),
    "booleans": (PAIRS > 0, ["type bool", "integer row numbers"]),
    "three columns": ([[0, 0, 0]], ["shape (1, 3)", "(k, 2) is needed"]),
    "1-D": ([0, 0], ["shape (2,)", "(k, 2) is needed"]),
    "unequal length": ([[0, 1], [2]], ["rows differ in length", "Make them equal"]),
    "one source to two targets": (
        [[0, 0], [3, 1], [3, 2]],
        ["Source row 3 is paired with 2 targets: [1, 2]", "many_to_many=True"],
    ),
    "none": (None, ["nothing to learn it from", "give pairs"]),
    "empty": (np.zeros((0, 2), int), ["nothing to learn it from", "give pairs"]),
}


@pytest.mark.parametrize(("pairs", "words"), BAD_PAIRS.values(), ids=BAD_PAIRS)
def test_pairs_that_cannot_be_used(pairs, words):
    message = refusal(DataError, pairs=pairs)
    assert all(word in message for word in words), message


QUESTIONABLE_PAIRS = {
    "repeated": ([[3, 1], [0, 0], [3, 1], [3, 1]], "2 of 4 pairs are repeated", [[3, 1], [0, 0]]),
    "two sources to one target": ([[0, 1], [2, 1]], "first: target row 1", [[0, 1], [2, 1]]),
    "one": ([[3, 1]], "Only one pair", [[3, 1]]),
}


@pytest.mark.parametrize(
    ("pairs", "words", "kept"), QUESTIONABLE_PAIRS.values(), ids=QUESTIONABLE_PAIRS
)
def test_pairs_that_are_taken_with_a_warning(pairs, words, kept):
    with pytest.warns(UserWarning, match=words) as caught:
        np.testing.assert_array_equal(check_pairs(pairs, N, M)[0], kept)
    assert len(caught) == 1


def test_several_targets_for_one_source_are_taken_on_request():
    pairs = [[3, 1], [3, 2], [4, 2]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(check_pairs(pairs, N, M, many_to_many=True)[0], pairs)


BAD_OPTIONS = [
    *[("epsilon", value, "positive and finite") for value in (0, -1.0, np.nan, np.inf)],
    *[("epsilon", value, "a number") for value in (True, "ab", (None, 0.1))],
    *[("epsilon", value, "a pair (start, end)") for value in (None, (0.1,), (0.3, 0.2, 0.1))],
    *[("epsilon", (0.1, value), "epsilon's end") for value in (0, -1, np.nan)],
    *[("epsilon", (value, 0.1), "epsilon's start") for value in (0, -1, np.nan)],
    *[("alpha", value, "positive and finite") for value in (0, -0.1, np.nan, np.inf)],
    *[("learning_rate", value, "positive and finite") for value in (0, -0.1, np.nan)],
    *[("diffeo_learning_rate", value, "positive and finite") for value in (0, -0.1)],
    ("learning_rate", "fast", "a number"),
    *[("max_iter", value, "a whole number >= 0") for value in (-1, 1.5, True, None)],
    ("hidden_layer_sizes", (), "at least one width, such as (64, 64)"),
    ("hidden_layer_sizes", None, "a tuple of widths, such as (64, 64)"),
    *[("hidden_layer_sizes", (8, value), "a whole number >= 1") for value in (0, -8, 8.5)],
    *[
        (name, value, "True or False")
        for name in ("strict", "symmetric", "many_to_many", "normalize_weight", "debias")
        for value in ("no", 1, None)
    ],
    ("dtype", "float16", "one of float64, mixed, float32"),
    ("cost", "icn", "Did you mean icnn?"),
    ("cost", "euclidean", "Did you mean sqeuclidean?"),
    ("cost", None, "one of icnn, conjugate_icnn, matrix, sqeuclidean or a ConvexFunction"),
    ("diffeo", "shard", "Did you mean shared?"),
    *[("diffeo", value, "a pair of them") for value in (("shared", "shared"), (None,), 3)],
    *[("random_state", value, "cannot be") for value in ("seed", -1, 2**70, 1.5)],
]


@pytest.mark.parametrize(("name", "value", "words"), BAD_OPTIONS, ids=str)
def test_options_that_cannot_be_used(name, value, words):
    message = refusal(OptionError, options={name: value}, pairs=PAIRS)
    assert message.startswith(name) and words in message, message


def test_a_cost_made_for_another_dimension():
    assert "2 of the data" in refusal(DataError, options={"cost": Mahalanobis(np.eye(3))})


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'epsilom'.*'epsilon'"):
        MongeMap().set_params(epsilom=0.1)
    with pytest.raises(TypeError, match="epsilom"):
        MongeMap(epsilom=0.1)


def test_epsilon_that_rises_is_taken_with_a_warning():
    with pytest.warns(UserWarning, match=r"epsilon rises from 0\.01 to 0\.1"):
        assert check_schedule((0.01, 0.1), "epsilon") == (0.01, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_schedule((0.1, 0.01), "epsilon") == (0.1, 0.01)
        assert check_schedule(1, "epsilon") == (1.0, 1.0)


def test_a_width_stands_for_one_hidden_layer():
    assert check_layers(8) == (8,)
    assert check_layers(np.array([8, 4])) == (8, 4)


def test_a_generator_gives_a_seed_once():
    assert check_seed(7) == check_seed(np.int64(7)) == 7
    generator = np.random.RandomState(0)
    first, second = check_seed(generator), check_seed(generator)
    assert first != second
    assert check_seed(np.random.RandomState(0)) == first


def test_float64_points_are_not_copied():
    assert check_points(X, "X") is X


def labels(size, **changed):
    found = np.array(["left", "right"] * size, dtype=object)[:size]
    for row, label in changed.items():
        found[int(row[1:])] = label
    return found


BAD_GROUPS = {
    "a label on one side only": (
        (labels(N, _3="leftt"), labels(M)),
        ["'leftt' occurs in X only", "Did you mean left?", "marked by None"],
    ),
    "NaN": ((labels(N, _3=np.nan), labels(M)), ["NaN for row 3 of X", "marked by None"]),
    "unequal length": ((labels(N), labels(3)), ["20 points of Y", "one label per point"]),
    "no label": (([None] * N, [-1] * M), ["labels no point"]),
    "not a pair": (labels(N), ["a pair (labels of X, labels of Y)"]),
}


@pytest.mark.parametrize(("groups", "words"), BAD_GROUPS.values(), ids=BAD_GROUPS)
def test_groups_that_cannot_be_used(groups, words):
    message = refusal(DataError, groups=groups)
    assert all(word in message for word in words), message


def test_a_rank_that_says_nothing():
    options = {"losses": [LowRank(5)], "max_iter": 1, "hidden_layer_sizes": (4,)}
    assert "LowRank(5) says nothing in 2 dimensions" in refusal(OptionError, options=options)


@pytest.mark.parametrize("options", [{"cost": "sqeuclidean"}, {"max_iter": 1}])
def test_a_request_larger_than_memory(options, monkeypatch):
    monkeypatch.setattr("mongefit._runtime.memory.available_memory", lambda: 2**10)
    pairs = None if "cost" in options else PAIRS
    message = refusal(DataError, options=options, pairs=pairs)
    assert "between 24 and 20 points needs about" in message and "GiB are free" in message


def test_outputs_that_cannot_be_written(tmp_path):
    model = MongeMap("sqeuclidean").fit(X, Y)
    (tmp_path / "old").write_text("precious")
    for name, error, words in (
        ("old", FileExistsError, "old exists.*overwrite=True"),
        ("no/m", OSError, "no/m"),
        ("", IsADirectoryError, "is a folder"),
    ):
        with pytest.raises(error, match=words):
            model.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "precious"
