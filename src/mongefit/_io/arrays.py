"""Tables as NumPy arrays, bare or in an archive; nothing pickled is ever opened."""

from __future__ import annotations

import io
import itertools
import lzma
import math
import os
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mongefit._io.paths import too_large
from mongefit._io.text import Content
from mongefit.errors import DataError, did_you_mean

_NPY_MAGIC = b"\x93NUMPY"
# NumPy refuses headers above 10 000 bytes; reading no more than this keeps a forged header length
# from filling the memory before NumPy gets to check it.
_HEADER_BYTES = 2**14
_DAMAGED = (
    ValueError,
    OSError,
    EOFError,
    RuntimeError,
    OverflowError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)

_NO_PICKLE = (
    "Pickled files are not opened, because they can run any code. "
    "Save plain numbers: numpy.save(path, numpy.asarray(points, dtype=float))."
)


def read_npy(file: str, content: Content, max_bytes: int) -> NDArray[Any]:
    """The array of a .npy file."""
    size = os.path.getsize(file)
    return _read_array(lambda: open(file, "rb"), size, file, content, max_bytes)


def read_npz(file: str, name: str | None, content: Content, max_bytes: int) -> NDArray[Any]:
    """The array of a .npz file that has this name, or the only one if none is given."""
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, RuntimeError) as error:
        with open(file, "rb") as stream:
            raise DataError(_wrong_content(stream.read(8), file)) from error
    with archive:
        members = {
            member.filename.removesuffix(".npy"): member
            for member in archive.infolist()
            if member.filename.endswith(".npy")
        }
        present = ", ".join(itertools.islice(members, 20)) + (", …" if len(members) > 20 else "")
        if not members:
            raise DataError(f"{file} holds no arrays. Make it with numpy.savez(path, points=…).")
        if name is None:
            if len(members) > 1:
                raise DataError(
                    f"{file} holds {len(members)} arrays: {present}. "
                    f"Choose one, as in {file}:{next(iter(members))}"
                )
            name = next(iter(members))
        elif name not in members:
            hint = did_you_mean(name, members)
            raise DataError(f"{file} holds no array {name!r}. Arrays: {present}.{hint}")
        where, member = f"{file}:{name}", members[name]
        size = member.file_size
        if size > max_bytes:
            raise DataError(too_large(where, size, max_bytes))
        return _read_array(lambda: archive.open(member), size, where, content, max_bytes)


def encode_array(table: NDArray[Any], suffix: str) -> bytes:
    """A table as the content of a .npy file, or of a .npz file where it is called ``points``."""
    buffer = io.BytesIO()
    if suffix == ".npy":
        np.save(buffer, table, allow_pickle=False)
    else:
        np.savez(buffer, points=table)
    return buffer.getvalue()


def _read_array(
    opener: Callable[[], IO[bytes]], size: int, where: str, content: Content, max_bytes: int
) -> NDArray[Any]:
    try:
        with opener() as stream:
            head = stream.read(_HEADER_BYTES)
    except _DAMAGED as error:
        raise DataError(f"{where} is damaged: {error}.") from error
    if not head.startswith(_NPY_MAGIC):
        raise DataError(_wrong_content(head, where))
    try:
        shape, dtype, offset = _read_header(head)
    except Exception as error:  # NumPy lets through whatever Python's tokenizer and parser raise
        raise DataError(f"{where} has no readable NumPy header. Write it again.") from error
    if dtype.hasobject:
        raise DataError(f"{where} holds pickled objects. {_NO_PICKLE}")
    if dtype.kind not in content.kinds:
        wanted = "integers" if content.kinds == "iu" else "real numbers (integers or floats)"
        raise DataError(f"{where} holds values of type {dtype}; {wanted} are needed.")
    # Converted to eight bytes each, small types grow on the way in.
    needed = math.prod(shape) * max(dtype.itemsize, 8)
    if needed > max_bytes:
        raise DataError(too_large(where, needed, max_bytes))
    expected = offset + math.prod(shape) * dtype.itemsize
    if size != expected:
        state = "truncated" if size < expected else "damaged, or holds more than one array"
        raise DataError(
            f"{where} is {state}: its header describes {expected} bytes, it has {size}. "
            "Write it again."
        )
    try:
        with opener() as stream:
            return npy.read_array(stream, allow_pickle=False)
    except _DAMAGED as error:
        raise DataError(f"{where} is damaged: {error}. Write it again.") from error


def _read_header(head: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    stream = io.BytesIO(head)
    version = npy.read_magic(stream)
    # Versions 2 and 3 differ in the encoding of field names, which tables of numbers do not have.
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    if any(length < 0 for length in shape):
        raise ValueError(f"negative length in the shape {shape}")
    return shape, dtype, stream.tell()


def _wrong_content(head: bytes, where: str) -> str:
    if head.startswith(_NPY_MAGIC):
        return f"{where} holds one bare NumPy array: give it the extension .npy."
    if head.startswith(b"PK"):
        if where.lower().endswith(".npy"):
            return f"{where} is a zip archive: give it the extension .npz if numpy.savez made it."
        return f"{where} is a truncated or damaged archive. Write it again."
    if head.startswith(b"\x80"):
        return f"{where} is a pickled file. {_NO_PICKLE}"
    if not head:
        return f"{where} is empty."
    return f"{where} holds something other than its extension says: it is not a NumPy file."
