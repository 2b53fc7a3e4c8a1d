"""Training that is killed, stopped or cannot write: what was kept can be read, and goes on.

`make kill-test` runs this at full length.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import mongefit
from mongefit._io import write_points
from mongefit._io.tensors import read_tensors
from mongefit._training import Checkpoint
from mongefit._training.checkpoints import Keeper
from mongefit.datasets import t_shape

N, INTERVAL = 16, 10
PAUSES = ("half", "fsync before", "fsync after", "replace before", "replace after")


class Runs:
    """One fit, begun and cut off again and again, beside the same fit in one piece."""

    def __init__(self, folder: Path, steps: int):
        self.folder, self.steps, self.rng = folder, steps, np.random.default_rng(0)
        self.reached = self.finished = 0
        x, y = t_shape(N, seed=0)
        write_points(folder / "x.csv", x)
        write_points(folder / "y.csv", y)
        write_points(folder / "pairs.csv", np.stack([np.arange(N)] * 2, axis=1))
        started = time.monotonic()
        process = self.start("whole.mongefit", checkpoint="all")
        self.wait_for_steps(process)
        self.seconds_to_training = time.monotonic() - started
        assert process.wait(600) == 0
        self.whole = (folder / "whole.mongefit").read_bytes()

    def start(self, output="cut.mongefit", *, checkpoint="kept", pause="-", save=0):
        for name in ("log", "paused"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "log").touch()
        options = f"--holdout 0 --hidden-layer-sizes 4 --epsilon 0.05 --max-iter {self.steps} -q"
        command = [
            sys.executable, Path(__file__).with_name("fitting.py"), ".", pause, str(save),
            "fit", "x.csv", "y.csv", "--pairs", "pairs.csv", "-o", output,
            "--checkpoint", checkpoint, "--resume", *options.split(),
        ]  # fmt: skip
        settings = {
            "PYTHONPATH": os.path.dirname(os.path.dirname(mongefit.__file__)),
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        }
        # A suite that runs in the background would hand on that Ctrl-C is ignored.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                command, cwd=self.folder, env=dict(os.environ) | settings,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        finally:
            signal.signal(signal.SIGINT, handler)

    def logged(self) -> list[int]:
        return [int(line) for line in (self.folder / "log").read_text().split("\n")[:-1]]

    def done(self) -> int:
        """Steps that were taken, now or before the run was cut off."""
        return max([*self.logged(), self.reached])

    def wait_for_steps(self, process, count=2):
        """Until the program runs (1) or has taken steps (2); False if it was over before."""
        while len(self.logged()) < count:
            if process.poll() is not None:
                return False
            time.sleep(0.002)
        return True

    def check(self, process) -> None:
        """What is on disk can be read, and lacks at most one interval of what was done."""
        path = self.folder / "kept/checkpoint.safetensors"
        kept = read_tensors(path)[0]["done"] if path.exists() else 0
        assert self.reached <= kept <= self.done() <= kept + INTERVAL
        self.reached = kept
        over = process.returncode == 0
        assert over == (self.folder / "cut.mongefit").exists()
        if over:
            self.finish()

    def finish(self) -> None:
        """Compare the outcome, and make room for another one."""
        assert (self.folder / "cut.mongefit").read_bytes() == self.whole
        os.unlink(self.folder / "cut.mongefit")
        assert sorted(os.listdir(self.folder / "kept")) == ["checkpoint.safetensors", "lock"]
        shutil.rmtree(self.folder / "kept")
        self.reached, self.finished = 0, self.finished + 1

    def end(self) -> int:
        """Let the last one run to its end; how many have."""
        while self.reached:
            process = self.start()
            assert process.wait(600) == 0, process.stderr.read()
            self.check(process)
        finished, self.finished = self.finished, 0
        assert finished
        return finished


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    steps = 3000 if request.config.getoption("--long") else 1000
    return Runs(tmp_path_factory.mktemp("runs"), steps)


def test_killed(runs, campaign):
    """SIGKILL at random moments, every fourth time (or the second of two) inside a save."""
    rng, killed, inside = runs.rng, 0, 0
    while killed < campaign.pick(2, 200):
        if (killed + 1) % campaign.pick(2, 4) == 0:
            process = runs.start(pause=PAUSES[inside % len(PAUSES)], save=rng.integers(1, 5))
            while process.poll() is None and not (runs.folder / "paused").exists():
                time.sleep(0.002)
        else:
            process = runs.start()
            if rng.uniform() < 0.2:
                time.sleep(rng.uniform() * runs.seconds_to_training)
            else:
                runs.wait_for_steps(process)
                time.sleep(rng.uniform() * 0.5)
        process.kill()
        if process.wait() == -signal.SIGKILL:
            killed += 1
            campaign.count("SIGKILL")
            if (runs.folder / "paused").exists():
                inside += 1
                campaign.count("SIGKILL inside a save")
        runs.check(process)
    campaign.count("killed runs that ended in the bits of an uninterrupted one", runs.end())


def test_stopped(runs, campaign):
    """SIGINT and SIGTERM, once or twice: the exit codes, and a checkpoint that goes on."""
    rng, sent = runs.rng, 0
    while sent < campaign.pick(2, 50):
        number = (signal.SIGINT, signal.SIGTERM)[sent % 2]
        process = runs.start()
        early = sent % 10 > 7
        if runs.wait_for_steps(process, 1 if early else 2):
            time.sleep(rng.uniform() * (1.5 if early else 0.3))
        reached = runs.done()
        process.send_signal(number)
        if sent % 10 in (2, 3):
            time.sleep(rng.uniform() * 0.05)
            process.send_signal(number)
        code, said = process.wait(120), process.stderr.read().decode()
        # It may have been over before; but training does not go on for long.
        assert code != 0 or runs.done() == runs.steps + 1 <= reached + 300, said
        if code != 0:
            assert code == 128 + number, said
            assert "Traceback" not in said
            sent += 1
            campaign.count(number.name)
        runs.check(process)
    campaign.count("stopped runs that ended in the bits of an uninterrupted one", runs.end())


CLOUDS = t_shape(N, seed=0)
FAILURES = {
    "full while writing": (errno.ENOSPC, "write"),
    "full while flushing": (errno.ENOSPC, "flush"),
    "full at the end": (errno.ENOSPC, "fsync"),
    "quota": (errno.EDQUOT, "write"),
    "broken disk": (errno.EIO, "fsync"),
    "no new name": (errno.ENOSPC, "replace"),
    "read-only": (errno.EROFS, "open"),
    "no permission": (errno.EACCES, "open"),
    "permission withdrawn": (errno.EACCES, "replace"),
    "limit of the system": (errno.EFBIG, "limit"),
}


class FailingFile(io.FileIO):
    """A file whose disk fails after its first bytes."""

    def __init__(self, name, mode, code, step):
        super().__init__(name, mode)
        self.code, self.step, self.left = code, step, 1000

    def write(self, data):
        if self.step == "write" and len(data) > self.left:
            super().write(data[: self.left])
            fail(self.code)
        return super().write(data)

    def flush(self):
        if self.step == "flush" and not self.closed:
            fail(self.code)


def fail(code, *_):
    raise OSError(code, os.strerror(code))


@contextlib.contextmanager
def failing(code, step):
    """A disk that fails at one step of a write."""
    if step == "limit":
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return
    with pytest.MonkeyPatch.context() as patch:
        if step in ("fsync", "replace"):
            patch.setattr(os, step, functools.partial(fail, code))
        else:
            opened = open

            def open_failing(name, mode="r", **options):
                if not str(name).endswith(".tmp"):
                    return opened(name, mode, **options)
                return fail(code) if step == "open" else FailingFile(name, mode, code, step)

            patch.setattr("mongefit._io.atomic.open", open_failing, raising=False)
        yield


def fitted(**options):
    pairs = np.stack([np.arange(N)] * 2, axis=1)
    model = mongefit.MongeMap(hidden_layer_sizes=(4,), epsilon=0.05, max_iter=19)
    return model.fit(*CLOUDS, pairs=pairs, **options)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with a model, and a checkpoint of half of its training."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Keeper, "offer", stop_after_writing)
        with pytest.raises(KeyboardInterrupt):
            fitted(checkpoint=folder)
    model = fitted()
    model.save(folder / "model")
    return folder, model


def stop_after_writing(keeper, progress):
    keeper.write(progress)
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("written", ["model", "checkpoint.safetensors"])
def test_a_failing_disk_leaves_the_earlier_file(kept, name, written, campaign):
    folder, model = kept
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with failing(*FAILURES[name]), pytest.raises(OSError, match="Nothing was changed") as caught:
        if written == "model":
            model.save(folder / "model", overwrite=True)
        else:
            fitted(checkpoint=Checkpoint(folder, seconds=0, resume=True))
    assert caught.value.errno == FAILURES[name][0]
    assert str(folder / written) in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    campaign.count("injected write failures")
