"""Tables of points and pairs in csv, tsv, npy and npz files, written completely or not at all."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import lzma
import math
import os
import re
import secrets
import shutil
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit.errors import DataError, did_you_mean

StrPath = str | os.PathLike[str]

MAX_BYTES = 8 * 2**30
"""Largest array, in bytes, that is read unless the caller allows more."""

SUFFIXES = (".csv", ".tsv", ".npy", ".npz")
"""Extensions of the files that can be read and written."""

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
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


class _Content(NamedTuple):
    """What the cells of a table may hold."""

    name: str
    parse: Callable[[str], Any]
    typecode: str
    kinds: str
    columns: int | None = None


def _parse_number(text: str) -> float:
    if "_" in text:  # float() takes 1_000, which in a table is more likely a label
        raise ValueError
    return float(text)


def _parse_row_number(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
        raise ValueError
    return int(text)


_POINTS = _Content("number", _parse_number, "d", "iuf")
_PAIRS = _Content("row number", _parse_row_number, "q", "iu", columns=2)


def read_points(path: StrPath, *, max_bytes: int = MAX_BYTES) -> NDArray[np.float64]:
    """Read a table of points.

    Parameters
    ----------
    path
        A .csv, .tsv, .npy or .npz file. The first row of a text file is a header when no cell of
        it is a number. One array of an archive is chosen as ``file.npz:name``.
    max_bytes
        Refuse arrays that would take more memory than this.

    Returns
    -------
    ndarray
        The points as float64, [n, d] for a text file; NumPy files keep their shape.

    Raises
    ------
    DataError
        If the file is missing, damaged, too large or holds something other than real numbers.
    """
    return _read(path, _POINTS, max_bytes).astype(np.float64, copy=False)


def read_pairs(path: StrPath, *, max_bytes: int = MAX_BYTES) -> NDArray[np.int64]:
    """Read known pairs: rows of the source and, beside each, its row of the target.

    Parameters
    ----------
    path
        A file as in `read_points`, with two columns of integers: text such as 3.0 is refused, and
        a NumPy array must have an integer dtype.
    max_bytes
        Refuse arrays that would take more memory than this.

    Returns
    -------
    ndarray
        The pairs as int64, [k, 2].

    Raises
    ------
    DataError
        If the file cannot be read or does not hold two columns of integers.
    """
    pairs = _read(path, _PAIRS, max_bytes)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise DataError(
            f"{os.fspath(path)} has the shape {pairs.shape}; pairs have the shape (k, 2), "
            "a source row and a target row each."
        )
    if pairs.size and pairs.max() > np.iinfo(np.int64).max:
        row = int(np.argmax(pairs.max(axis=1)))
        raise DataError(f"{os.fspath(path)}, row {row}: {pairs[row].max()} is not a row number.")
    return pairs.astype(np.int64, copy=False)


def write_points(
    path: StrPath,
    points: ArrayLike,
    *,
    overwrite: bool = False,
    header: Sequence[str] | None = None,
) -> None:
    """Write a table of points, completely or not at all; reading it gives the same float64 values.

    Parameters
    ----------
    path
        A .csv, .tsv, .npy or .npz file (there the array is called ``points``).
    points
        Real numbers, [n, d].
    overwrite
        Replace a file that exists.
    header
        Names of the columns, for the text formats; NumPy files have no place for them.

    Raises
    ------
    FileExistsError
        If the file exists and ``overwrite`` is False.
    """
    check_writable(path, overwrite=overwrite, suffixes=SUFFIXES)
    table = np.asarray(points)
    if table.dtype.kind not in _POINTS.kinds or table.ndim != 2 or not table.size:
        raise ValueError(
            "points must be a two-dimensional array of real numbers with at least one row and one "
            f"column, got {table.dtype} of shape {table.shape}."
        )
    table = table.astype(np.float64, copy=False)
    suffix = _suffix(path)
    if suffix in _DELIMITERS:
        data = _text(table, _DELIMITERS[suffix], header)
    else:
        buffer = io.BytesIO()
        if suffix == ".npy":
            np.save(buffer, table, allow_pickle=False)
        else:
            np.savez(buffer, points=table)
        data = buffer.getvalue()
    atomic_write(path, data, overwrite=overwrite)


def check_writable(
    path: StrPath, *, overwrite: bool = False, suffixes: Sequence[str] | None = None
) -> None:
    """Check, before long work, that a file can be written; nothing is left behind.

    Parameters
    ----------
    path
        The file to be written later.
    overwrite
        Whether a file that exists may be replaced.
    suffixes
        Extensions to accept, such as (".csv", ".npy"); None accepts any.

    Raises
    ------
    ValueError
        If the extension is not among ``suffixes``.
    OSError
        If the folder is missing or cannot be written to (FileNotFoundError, PermissionError, …),
        the path is a folder, or the file exists and must not be replaced (FileExistsError).
    """
    if suffixes is not None and _suffix(path) not in suffixes:
        raise ValueError(_unknown_suffix(path, suffixes))
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        kind = NotADirectoryError if os.path.exists(folder) else FileNotFoundError
        raise kind(
            f"cannot write {os.fspath(path)}: there is no folder {folder}. "
            "Make it first, or choose another."
        )
    _check_target(target, overwrite=overwrite)
    try:
        with _temporary(folder):
            pass
    except OSError as error:
        raise _os_error(
            error,
            f"cannot write to the folder {folder} ({error.strerror}). "
            "Choose another, or change its permissions.",
        ) from error


def atomic_write(path: StrPath, data: bytes, *, overwrite: bool = True) -> None:
    """Write a file completely or not at all.

    The bytes go to a temporary file in the same folder, reach the disk, and only then take the
    name ``path``; whatever fails, an earlier file of that name is intact.

    Parameters
    ----------
    path
        The file to write; a symbolic link is followed.
    data
        Its content.
    overwrite
        Replace a file that exists; otherwise a FileExistsError, also when the file appears while
        this function runs.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    _check_target(target, overwrite=overwrite)
    try:
        with _temporary(folder) as (temporary, stream):
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(target, temporary)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
            _publish(temporary, target, overwrite=overwrite)
    except FileExistsError:
        raise
    except OSError as error:
        raise _os_error(
            error,
            f"could not write {os.fspath(path)} ({error.strerror}). "
            "Nothing was changed there: free some space or choose another folder, and try again.",
        ) from error
    _sync_folder(folder)


