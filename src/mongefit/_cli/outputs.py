"""Checks, before any long work, that everything that a command will write can be written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import click


def check_output(
    path: str, *, force: bool, inputs: Iterable[str | None], suffixes: Sequence[str] | None = None
) -> None:
    """Check that a file can be written and is none of the inputs."""
    from mongefit._io import check_writable

    for name in inputs:
        if name is not None and os.path.realpath(name) == os.path.realpath(path):
            raise click.UsageError(f"-o {path} is also an input. Choose another name.")
    try:
        check_writable(path, overwrite=force, suffixes=suffixes)
    except ValueError as error:
        raise click.UsageError(f"-o {error}") from error


def check_folder(folder: str, names: Iterable[str], *, force: bool) -> dict[str, str]:
    """Check that files can be written into a folder, or that the folder can be made.

    Returns
    -------
    dict
        The path of each name.
    """
    from mongefit._io import check_writable

    paths = {name: os.path.join(folder, name) for name in names}
    if os.path.isdir(folder):
        for path in paths.values():
            check_writable(path, overwrite=force)
    elif os.path.lexists(folder):
        raise NotADirectoryError(f"{folder} is a file, not a folder. Choose another name.")
    else:
        check_writable(os.path.normpath(folder))
    return paths
