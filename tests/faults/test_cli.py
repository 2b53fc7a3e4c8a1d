"""The fault table through the command line: a message and an exit code, or a result and a warning.

The name of each case is its row. Every message is looked at for what is wrong, where, and how to
mend it; a command that fails leaves the folder as it was.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import mongefit
from mongefit import MongeMap
from mongefit._io.tensors import _checksum
from mongefit.datasets import t_shape
from tests.command_line import run

N = 8
X, Y = t_shape(N, seed=3)
SAME = np.repeat(np.arange(N)[:, None], 2, axis=1)
FIXED = "--cost sqeuclidean --epsilon 0.1"
LEARN = "fit x.npy y.npy --pairs {} -o m --hidden-layer-sizes 4 --epsilon 0.1 --max-iter 0"
FIT = "fit {} y.npy -o m " + FIXED


def changed(index, value, points=X):
    points = points.astype(float)
    points[index] = value
    return points


class Trap:
    """Leaves a mark where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("mark",)


def bomb():
    """An array of a petabyte, in a few bytes."""
    stream = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**46, 2)}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def npy(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def forged(edit):
    """A model file, changed by one who knows how its checksum is made."""

    def forge(content):
        size = struct.unpack("<Q", content[:8])[0]
        header = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["mongefit"])
        tensors = safetensors.numpy.load(content)
        edit(header, tensors)
        header["sha256"] = _checksum(header, tensors)
        return safetensors.numpy.save(tensors, metadata={"mongefit": json.dumps(header)})

    return forge


