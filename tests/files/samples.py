"""Files to read: a table, its bytes, and how a fault of it is told."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from mongefit.errors import DataError

TABLE = np.array([[1.0, 2.0], [3.5, -4.0], [0.1, 1e-300]])


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def npy_bytes(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def npy_header(descr, shape):
    buffer = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


def npz(folder, name, members, compression=zipfile.ZIP_DEFLATED):
    path = folder / name
    with zipfile.ZipFile(path, "w", compression) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return path


def message(function, *arguments, error=DataError, **options):
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    return str(caught.value)
