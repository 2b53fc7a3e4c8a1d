"""What mongefit raises and warns of; every message says what is wrong, where and how to mend it."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import warnings
from collections.abc import Iterable

import sklearn
from sklearn.exceptions import ConvergenceWarning as ConvergenceWarning
from sklearn.exceptions import NotFittedError as NotFittedError


class DataError(ValueError):
    """Arrays, weights, pairs or files cannot be used."""


class OptionError(ValueError):
    """An option has a value that it cannot take."""


class ModelFileError(DataError):
    """A model file is damaged, forged, or of a version that this release cannot read."""


class MissingPackageError(ImportError):
    """A package that this part of the library needs is not installed."""


class TrainingError(RuntimeError):
    """Training could not go on: too many steps in a row failed."""


class ConvergenceError(RuntimeError):
    """A solve did not converge and ``strict`` was asked for, or nothing usable was found."""


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """' Did you mean …?' with the near matches, or nothing."""
    originals = {candidate.lower(): candidate for candidate in candidates}
    near = difflib.get_close_matches(word.lower(), originals)
    return f" Did you mean {' or '.join(originals[key] for key in near)}?" if near else ""


# Frames that a warning is not about: this package's, scikit-learn's around it, context managers'.
_INSIDE = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.path.dirname(sklearn.__file__) + os.sep,
    contextlib.__file__,
)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's that led here, however deep inside the package this is."""
    level, frame = 1, sys._getframe()
    while frame.f_code.co_filename.startswith(_INSIDE) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
