"""A run that is cut off goes on to the same bits, and only the same run does."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os

import jax
import numpy as np
import pytest

from mongefit import MongeMap
from mongefit._io.tensors import read_tensors, write_tensors
from mongefit._training import Checkpoint, run
from mongefit._training.run import _gave_up
from mongefit.datasets import t_shape
from mongefit.errors import DataError, OptionError
from mongefit.losses import Directional, Paired

N, STEPS = 16, 39
X, Y = t_shape(N, seed=0)
PAIRS = np.stack([np.arange(N)] * 2, axis=1)


def model(**options):
    defaults = {"hidden_layer_sizes": (4,), "epsilon": (0.1, 0.05), "max_iter": STEPS}
    return MongeMap(**(defaults | options))


def fit(estimator=None, **options):
    return (estimator or model()).fit(X, Y, pairs=PAIRS, **options)


class Stop(Exception):
    """Training is cut off."""


def cut_off(after, error=Stop):
    """A callback that breaks training off after some intervals."""
    calls = []

    def callback(record):
        calls.append(record)
        if len(calls) == after:
            raise error

    return callback


def assert_same(first, second):
    np.testing.assert_array_equal(first.transform(X), second.transform(X))
    assert first.history_.keys() == second.history_.keys()
    for name, column in first.history_.items():
        np.testing.assert_array_equal(column, second.history_[name], err_msg=name)


VARIANTS = {
    "plain": {},
    "flows": {"diffeo": "shared"},
    "starts": {"n_init": 2},
    "batches": {"batch_size": 8},
    "conjugate": {"cost": "conjugate_icnn"},
    "learned loss": {"losses": [Paired(), Directional(2)]},
}


@pytest.mark.parametrize(
    ("name", "error"), [("plain", KeyboardInterrupt), *((name, Stop) for name in VARIANTS)]
)
def test_goes_on_to_the_same_bits(name, error, tmp_path):
    pairs = PAIRS[:3] if name == "batches" else PAIRS
    whole = model(**VARIANTS[name]).fit(X, Y, pairs=pairs)
    with pytest.raises(error):
        model(**VARIANTS[name]).fit(
            X, Y, pairs=pairs, checkpoint=tmp_path, callback=cut_off(2, error)
        )
    header, _ = read_tensors(tmp_path / "checkpoint.safetensors")
    assert header["done"] == 20
    resumed = model(**VARIANTS[name]).fit(X, Y, pairs=pairs, checkpoint=tmp_path, resume=True)
    assert_same(whole, resumed)
    assert header["done"] < read_tensors(tmp_path / "checkpoint.safetensors")[0]["done"]


def test_what_goes_on_is_not_compiled_anew(tmp_path):
    compiled = []

    def listen(event, seconds, *, fun_name="", **other):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(fun_name)

    with pytest.raises(Stop):
        fit(checkpoint=tmp_path, callback=cut_off(2))
    jax.monitoring.register_event_duration_secs_listener(listen)
    fit(checkpoint=tmp_path, resume=True)
    jax.monitoring.unregister_event_duration_listener(listen)
    assert "jit(_interval)" not in compiled


def test_before_the_first_step_nothing_is_kept(tmp_path, monkeypatch):
    def stop(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_intervals", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=tmp_path)
    assert not (tmp_path / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("seconds", [-1.0, np.nan])
def test_how_often_to_write(seconds):
    assert Checkpoint("folder", seconds=0).seconds == 0  # after every interval
    with pytest.raises(OptionError, match="seconds must be a number >= 0"):
        Checkpoint("folder", seconds=seconds)


def test_a_finished_run_is_not_run_again(tmp_path):
    first = fit(checkpoint=tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    assert_same(first, fit(checkpoint=tmp_path, resume=True))
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_other_data_and_other_options_are_refused(tmp_path):
    fit(checkpoint=tmp_path)
    with pytest.raises(DataError, match="a run with other data"):
        model().fit(X + 0.1 * Y, Y, pairs=PAIRS, checkpoint=tmp_path, resume=True)
    with pytest.raises(DataError, match="a run with other data"):
        model().fit(X, Y, pairs=PAIRS[::-1][:5], checkpoint=tmp_path, resume=True)
    for options in (
        {"alpha": 0.02}, {"max_iter": 60}, {"epsilon": 0.05}, {"random_state": 1},
        {"learning_rate": 0.01}, {"symmetric": False}, {"dual": "sinkhorn"},
        {"losses": [2 * Paired()]}, {"dtype": "mixed"}, {"differentiate": "unrolled"},
    ):  # fmt: skip
        with pytest.raises(DataError, match="a run with other options"):
            fit(model(**options), checkpoint=tmp_path, resume=True)


def by_hand(scale):
    return lambda context: scale * context.C.mean()


def test_functions_count_by_what_they_do_and_hold(tmp_path):
    fit(model(losses=[by_hand(1.0)]), checkpoint=tmp_path)
    fit(model(losses=[by_hand(1.0)]), checkpoint=tmp_path, resume=True)
    held = np.ones(())
    for loss in (
        by_hand(2.0), by_hand(held), lambda context: context.C.mean(),
        functools.partial(lambda context, scale: scale * context.C.mean(), scale=1.0),
    ):  # fmt: skip
        with pytest.raises(DataError, match="a run with other options"):
            fit(model(losses=[loss]), checkpoint=tmp_path, resume=True)


FORGERIES = {
    "no hashes": lambda header, tensors: header.pop("hashes"),
    "hashes of another kind": lambda header, tensors: header.update(hashes=[1]),
    "no versions": lambda header, tensors: header.pop("versions"),
    "no steps": lambda header, tensors: header.pop("done"),
    "true steps": lambda header, tensors: header.update(done=True),
    "endless steps": lambda header, tensors: header.update(done=10**30),
    "steps before the first": lambda header, tensors: header.update(done=-1),
    "another format": lambda header, tensors: header.update(format=["x"]),
    "no state": lambda header, tensors: tensors.pop("state.step"),
    "another step": lambda header, tensors: tensors["state.step"].__iadd__(1),
    "no history": lambda header, tensors: tensors.pop("history.loss"),
    "a short history": lambda header, tensors: tensors.update(
        {"history.loss": tensors["history.loss"][:, 1:]}
    ),
    "a history of other kinds": lambda header, tensors: tensors.update(
        {"history.applied": tensors["history.loss"]}
    ),
    "terms of another number": lambda header, tensors: tensors.update(
        {"history.terms": tensors["history.terms"][..., :0]}
    ),
}


@pytest.mark.parametrize("edit", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_checkpoint_with_the_right_checksum(edit, tmp_path):
    fit(checkpoint=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    header, tensors = read_tensors(path)
    header.pop("sha256")
    edit(header, tensors)
    write_tensors(path, header, tensors, overwrite=True)
    with pytest.raises(DataError, match=str(path)):
        fit(checkpoint=tmp_path, resume=True)


def test_nothing_is_overwritten_unasked(tmp_path):
    fit(checkpoint=tmp_path)
    with pytest.raises(DataError, match=r"exists\. Go on with it \(resume=True\)"):
        fit(checkpoint=tmp_path)
    with pytest.raises(OptionError, match="resume needs checkpoint"):
        fit(resume=True)
    with pytest.raises(OptionError, match="seconds"):
        Checkpoint(tmp_path, seconds=-1)


def test_resuming_what_is_not_there_starts_anew(tmp_path):
    with pytest.warns(UserWarning, match="has no checkpoint"):
        found = fit(checkpoint=tmp_path / "new", resume=True)
    assert_same(fit(), found)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign", "pickle"])
def test_a_damaged_checkpoint_is_refused(damage, tmp_path):
    fit(checkpoint=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[-5] ^= 1
    elif damage == "pickle":
        data = bytearray(b"\x80\x04\x95" + bytes(50))
    path.write_bytes(data)
    if damage == "foreign":
        write_tensors(path, {"format": "other", "version": 1}, {}, overwrite=True)
    with pytest.raises(DataError, match=r"cannot be used .* Delete it"):
        fit(checkpoint=tmp_path, resume=True)
    assert path.read_bytes() == bytes(data) or damage == "foreign"


def test_a_failed_write_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    with pytest.raises(Stop):
        fit(checkpoint=tmp_path, callback=cut_off(1))
    path = tmp_path / "checkpoint.safetensors"
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            fit(checkpoint=tmp_path, resume=True)
    assert path.read_bytes() == before
    assert_same(fit(), fit(checkpoint=tmp_path, resume=True))


def _hold(folder, ready, done):
    import fcntl

    with open(os.path.join(folder, "lock"), "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        ready.set()
        done.wait(60)


def test_two_writers(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(str(tmp_path), ready, done))
    holder.start()
    try:
        assert ready.wait(60)
        with pytest.raises(DataError, match="in use by another process"):
            fit(checkpoint=tmp_path)
    finally:
        holder.kill()
        holder.join()
    # The lock of a process that was killed does not count.
    fit(checkpoint=tmp_path)


def test_tensor_files(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"a": 1}, {"x": np.arange(3.0)[::-1]})
    header, tensors = read_tensors(path)
    assert header["a"] == 1
    np.testing.assert_array_equal(tensors["x"], [2.0, 1.0, 0.0])
    with pytest.raises(FileExistsError):
        write_tensors(path, {"a": 2}, {})
    assert json.dumps(header)  # plain values only


def test_giving_up_is_read_off_the_history(monkeypatch):
    applied = np.ones((3, 50), bool)
    applied[1, 10:40] = False
    applied[2, 10:24] = applied[2, 25:39] = False
    np.testing.assert_array_equal(_gave_up(applied, np.arange(9, 50, 10)), [0, 40, 0])
    monkeypatch.setattr(run, "MAX_FAILURES", 14)
    np.testing.assert_array_equal(_gave_up(applied, np.arange(50)), [0, 24, 24])
    np.testing.assert_array_equal(_gave_up(applied, np.array([9, 49])), [0, 0, 0])
