"""Keeping a choice on disk while it is made, so that it can go on after it was interrupted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mongefit._fitting.data import hash_arrays
from mongefit._io import StrPath, locked_folder
from mongefit._io.tensors import TensorFileError, read_tensors, write_tensors
from mongefit._training import Checkpoint
from mongefit.errors import DataError, Option, OptionError

_FORMAT = "mongefit-selection"


class KeptPaths:
    """The errors of every candidate that was judged, in a folder, or nowhere.

    With ``resume`` the choice goes on with what is in the folder; without it a choice that is there
    is an error. ``what`` is all that the errors depend on beside the candidates, as arrays.
    """

    def __init__(self, folder: StrPath | None, *, resume: bool, what: list[Any]):
        if resume and folder is None:
            raise OptionError(
                "{resume} needs {checkpoint}, a folder to go on from.",
                resume=Option("resume"), checkpoint=Option("checkpoint"),
            )  # fmt: skip
        self._folder = None if folder is None else os.fspath(folder)
        self._file = "" if folder is None else os.path.join(folder, "paths.safetensors")
        self._resume = resume
        self._digest = hash_arrays(*what)
        self.paths: dict[str, NDArray[np.float64]] = {}

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Read what is there, and keep other processes out."""
        with contextlib.nullcontext() if self._folder is None else locked_folder(self._folder):
            self._read()
            yield

    def put(self, key: str, path: NDArray[np.float64]) -> None:
        """Keep the errors of a candidate."""
        self.paths[key] = path
        if self._folder is None:
            return
        header = {"format": _FORMAT, "what": self._digest, "names": list(self.paths)}
        tensors = {f"path{k}": each for k, each in enumerate(self.paths.values())}
        write_tensors(self._file, header, tensors, overwrite=True)

    @property
    def of_fit(self) -> Checkpoint | None:
        """Where the last fit is kept."""
        if self._folder is None:
            return None
        folder = os.path.join(self._folder, "fit")
        # What is there belongs to this choice, whether or not it had come so far.
        return Checkpoint(folder, resume=os.path.isdir(folder))

    def _read(self) -> None:
        if not os.path.exists(self._file):
            return
        if not self._resume:
            raise DataError(
                "{path} exists. Go on with it ({resume}), or choose another folder.",
                path=self._file, resume=Option("resume", True),
            )  # fmt: skip
        try:
            header, tensors = read_tensors(self._file)
            if header.get("format") != _FORMAT:
                raise TensorFileError("it holds no choice")
            paths = {name: tensors[f"path{k}"] for k, name in enumerate(header["names"])}
        except (TensorFileError, KeyError, TypeError) as error:
            raise DataError(
                f"{self._file} cannot be used ({error}). Delete it to start from the beginning."
            ) from error
        if header.get("what") != self._digest:
            raise DataError(
                f"{self._file} is the choice of a run with other data or folds. Give the same ones "
                "to go on with it, or choose another folder."
            )
        self.paths = paths