def _read(path: StrPath, content: _Content, max_bytes: int) -> NDArray[Any]:
    file, name = _split_name(path)
    if os.path.isdir(file):
        raise DataError(f"{file} is a folder. Name a file in it.")
    if not os.path.exists(file):
        raise DataError(_missing(file))
    suffix = _suffix(file)
    if suffix not in SUFFIXES:
        raise DataError(_unknown_suffix(file, SUFFIXES))
    try:
        if suffix in _DELIMITERS:
            return _read_text(file, _DELIMITERS[suffix], content, max_bytes)
        if suffix == ".npy":
            size = os.path.getsize(file)
            return _read_array(lambda: open(file, "rb"), size, file, content, max_bytes)
        return _read_archive(file, name, content, max_bytes)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}.") from error


def _split_name(path: StrPath) -> tuple[str, str | None]:
    text = os.fspath(path)
    if not os.path.exists(text) and (found := re.fullmatch(r"(?is)(.+?\.npz):(.*)", text)):
        return found[1], found[2]
    return text, None


def _suffix(path: StrPath) -> str:
    return os.path.splitext(os.fspath(path))[1].lower()


def _read_text(file: str, delimiter: str, content: _Content, max_bytes: int) -> NDArray[Any]:
    values: array[Any] = array(content.typecode)
    columns = 0
    blank = 0
    end = 0
    try:
        # Without newline="" the line numbers of the reader would miscount quoted line breaks.
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, delimiter=delimiter, strict=True)
            for row in reader:
                line, end = end + 1, reader.line_num
                if not row or (len(row) == 1 and not row[0].strip()):
                    blank = blank or line
                    continue
                if blank:
                    raise DataError(f"{file}, line {blank} is blank, but rows follow. Remove it.")
                where = f"{file}, line {line}"
                is_first = not columns
                columns = columns or content.columns or len(row)
                _check_width(row, columns, where)
                if is_first and _is_header(row, where):
                    continue
                try:
                    values.extend(map(content.parse, row))
                except ValueError:
                    raise DataError(_bad_cell(file, line, row, content, delimiter)) from None
                if (needed := len(values) * values.itemsize) > max_bytes:
                    raise DataError(_too_large(f"{file}, up to line {line},", needed, max_bytes))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not UTF-8 text ({error.reason}). Export the table again as UTF-8, or give "
            f"the file the extension of what it holds: {', '.join(SUFFIXES)}."
        ) from error
    except csv.Error as error:
        raise DataError(f"{file}, line {end + 1}: {error}. Check the quotation marks.") from error
    if not values:
        what = "holds a header but no rows" if columns else "is empty"
        raise DataError(f"{file} {what}.")
    return np.frombuffer(values, dtype=content.typecode).reshape(-1, columns)


