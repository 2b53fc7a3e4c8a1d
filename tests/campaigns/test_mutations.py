"""Model files that were damaged or forged: refused by name or read as they are, and nothing runs.

`make fuzz` runs this at full length.
"""

from __future__ import annotations

import contextlib
import copy
import json
import signal
import struct
import sys
import threading
import traceback
import warnings

import jax.random as jr
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from jaxtyping import config

from mongefit import AutoregressiveFlow, Mahalanobis, MongeMap, PowerNorm, load
from mongefit._io.tensors import _checksum
from mongefit.errors import ConvergenceError, DataError, ModelFileError
from mongefit.losses import Directional, LowRank, Paired
from mongefit.penalties import CostSize

pytestmark = pytest.mark.usefixtures("programs_in_memory")

N, D = 6, 2
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, N, D))
PAIRS = np.stack([np.arange(N)] * 2, axis=1)
MODELS = {
    "icnn": {"losses": [Paired(), 0.1 * Directional(2), LowRank(1)], "penalties": [CostSize()]},
    "conjugate_icnn": {"cost": "conjugate_icnn", "symmetric": False},
    "flow": {
        "cost": "sqeuclidean",
        "diffeo": AutoregressiveFlow(D, key=jr.key(0), n_blocks=1, width=2),
    },
    "mahalanobis": {"cost": Mahalanobis(np.array([[2.0, 0.3], [0.3, 1.0]]))},
    "power": {"cost": PowerNorm(1.5, 0.1)},
    "trained": {"max_iter": 2},
}

# What no model file may cause. Files are opened for reading only.
FORBIDDEN = (
    "exec", "compile", "import", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink",
    "os.truncate", "shutil.", "subprocess.", "socket.", "pickle.", "marshal.", "ctypes.",
    "code.__new__", "function.__new__", "urllib.", "ftplib.", "http.", "sqlite3.", "tempfile.",
)  # fmt: skip
_watched: dict[str, list] = {}


@pytest.fixture(autouse=True)
def _no_shape_checks():
    """Forged files have wrong shapes, and the checks of the tests would import and compile."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


def _watch(event, arguments):
    seen = _watched.get("seen")
    if seen is None or threading.get_ident() != _watched["thread"]:
        return
    writes = event == "open" and (
        set(str(arguments[1])) & set("wax+") or (arguments[2] or 0) & 0b11  # a mode or flags
    )
    if writes or (event.startswith(FORBIDDEN) and not _of_a_traceback(event)):
        seen.append((event, str(arguments)[:200]))


def _of_a_traceback(event):
    """Whether Python parses a line of the library, to point at it in the text of an error."""
    frame = sys._getframe() if event == "compile" else None
    while frame is not None and frame.f_code.co_filename != traceback.__file__:
        frame = frame.f_back
    return frame is not None


sys.addaudithook(_watch)


@contextlib.contextmanager
def watched():
    """Note what Python is asked to do that reading a file does not need."""
    seen: list = []
    _watched.update(thread=threading.get_ident(), seen=seen)
    try:
        yield seen
    finally:
        _watched.pop("seen")


@contextlib.contextmanager
def no_longer_than(seconds):
    """Break off what hangs."""

    def late(*_):
        raise AssertionError(f"not over after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def parse(content):
    """The header and the tensors of a file, by the safetensors library alone."""
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["mongefit"])
    return header, safetensors.numpy.load(content)


def compose(header, tensors):
    metadata = {"mongefit": json.dumps(header)}
    return safetensors.numpy.save(
        {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}, metadata=metadata
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The bytes of every model."""
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for name, options in MODELS.items():
        model = MongeMap(**({"hidden_layer_sizes": (2,), "max_iter": 0, "epsilon": 0.1} | options))
        learns = not isinstance(model.cost, Mahalanobis | PowerNorm)
        model.fit(X, Y, pairs=PAIRS if learns else None).save(folder / name)
        load(folder / name)
        found[name] = (folder / name).read_bytes()
    return found


TOKENS = [
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"NaN", b"1e999", b"-1", b"0", b"true",
    b"\\u0000", b"\\ud800", b"\xff", b"\0" * 8, b"9" * 30, b"F64", b"BF16", b"I64", b"data_offsets",
    b"__import__", b"\x80\x04\x95", b"cos\nsystem\n",
]  # fmt: skip


def damage(rng, content):
    """A few random changes to the bytes."""
    data = bytearray(content)
    head = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(rng.integers(1, 4)):
        # Half of the time in the header, which is what is parsed.
        at = int(rng.integers(head if rng.uniform() < 0.5 else max(len(data), 1)))
        length = int(rng.integers(1, 64))
        kind = rng.integers(9)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1 and at < len(data):
            data[at] = int(rng.integers(256))
        elif kind == 2:
            data[at:at] = rng.bytes(length)
        elif kind == 3:
            del data[at : at + length]
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            data[at:at] = data[at : at + length]
        elif kind == 6:
            token = TOKENS[rng.integers(len(TOKENS))]
            data[at : at + len(token)] = token
        elif kind == 7:
            data[at:at] = TOKENS[rng.integers(len(TOKENS))]
        else:
            data[:8] = struct.pack("<Q", int(rng.integers(2**63)) >> int(rng.integers(63)))
    return bytes(data)


