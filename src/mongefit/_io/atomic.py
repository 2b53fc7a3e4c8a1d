"""Writing a file completely or not at all, and checking beforehand that it can be written."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from mongefit._io.paths import StrPath, suffix_of, unknown_suffix
from mongefit.errors import DataError, Option, OptionError, OutputExistsError


def check_writable(
    path: StrPath, *, overwrite: bool = False, suffixes: Sequence[str] | None = None
) -> None:
    """Check, before long work, that a file can be written; nothing is left behind.

    An extension that is not among ``suffixes`` is a ValueError. All else is an OSError: a folder
    that is missing or cannot be written to, a path that is a folder, or a file that exists and must
    not be replaced.
    """
    if suffixes is not None and suffix_of(path) not in suffixes:
        raise OptionError(unknown_suffix(path, suffixes))
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
    name ``path``; whatever fails, an earlier file of that name is intact. A symbolic link is
    followed. Without ``overwrite`` a file that exists is a FileExistsError, also when it appears
    while this function runs.
    """
    with atomic_file(path, overwrite=overwrite) as stream:
        stream.write(data)


@contextlib.contextmanager
def atomic_file(path: StrPath, *, overwrite: bool = True) -> Iterator[BinaryIO]:
    """As `atomic_write`, for content that comes in parts.

    What is written to the stream, or by another library to the file ``stream.name``, takes the name
    ``path`` at the end of the block; where the block fails nothing is left behind.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    _check_target(target, overwrite=overwrite)
    try:
        with _temporary(folder) as (temporary, stream):
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(target, temporary)
            yield stream
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
    # Makes the new name durable. Not every platform can open a folder; the content is safe anyway.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def locked_folder(folder: StrPath) -> Iterator[None]:
    """Make a folder and keep other processes out; the lock of one that has died does not count."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w", encoding="ascii") as stream:
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this platform
            pass
        except OSError as error:
            raise DataError(
                f"{os.fspath(folder)} is in use by another process. Wait for it, or choose another "
                "folder."
            ) from error
        # What writes left behind in processes that were killed; none is under way now.
        for path in glob.glob(os.path.join(glob.escape(os.fspath(folder)), ".mongefit-*.tmp")):
            with contextlib.suppress(OSError):
                os.unlink(path)
        yield


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
        raise OutputExistsError(
            "{target} exists. Choose another name, or set {overwrite} to replace it.",
            target=target,
            overwrite=Option("overwrite", True),
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
    except OSError:  # that, or a file system without hard links
        _check_target(target, overwrite=False)
        os.replace(temporary, target)


def _os_error(error: OSError, message: str) -> OSError:
    result = type(error)(message)
    result.errno = error.errno
    return result