def _parses(content: _Content, cell: str) -> bool:
    try:
        content.parse(cell)
    except ValueError:
        return False
    return True


def _is_header(row: Sequence[str], where: str) -> bool:
    if any(_parses(_POINTS, cell) for cell in row):
        return False
    for column, cell in enumerate(row, start=1):
        # What pandas and R write above a column of row labels, which are not coordinates.
        if not cell.strip():
            raise DataError(
                f"{where}, column {column}: the header has no name here, as above a column of row "
                "labels. Remove the column (pandas: to_csv(index=False)), or name it to keep it."
            )
    return True


def _check_width(row: Sequence[str], columns: int, where: str) -> None:
    if len(row) < columns:
        raise DataError(
            f"{where}, column {len(row) + 1}: the row ends after {_quote(row[-1])}; "
            f"{columns} columns are expected, it has {len(row)}."
        )
    if len(row) > columns:
        raise DataError(
            f"{where}, column {columns + 1}: unexpected {_quote(row[columns])}; "
            f"{columns} columns are expected, the row has {len(row)}."
        )


def _bad_cell(file: str, line: int, row: Sequence[str], content: _Content, delimiter: str) -> str:
    column = next(i for i, cell in enumerate(row) if not _parses(content, cell))
    cell = row[column]
    message = f"{file}, line {line}, column {column + 1}: "
    if not cell.strip():
        return message + f"the cell is empty. Fill in a {content.name}, or remove the row."
    message += f"{_quote(cell)} is not a {content.name}."
    if any(other in cell for other in ";\t," if other != delimiter):
        wanted = {",": "commas", "\t": "tabs"}[delimiter]
        return message + f" Cells must be separated by {wanted} here, and decimals use a point."
    if line == 1:
        return message + " (A first row is taken for a header when no cell of it is a number.)"
    return message


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def _read_archive(file: str, name: str | None, content: _Content, max_bytes: int) -> NDArray[Any]:
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
        member = members[name]
        where = f"{file}:{name}"
        if member.file_size > max_bytes:
            raise DataError(_too_large(where, member.file_size, max_bytes))
        size = member.file_size
        return _read_array(lambda: archive.open(member), size, where, content, max_bytes)