VALUES = [
    None, True, False, 0, 1, -1, 2, 3, 10**6, 10**12, 10**30, -(10**30), 0.5, -0.5, 1e308, 1e-320,
    float("nan"), float("inf"), float("-inf"), "", "x", "icnn", "sqeuclidean", "mahalanobis",
    "conjugate_icnn", "power_norm", "autoregressive", "float32", "float64", "object", "<object>",
    "__class__", "os.system('x')", "../../etc/passwd", "\0", "\ud800", "9" * 5000, [], [None], [[]],
    [0], [-1], [1.5], [10**9] * 3, [2] * 50, {}, {"kind": "x"}, {"kind": "Paired", "settings": {}},
    {"terms": [None]}, {"terms": 3}, {"kind": "NewtonDual", "settings": {"max_iter": -1}},
    {"kind": "Paired", "settings": {"direction": "both"}, "weight": "x"}, {"__reduce__": []},
]  # fmt: skip


def places(value, parents=()):
    """Every place in a tree of JSON values."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*parents, key)
        if isinstance(item, dict | list):
            yield from places(item, (*parents, key))


def forge(rng, header, tensors):
    """A few random changes to what the file says, of the kinds that only a forger makes."""
    header, tensors = copy.deepcopy(header), dict(tensors)
    for _ in range(rng.integers(1, 4)):
        if rng.uniform() < 0.7:
            # By the first key first: options and diagnostics have most of the places.
            first = list(header)[rng.integers(len(header))] if header else None
            spots = [spot for spot in places(header) if spot[0] == first]
            if not spots:
                continue
            *parents, last = spots[rng.integers(len(spots))]
            node = header
            for key in parents:
                node = node[key]
            kind = rng.integers(5)
            if kind == 0:
                del node[last]
            elif kind == 1 and isinstance(node, dict):
                node[str(VALUES[rng.integers(len(VALUES))])[:20]] = node[last]
            else:
                node[last] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
        elif tensors:
            name = sorted(tensors)[rng.integers(len(tensors))]
            tensor, kind = tensors[name], rng.integers(8)
            if kind == 0:
                del tensors[name]
            elif kind == 1:
                tensors[rng.choice([name + "x", "map.x", "", "../x", "history.é"])] = tensor
            elif kind == 2:
                tensors[name] = tensor[..., None]
            elif kind == 3:
                with np.errstate(all="ignore"):
                    tensors[name] = tensor.astype(rng.choice(["f4", "f2", "i8", "u1", "?"]))
            elif kind == 4:
                tensors[name] = np.zeros(rng.choice([0, 1, 7]))
            elif kind == 5:
                tensors[name] = tensor.ravel()[1:]
            elif tensor.size and tensor.dtype.kind == "f":
                changed = tensor.copy()
                changed.flat[rng.integers(tensor.size)] = rng.choice(
                    [np.nan, np.inf, -np.inf, 1e300, -1e300, 0.0, 1e-320]
                )
                tensors[name] = changed
    with contextlib.suppress(UnicodeEncodeError):  # of half a surrogate pair
        header["sha256"] = _checksum(header, tensors)
    return compose(header, tensors)


def test_damaged_files(files, tmp_path, campaign):
    """Bytes changed at random: an error, or what was written."""
    rng, path = np.random.default_rng(1), tmp_path / "model"
    names, refused = sorted(files), 0
    for case in campaign.cases("mutated model files, bytes", short=500, long=60_000):
        original = files[names[case % len(names)]]
        content = damage(rng, original)
        path.write_bytes(content)
        with watched() as seen, no_longer_than(20):
            try:
                load(path)
            except ModelFileError as error:
                assert str(path) in str(error)
                refused += 1
                continue
            finally:
                assert not seen, seen
        # Such as 1e-07 written as 1E-07: the checksum is over the values.
        (header, tensors), (before, arrays) = parse(content), parse(original)
        assert header["sha256"] == _checksum(header, tensors) == before["sha256"]
        assert header == before and tensors.keys() == arrays.keys()
        assert all(np.array_equal(tensors[name], arrays[name]) for name in arrays)
    assert refused > 0.8 * campaign.pick(500, 60_000)


def test_forged_files(files, tmp_path, campaign):
    """The header and tensors changed at random, with the checksum made right again."""
    rng, path = np.random.default_rng(2), tmp_path / "model"
    names, parsed = sorted(files), {name: parse(content) for name, content in files.items()}
    taken = 0
    for case in campaign.cases("mutated model files, right checksum", short=500, long=60_000):
        path.write_bytes(forge(rng, *parsed[names[case % len(names)]]))
        with watched() as seen, no_longer_than(20):
            try:
                model = load(path)
            except ModelFileError as error:
                assert str(path) in str(error)
                continue
            finally:
                assert not seen, seen
        taken += 1
        assert model.get_params()
        if taken % 20 == 0:
            with contextlib.suppress(ConvergenceError, DataError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert model.transform(X[:3]).shape == (3, D)
    assert taken
