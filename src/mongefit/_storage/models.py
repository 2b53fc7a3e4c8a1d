"""Model files: tensors and a JSON header in one safetensors file, with a checksum over both.

Nothing in a file is ever executed or imported: the header names classes out of a registry, or those
that the caller passes, and the tensors must be exactly those that the header names. The checksum
finds damage; it is not a signature and says nothing about who wrote the file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import mongefit
from mongefit._io import require_file
from mongefit._io.tensors import TensorFileError, read_tensors, write_tensors
from mongefit._runtime import double_precision
from mongefit._storage import version1
from mongefit._storage.estimators import (
    Parts,
    Saveable,
    Tensors,
    describe_estimator,
    restore_estimator,
)
from mongefit._storage.objects import Restorer, check_classes, warm_up
from mongefit._versions import recorded_versions
from mongefit.errors import ModelFileError, warn_user

FORMAT = "mongefit-model"
FORMAT_VERSION = 3
_CELLS = "single_cell"
BUNDLE = "AveragedMap"

warm_up()


class Section(NamedTuple):
    """What `mongefit.single_cell` keeps beside the map: JSON, and arrays by names of their own."""

    header: dict[str, Any]
    tensors: Tensors


def save(
    estimator: Saveable,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    single_cell: Section | None = None,
) -> None:
    """Write a fitted estimator to one file, completely or not at all."""
    parts = Parts()
    with double_precision():
        header = describe_estimator(estimator, parts)
    header |= {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "mongefit": mongefit.__version__,
        "versions": recorded_versions(),
    }
    if single_cell is not None:
        header[_CELLS] = single_cell.header
        parts.tensors |= {f"{_CELLS}.{key}": array for key, array in single_cell.tensors.items()}
    write_tensors(path, header, parts.tensors, overwrite=overwrite)
    if parts.left_out:
        warn_user(
            f"{os.fspath(path)} does not keep {', '.join(dict.fromkeys(parts.left_out))}: a file "
            "cannot hold functions. The loaded model maps points all the same, and has the default "
            "there."
        )


def load(path: str | os.PathLike[str], *, classes: Sequence[type] = ()) -> Any:
    """Read an estimator that the method ``save`` of any wrote.

    It maps points to the same bits.

    Parameters
    ----------
    path
        The file.
    classes
        Classes of your own that the model holds, such as a subclass of `ConvexFunction`. A file
        never causes an import.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged, or of a version that this release cannot read, or if it
        holds a class that was not passed.
    """
    return load_with_cells(path, classes=classes)[0]


def load_with_cells(
    path: str | os.PathLike[str], *, classes: Sequence[type] = ()
) -> tuple[Any, Section | None]:
    """As `load`, with what `mongefit.single_cell` keeps there, unchecked, or None."""
    own = check_classes(classes)
    header, tensors = _read(path)
    if header.get("estimator") == BUNDLE:
        raise ModelFileError(
            f"{os.fspath(path)} holds an average of maps between cells, and no one map of points. "
            "mongefit.single_cell.load reads it, and so does the command 'mongefit fates --from'."
        )
    try:
        with double_precision():
            if header["version"] == 1:
                header, tensors = version1.translate(header, tensors)
            restorer = Restorer(tensors, own)
            cells = None
            if _CELLS in header:
                cells = Section(header[_CELLS], restorer.take_all(f"{_CELLS}."))
            model = restore_estimator(header, restorer)
            if extra := sorted(tensors.keys() - restorer.used):
                raise ModelFileError(f"the tensor {extra[0]} does not belong to this model.")
            return model, cells
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from None
    except Exception as error:  # whatever a forged header leads to
        raise ModelFileError(
            f"{os.fspath(path)} is not a valid model: its header does not describe one ({error})."
        ) from error


def save_bundle(
    files: Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> None:
    """Write several model files into one, completely or not at all."""
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "mongefit": mongefit.__version__,
        "estimator": BUNDLE,
        "parts": [read_header(each) for each in files],
    }
    tensors = {
        f"file{k}": np.frombuffer(Path(each).read_bytes(), np.uint8) for k, each in enumerate(files)
    }
    write_tensors(path, header, tensors, overwrite=overwrite)


def read_bundle(path: str | os.PathLike[str]) -> list[bytes] | None:
    """The model files within one file; None where it holds a model of its own."""
    header, tensors = _read(path)
    if header.get("estimator") != BUNDLE:
        return None
    parts = header.get("parts")
    names = [f"file{k}" for k in range(len(parts))] if isinstance(parts, list) else []
    if not names or set(names) != set(tensors):
        raise ModelFileError(f"{os.fspath(path)} is not a valid model: its parts are not there.")
    if any(each.dtype != np.uint8 for each in tensors.values()):
        raise ModelFileError(f"{os.fspath(path)} is not a valid model: its parts are no files.")
    return [tensors[name].tobytes() for name in names]


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a model file as this version has it, after the checksum has been verified."""
    header, tensors = _read(path)
    try:
        return version1.translate(header, tensors)[0] if header["version"] == 1 else header
    except Exception as error:  # whatever a forged header leads to
        raise ModelFileError(
            f"{os.fspath(path)} has a header that does not describe a model."
        ) from error


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Tensors]:
    name = require_file(path, what="model file", error=ModelFileError)
    try:
        return read_tensors(name, lambda header: _check_version(name, header))
    except TensorFileError as error:
        raise ModelFileError(
            f"{name} is not a mongefit model, or is damaged ({error}). Models are written by "
            "MongeMap.save and by the command 'mongefit fit'."
        ) from error


def _check_version(name: str, header: dict[str, Any]) -> None:
    if header.get("format") != FORMAT or "version" not in header:
        raise ModelFileError(f"{name} is a safetensors file, but not a mongefit model.")
    version = header["version"]
    # Not isinstance, which takes True for a whole number.
    if type(version) is not int or version < 1:
        raise ModelFileError(
            f"{name} has format version {version!r}, which no release of mongefit writes: versions "
            "are whole numbers from 1. Save the model again."
        )
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{name} has format version {version}; this release of mongefit reads up to "
            f"{FORMAT_VERSION}. Upgrade mongefit."
        )