def _read_array(
    opener: Callable[[], IO[bytes]], size: int, where: str, content: _Content, max_bytes: int
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
        raise DataError(_too_large(where, needed, max_bytes))
    expected = offset + math.prod(shape) * dtype.itemsize
    if size != expected:
        state = "truncated" if size < expected else "damaged, or holds more than one array"
        raise DataError(
            f"{where} is {state}: its header describes {expected} bytes, it has {size}. "
            "Write it again."
        )
    try:
        with opener() as stream:
            result: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    except _DAMAGED as error:
        raise DataError(f"{where} is damaged: {error}. Write it again.") from error
    return result


_NO_PICKLE = (
    "Pickled files are not opened, because they can run any code. "
    "Save plain numbers: numpy.save(path, numpy.asarray(points, dtype=float))."
)


def _read_header(head: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    stream = io.BytesIO(head)
    version = np.lib.format.read_magic(stream)
    # Versions 2 and 3 differ in the encoding of field names, which tables of numbers do not have.
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
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


def _too_large(where: str, needed: int, max_bytes: int) -> str:
    return (
        f"{where} needs {needed / 2**30:.3g} GiB of memory, above the limit of "
        f"{max_bytes / 2**30:.3g} GiB. If this is right, raise max_bytes."
    )


def _missing(file: str) -> str:
    folder, name = os.path.split(file)
    folder = folder or os.curdir
    if not os.path.isdir(folder):
        return f"{file} not found: there is no folder {folder}."
    try:
        with os.scandir(folder) as entries:
            present = [entry.name for entry in itertools.islice(entries, 1000)]
    except OSError:
        present = []
    return f"{file} not found.{did_you_mean(name, present) or ' Check the name and the folder.'}"


def _unknown_suffix(path: StrPath, suffixes: Sequence[str]) -> str:
    suffix = _suffix(path)
    found = f"the extension {suffix}" if suffix else "no extension"
    known = ", ".join(suffixes)
    return f"{os.fspath(path)} has {found}. Known: {known}.{did_you_mean(suffix, suffixes)}"


def _text(table: NDArray[np.float64], delimiter: str, header: Sequence[str] | None) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
    if header is not None:
        _check_header(header, table.shape[1])
        writer.writerow(header)
    # The writer renders Python floats with repr, which reading turns into the same float again.
    writer.writerows(table.tolist())
    return buffer.getvalue().encode()


def _check_header(header: Sequence[str], columns: int) -> None:
    if len(header) != columns:
        raise ValueError(f"header has {len(header)} names for {columns} columns.")
    for name in header:
        if not name.strip() or not _is_header([name], "header"):
            raise ValueError(f"{name!r} cannot name a column: use a word that is not a number.")


def _check_target(target: str, *, overwrite: bool) -> None:
    try:
        os.lstat(target)
    except FileNotFoundError:
        return
    if os.path.isdir(target):
        raise IsADirectoryError(f"{target} is a folder. Name a file in it.")
    if not os.path.isfile(target):
        raise OSError(f"{target} is a device, not a file. Choose another name.")
    if not overwrite:
        raise _exists(target)


def _exists(target: str) -> FileExistsError:
    return FileExistsError(
        f"{target} exists. Choose another name, or overwrite it: --force on the command line, "
        "overwrite=True in Python."
    )


@contextlib.contextmanager
def _temporary(folder: str) -> Iterator[tuple[str, BinaryIO]]:
    # Not tempfile, whose files are readable by their owner only, whatever the umask says.
    name = os.path.join(folder, f".mongefit-{secrets.token_hex(8)}.tmp")
    try:
        with open(name, "xb") as stream:
            yield name, stream
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def _publish(temporary: str, target: str, *, overwrite: bool) -> None:
    if overwrite:
        os.replace(temporary, target)
        return
    try:
        # A link, unlike a rename, fails when another process has made the file meanwhile.
        os.link(temporary, target)
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without hard links
        _check_target(target, overwrite=False)
        os.replace(temporary, target)


def _sync_folder(folder: str) -> None:
    # Makes the new name durable. Not every platform can open a folder; the content is safe anyway.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _os_error(error: OSError, message: str) -> OSError:
    result = type(error)(message)
    result.errno = error.errno
    return result
