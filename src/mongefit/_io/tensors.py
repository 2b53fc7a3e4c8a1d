"""Tensors and a JSON header in one safetensors file, with a checksum over both.

Nothing in such a file is ever executed. The checksum finds damage; it is not a signature.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from mongefit._io.atomic import atomic_write
from mongefit._io.paths import StrPath

_KEY = "mongefit"


class TensorFileError(ValueError):
    """A file of tensors is damaged, or is none."""


def write_tensors(
    path: StrPath,
    header: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    overwrite: bool = False,
) -> None:
    """Write a header and tensors to one file, completely or not at all."""
    signed = {**header, "sha256": _checksum(header, tensors)}
    data = safetensors.numpy.save(
        {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()},
        metadata={_KEY: json.dumps(signed, sort_keys=True)},
    )
    atomic_write(path, data, overwrite=overwrite)


def read_tensors(
    path: StrPath, check: Callable[[dict[str, Any]], None] = lambda header: None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the tensors of what `write_tensors` wrote; the checksum is verified.

    A TensorFileError says why a file cannot be used. ``check`` looks at the header before the
    checksum is verified, which another version may compute in another way.
    """
    try:
        with safetensors.safe_open(os.fspath(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in list(file.keys())}
    # AttributeError: a tensor of a type that NumPy does not have.
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise TensorFileError(str(error)) from error
    try:
        header = json.loads(metadata[_KEY])
        checksum = dict(header)["sha256"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TensorFileError("it has no header of mongefit") from error
    check(header)
    if checksum != _checksum(header, tensors):
        raise TensorFileError("its checksum does not match its content")
    return header, tensors


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> str:
    rest = {name: value for name, value in header.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = np.asarray(tensors[name], order="C")
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()
