"""Keeping a run on disk, so that it can go on after it was interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import time
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mongefit._io import StrPath, locked_folder
from mongefit._io.tensors import TensorFileError, read_tensors, write_tensors
from mongefit._training.problem import Problem
from mongefit._training.state import Info, State
from mongefit._versions import recorded_versions
from mongefit.errors import DataError, Option, OptionError, warn_user

_FORMAT = "mongefit-checkpoint"
_VERSION = 4
_FILE = "checkpoint.safetensors"
# Kinds of the columns of the history that are not real numbers.
_KINDS = {
    "step": "i", "dual_iterations": "i", "inverse_iterations": "i", "solved": "b", "applied": "b"
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where and how often a run is kept.

    Attributes
    ----------
    folder
        A folder for one run; made where it is missing.
    seconds
        How often to write. A run that is cut off loses no more than this.
    resume
        Go on with the run that is kept there. Without it a run that is there is an error.
    """

    folder: StrPath
    seconds: float = 30.0
    resume: bool = False

    def __post_init__(self) -> None:
        if not self.seconds >= 0:
            raise OptionError(f"seconds must be a number >= 0, got {self.seconds!r}.")


class Progress(NamedTuple):
    """How far a run has come.

    Attributes
    ----------
    state
        What the next step needs.
    history
        What was seen of the steps so far, interval by interval, [starts, steps].
    done
        Number of these steps.
    """

    state: State
    history: tuple[Info, ...]
    done: int

    def infos(self) -> Info:
        """The history in one piece."""
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *self.history)