# Each row: the content of the file it is about, the command with {} for that file, the exit code,
# and words for what, where and how to mend it.
REFUSED = {
    # Arrays
    "1-D x": ("q.npy", npy(X[:, 0]), FIT, 3, "q.npy must be two-dimensional|reshape"),
    "3-D x": ("q.npy", npy(X[None]), FIT, 3, "q.npy must be two-dimensional|3D array"),
    "different d": (
        "q.npy", npy(np.ones((4, 3))), FIT, 3, "q.npy has 3 features and y.npy has 2|the same",
    ),
    "n = 0": ("q.npy", npy(X[:0]), FIT, 3, "q.npy has no points|minimum of 1"),
    "d = 0": ("q.npy", npy(X[:, :0]), FIT, 3, "q.npy has no points or no features|minimum of 1"),
    "NaN": ("q.npy", npy(changed((5, 1), np.nan)), FIT, 3, "q.npy contains NaN|row 5 column 1|Rem"),
    "Inf": ("q.npy", npy(changed((2, 0), np.inf)), FIT, 3, "infinity|row 2 column 0|Remove"),
    "strings": ("q.npy", npy(X.astype(str)), FIT, 3, "q.npy|real numbers"),
    "booleans": ("q.npy", npy(X > 0), FIT, 3, "q.npy|bool"),
    "complex": ("q.npy", npy(X + 1j), FIT, 3, "q.npy|complex"),
    # Weights
    **{
        row: ("w.csv", "\n".join(map(str, weight)).encode(),
              f"fit x.npy y.npy -o m {FIXED} --source-weight {{}}", 3, words)
        for row, weight, words in (
            ("negative weight", [-0.125, *[1.125 / 7] * 7], "w.csv is negative at row 0|≥ 0"),
            ("NaN weight", ["nan", *[1 / 8] * 7], "w.csv is NaN or infinite at row 0|Set it to 0"),
            ("weights of wrong length", [0.5, 0.5], "w.csv has shape (2,)|one weight per point"),
            ("weights all zero", [0] * 8, "w.csv is zero everywhere|At least one"),
            ("weights of another sum", [2] * 8, "w.csv has sum 16, not 1|--normalize-weight"),
        )
    },
    # Pairs
    "pair index >= n": ("p.csv", b"0,0\n8,1\n", LEARN, 3, "source row that does not|pair 1, row 8"),
    "negative pair index": ("p.csv", b"0,0\n1,-1\n", LEARN, 3, "target row that|row -1|0 to 7"),
    "float pair index": ("p.csv", b"0,0\n1,1.5\n", LEARN, 3, "p.csv, line 2|'1.5'"),
    "one source to two targets": (
        "p.csv", b"0,0\n0,1\n", LEARN, 3, "Source row 0 is paired with 2 targets|--many-to-many",
    ),
    "no pairs": ("p.npy", npy(SAME[:0]), LEARN, 3, "p.npy holds no pairs|"),
    "no pairs and no other loss": (
        "-", b"", "fit x.npy y.npy -o m", 2, "learned from known pairs|give --pairs FILE",
    ),
    "columns of unequal length": ("p.csv", b"0,0\n1\n", LEARN, 3, "p.csv, line 2|"),
    # Files
    "missing file": ("-", b"", "fit xx.npy y.npy -o m " + FIXED, 3, "xx.npy not found|mean x.npy"),
    "a directory": ("-", b"", "fit sub.npy y.npy -o m " + FIXED, 3, "sub.npy is a folder|"),
    "truncated": ("q.npy", npy(X)[:-9], FIT, 3, "q.npy|"),
    "wrong content for the extension": ("q.npz", b"1,2\n3,4\n", FIT, 3, "q.npz|"),
    "non-numeric cell": ("q.csv", b"1,2\n3,oops\n", FIT, 3, "q.csv, line 2, column 2|'oops'"),
    "ragged row": ("q.csv", b"1,2\n3,4,5\n", FIT, 3, "q.csv, line 2|"),
    "npy with pickled objects": (
        "q.npy", npy(np.array([Trap()], dtype=object), allow_pickle=True), FIT, 3, "q.npy|objects",
    ),
    "bare pickle": ("q.npy", pickle.dumps(Trap()), FIT, 3, "q.npy|"),
    "decompression bomb": ("q.npy", bomb(), FIT, 3, "q.npy|"),
    "output not writable": (
        "-", b"", f"fit x.npy y.npy -o no/m {FIXED}", 1, "there is no folder|Make it first",
    ),
    "output exists": (
        "-", b"", f"fit x.npy y.npy -o old {FIXED}", 1, "old exists|--force",
    ),
    "output is an input": (
        "-", b"", f"fit x.npy y.npy -o x.npy --force {FIXED}", 2, "also an input|another name",
    ),
    # Options
    **{
        f"{name} {value}": (
            "p.csv", b"0,0\n1,1\n", f"{LEARN} --{name} {value}", 2, f"{name}|{words}",
        )
        for name, value, words in (
            ("epsilon", "0", "positive and finite"),
            ("epsilon", "-1", "positive and finite"),
            ("epsilon", "nan", "positive and finite"),
            ("alpha", "0", "positive and finite"),
            ("learning-rate", "0", "positive and finite"),
            ("max-iter", "-1", "a whole number >= 0"),
            ("hidden-layer-sizes", "''", "list of whole numbers"),
            ("epsilom", "1", "No such option|epsilon"),
            ("cost", "icn", "is not one of|icnn"),
        )
    },
    # While running
    "resume without a folder": ("p.csv", b"0,0\n", LEARN + " --resume", 2, "needs --checkpoint|"),
    "epsilon too small, under strict": (
        "-", b"", "fit x.npy y.npy -o m --cost sqeuclidean --epsilon 1e-20 --strict", 4,
        "did not converge at epsilon 1e-20|the smallest that did",
    ),
    # Model files
    **{
        f"model: {row}": ("bad", edit, "transform {} x.npy -o t.csv", 3, words)
        for row, edit, words in (
            ("pickle in disguise", lambda _: pickle.dumps(Trap()), "bad is not a mongefit model|"),
            ("truncated", lambda model: model[:-100], "bad is not|damaged"),
            ("absurd header length", lambda m: struct.pack("<Q", 2**62) + m[8:], "bad is not|"),
            ("flipped bit", lambda m: m[:-5] + bytes([m[-5] ^ 1]) + m[-4:], "bad|checksum"),
            ("NaN weights", forged(lambda _, t: t["map.f"].fill(np.nan)), "bad|map.f contains NaN"),
            ("missing tensor", forged(lambda _, t: t.pop("map.g")), "bad|map.g is missing"),
            ("extra tensor", forged(lambda _, t: t.update(other=X)), "bad|other does not belong"),
            ("path tricks", forged(lambda _, t: t.update({"../x": X})), "bad|../x does not belong"),
            ("shape against header", forged(lambda h, _: h.update(shape=[9, 8, 2])), "needs|"),
            ("newer format", forged(lambda h, _: h.update(version=9)), "version 9|Upgrade"),
        )
    },
    "model: the wrong d": (
        "q.npy", npy(np.ones((3, 5))), "transform model {} -o t.csv", 3, "expects 2 features|got 5",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    MongeMap("sqeuclidean", epsilon=0.1).fit(X, Y).save(path)
    return path.read_bytes()


@pytest.fixture
def folder(tmp_path, monkeypatch, model_bytes):
    """Two clouds, a model and an earlier output, in the current folder."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", Y)
    (tmp_path / "old").write_text("precious")
    (tmp_path / "model").write_bytes(model_bytes)
    (tmp_path / "sub.npy").mkdir()
    return tmp_path


def contents(folder):
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
        if path.name != "lock"
    }


def arguments(text, name):
    return ["" if part == "''" else part for part in text.format(name).split()]


@pytest.mark.parametrize(
    ("name", "content", "command", "code", "words"), REFUSED.values(), ids=REFUSED
)
def test_refused(folder, model_bytes, name, content, command, code, words):
    if name != "-":
        Path(name).write_bytes(content(model_bytes) if callable(content) else content)
    before = contents(folder)
    result = run(*arguments(command, name), code=code)
    said = " ".join(result.stderr.split())
    assert "Error" in said
    # What was taken is said before a fit that fails.
    assert all(line.startswith(("Source: ", "Target: ")) for line in result.stdout.splitlines())
    assert all(word in said for word in words.split("|")), said
    assert contents(folder) == before


def shifted(cloud):
    return cloud + np.where(np.arange(N) % 2, 1e5, 0.0)[:, None]


# Each row: the clouds, options beside them, and the warning, or None.
TAKEN = {
    "n = m = 1": (X[:1], Y[:1], "", None),
    "n = 1, m > 1": (X[:1], Y, "", None),
    "d = 1": (X[:, :1], Y[:, :1], "", None),
    "d > n": (np.tri(3, 5), 1 + np.eye(3, 5), "", None),
    "integers": (np.round(X).astype(int), np.round(Y).astype(np.uint8), "", None),
    "float16": (X.astype(np.float16), Y.astype(np.float16), "", None),
    "mixed precision": (X.astype(np.float32), Y, "", None),
    "Fortran order": (np.asfortranarray(X), Y, "", None),
    "duplicate points": (X[[0, 0, 1, 1, 2, 2, 3, 3]], Y, "", None),
    "all costs zero": (np.ones_like(X), np.ones_like(Y), "", "features are constant"),
    "a constant column": (X * [1, 0], Y * [1, 0], "", "columns 1"),
    "scale 1e20": (1e20 * X, 1e20 * Y, "", None),
    "scale 1e-20": (1e-20 * X, 1e-20 * Y, "", None),
    "offset 1e8": (X + 1e8, Y + 1e8, "", None),
    "x equal to y": (X, X, "", None),
    "clusters too far apart": (shifted(X), shifted(Y), "--epsilon 0.001", "exchange no mass"),
    "epsilon too small": (X, Y, "--epsilon 1e-20", "the smallest that did"),
    "end epsilon above start": (X, Y, "--epsilon 0.05,0.1", "rises from 0.05 to 0.1"),
    "some weights zero": (X, Y, "--source-weight w.csv --normalize-weight", None),
}


@pytest.mark.parametrize(("x", "y", "options", "warning"), TAKEN.values(), ids=TAKEN)
def test_taken(folder, x, y, options, warning):
    np.save("x.npy", x)
    np.save("y.npy", y)
    Path("w.csv").write_text("0\n0\n" + "3\n" * (N - 2))
    result = run(*f"fit x.npy y.npy -o m {FIXED} {options}".split())
    if warning is None:
        assert "warning" not in result.stderr
    else:
        assert "warning: " in result.stderr and warning in result.stderr
    run("transform", "m", "x.npy", "-o", "t.npy")
    moved, model = np.load("t.npy"), mongefit.load("m")
    assert np.all(np.isfinite(moved)) and moved.dtype == np.float64
    assert model.diagnostics_["converged"]
    # The map keeps the mean of the mass.
    a, b = (np.asarray(getattr(model.map_, side), np.float64) for side in "ab")
    error = np.abs(a @ moved - b @ y.astype(float)).max()
    assert error <= 1e-9 * np.abs(y.astype(float)).max()


@pytest.mark.parametrize(
    ("pairs", "options", "warning"),
    [
        ("0,0\n1,1\n0,0\n", "", "1 of 3 pairs are repeated"),
        ("0,0\n0,1\n", "--many-to-many", None),
        ("0,1\n1,1\n", "", "first: target row 1"),
        ("0,0\n", "", "Only one pair is known"),
        ("\ufeff0,0\r\n1,1\r\n", "", None),
    ],
    ids=["duplicate pair", "many to many", "two sources to one target", "one pair", "BOM, CRLF"],
)
def test_pairs_taken(folder, pairs, options, warning):
    Path("p.csv").write_bytes(pairs.encode())
    result = run(*LEARN.format("p.csv").split(), *options.split())
    assert "Untrained" in result.stdout
    assert ("warning" in result.stderr) == (warning is not None)
    assert warning is None or warning in result.stderr


def test_queries_far_outside_the_data(folder):
    np.save("x.npy", 1e3 + X)
    result = run("transform", "model", "x.npy", "-o", "t.npy")
    assert "warning: 8 of 8 points lie far outside the data" in result.stderr
    assert np.all(np.isfinite(np.load("t.npy")))


def test_a_checkpoint_of_other_data_or_options(folder):
    np.save("p.npy", SAME)
    command = LEARN.replace("--max-iter 0", "--max-iter 1").format("p.npy") + " --checkpoint kept"
    run(*command.split(), "--holdout", "0")
    before = contents(folder)
    for change, what in (("--alpha 0.5", "options"), ("--many-to-many", None)):
        words = f"{command} --holdout 0 --resume --force {change}".split()
        if what is None:  # an option that training does not see
            run(*words)
            continue
        said = run(*words, code=3).stderr
        assert f"a run with other {what}" in said and "choose another folder" in said
        assert contents(folder) == before


def test_a_request_larger_than_memory(folder, monkeypatch):
    monkeypatch.setattr("mongefit._runtime.memory.available_memory", lambda: 2**10)
    before = contents(folder)
    said = run(*f"fit x.npy y.npy -o m {FIXED}".split(), code=3).stderr
    assert "GiB; 9.54e-07 GiB are free. Take a random part of the points." in said
    assert contents(folder) == before


@pytest.mark.parametrize("output", ["m", "t.csv"])
def test_a_full_disk(folder, monkeypatch, output):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(os, "fsync", full)
    before = contents(folder)
    command = f"fit x.npy y.npy -o m {FIXED}" if output == "m" else "transform model x.npy -o t.csv"
    said = run(*command.split(), code=1).stderr
    assert f"could not write {output} (No space left on device)" in said and "free some" in said
    assert contents(folder) == before