class Keeper:
    """Writes the progress of one run, and reads it back.

    Parameters
    ----------
    checkpoint
        Where and how often.
    problem, state
        The run before its first step. Only a run with the same ones can go on.
    """

    def __init__(self, checkpoint: Checkpoint, problem: Problem, state: State):
        self._seconds = checkpoint.seconds
        self._resume = checkpoint.resume
        self._folder = os.fspath(checkpoint.folder)
        self._path = os.path.join(self._folder, _FILE)
        self._start = state
        self._n_terms = len(problem.recipe.names)
        self._hashes = {"data": _hash(problem.data), "options": _hash([problem, state])}
        self._written = -1
        self._due = time.monotonic() + self._seconds

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from writing here."""
        return locked_folder(self._folder)

    def read(self) -> Progress:
        """The progress that is kept, or that of a run before its first step."""
        if not os.path.exists(self._path):
            if self._resume:
                warn_user(f"{self._folder} has no checkpoint: starting from the beginning.")
            return Progress(self._start, (), 0)
        if not self._resume:
            raise DataError(
                "{path} exists. Go on with it ({resume}), or choose another folder.",
                path=self._path,
                resume=Option("resume", True),
            )
        try:
            header, tensors = read_tensors(self._path)
            if (header.get("format"), header.get("version")) != (_FORMAT, _VERSION):
                raise TensorFileError("it is no checkpoint of this release")
            self._check(header)
            return self._restore(header["done"], tensors)
        except DataError:
            raise
        except Exception as error:  # whatever a forged header leads to
            raise DataError(
                f"{self._path} cannot be used ({error}). Delete it to start from the beginning."
            ) from error

    def offer(self, progress: Progress) -> None:
        """Write if it is time to."""
        if time.monotonic() >= self._due:
            self.write(progress)

    def write(self, progress: Progress) -> None:
        """Write, completely or not at all, unless this is there already or nothing was done."""
        if progress.done in (self._written, 0):
            return
        header = {
            "format": _FORMAT,
            "version": _VERSION,
            "done": progress.done,
            "hashes": self._hashes,
            "versions": recorded_versions(),
        }
        tensors = {f"state{name}": leaf for name, leaf in _named(progress.state)}
        if progress.history:
            tensors |= {f"history{name}": leaf for name, leaf in _named(progress.infos())}
        write_tensors(self._path, header, tensors, overwrite=True)
        self._written = progress.done
        self._due = time.monotonic() + self._seconds

    def _check(self, header: dict[str, Any]) -> None:
        for what, digest in self._hashes.items():
            if header["hashes"].get(what) != digest:
                raise DataError(
                    f"{self._path} is the checkpoint of a run with other {what}. Give the same "
                    "ones to go on with it, or choose another folder."
                )
        now = recorded_versions()
        if header["versions"] != now:
            warn_user(
                f"{self._path} was written with other versions of {', '.join(now)}: the run goes "
                "on, but not bit for bit as it would have."
            )

    def _restore(self, done: int, tensors: dict[str, np.ndarray]) -> Progress:
        expected = dict(_named(self._start))
        found = {
            name.removeprefix("state"): tensor
            for name, tensor in tensors.items()
            if name.startswith("state")
        }
        if {name: (leaf.shape, leaf.dtype) for name, leaf in found.items()} != {
            name: (leaf.shape, leaf.dtype) for name, leaf in expected.items()
        }:
            raise DataError(f"{self._path} does not hold the state of this run.")
        state = jax.tree_util.tree_map_with_path(
            lambda path, leaf: (
                jnp.asarray(found[jax.tree_util.keystr(path)]) if eqx.is_array(leaf) else leaf
            ),
            self._start,
        )
        steps = np.ravel(state.step)
        if type(done) is not int or np.any(steps != done):
            raise TensorFileError(f"it says {done!r} steps and holds the state after {steps[0]}")
        columns: dict[str, Any] = {}
        for field in dataclasses.fields(Info):
            column = columns[field.name] = tensors[f"history.{field.name}"]
            shape = (len(steps), done, *([self._n_terms] if field.name == "terms" else []))
            if column.shape != shape or column.dtype.kind != _KINDS.get(field.name, "f"):
                raise TensorFileError(f"its history of {field.name} is not that of {done} steps")
        self._written = done
        return Progress(state, (Info(**columns),), done)


def _named(tree: Any) -> list[tuple[str, np.ndarray]]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [
        (jax.tree_util.keystr(path), _numbers(leaf)) for path, leaf in leaves if _is_array(leaf)
    ]


def _numbers(leaf: Any) -> np.ndarray:
    is_key = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, np.ndarray)


def _hash(parts: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(_outline(part), sort_keys=True).encode())
        for name, leaf in _named(part):
            digest.update(f"{name} {leaf.dtype.str} {leaf.shape}".encode())
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def _outline(value: Any, above: tuple[Any, ...] = ()) -> Any:
    """What an object is made of besides its arrays, without anything that changes by the day."""
    if _is_array(value):
        return "array"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): _outline(item, above) for key, item in value.items()}
    kind = type(value).__qualname__
    if isinstance(value, types.FunctionType):
        return [kind, value.__qualname__, *_outline_function(value, above)]
    if isinstance(value, functools.partial):
        return [kind, _outline((value.func, value.args, value.keywords), above)]
    if dataclasses.is_dataclass(value):
        return [
            kind,
            {f.name: _outline(getattr(value, f.name), above) for f in dataclasses.fields(value)},
        ]
    if isinstance(value, list | tuple):
        return [kind, *(_outline(item, above) for item in value)]
    return getattr(value, "__qualname__", kind)


def _outline_function(function: types.FunctionType, above: tuple[Any, ...]) -> list[Any]:
    """What a function does and what it holds: two lambdas have the same name."""
    if function in above:  # it calls itself
        return []
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    held = (function.__defaults__, function.__kwdefaults__, *cells)
    arrays = [hashlib.sha256(leaf.tobytes()).hexdigest() for _, leaf in _named(held)]
    return [_outline_code(function.__code__), _outline(held, (*above, function)), arrays]


def _outline_code(code: types.CodeType) -> list[Any]:
    constants = [
        _outline_code(each) if isinstance(each, types.CodeType) else _constant(each)
        for each in code.co_consts
    ]
    return [code.co_code.hex(), list(code.co_names), constants]


def _constant(value: Any) -> str:
    # The order of a set of strings changes from process to process.
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
