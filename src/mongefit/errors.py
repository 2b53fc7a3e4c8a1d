"""What mongefit raises and warns of.

Every message says what is wrong, where, and how to mend it. A message that names options keeps its
template and its fields, so that each surface can write it in its own words: `str(error)` names
options as Python does, ``many_to_many=True``; the command line writes ``--many-to-many``.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sklearn.exceptions import ConvergenceWarning as ConvergenceWarning
    from sklearn.exceptions import NotFittedError as NotFittedError


def __getattr__(name: str) -> Any:
    if name not in ("ConvergenceWarning", "NotFittedError"):
        raise AttributeError(f"module 'mongefit.errors' has no attribute {name!r}")
    import sklearn.exceptions  # when first used: it takes a second to import

    return getattr(sklearn.exceptions, name)


class Option(NamedTuple):
    """An option that a message names, and the value to set it to, if any."""

    name: str
    value: Any = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"


class InPython(str):
    """A part of a message that makes sense only to those who hold the Python object."""


class Suggestion(NamedTuple):
    """Options that the user may have meant."""

    options: tuple[Option, ...]

    @classmethod
    def of(cls, name: str, word: str, candidates: Iterable[Any]) -> Suggestion:
        """An option with those of its possible values that look like a word."""
        return cls(tuple(Option(name, value) for value in _near_matches(word, candidates)))

    def render(self, spell: Callable[[Option], str] = str) -> str:
        """' Did you mean …?', or nothing."""
        return f" Did you mean {' or '.join(map(spell, self.options))}?" if self.options else ""


class Message(NamedTuple):
    """A text with gaps as for `str.format`, unless there are no fields, and what goes into them.

    A field is an `Option`, `InPython`, `Suggestion`, or anything that prints itself.
    """

    template: str
    fields: dict[str, Any]

    def render(self, spell: Callable[[Option | InPython], str] = str) -> str:
        """The text, with options and notes for Python users as ``spell`` writes them."""
        if not self.fields:
            return self.template
        fields = dict(self.fields)
        for name, value in fields.items():
            if isinstance(value, Option | InPython):
                fields[name] = spell(value)
            elif isinstance(value, Suggestion):
                fields[name] = value.render(spell)
        return self.template.format(**fields)


class MongefitError(Exception):
    """An error with a ``message`` that each surface writes in its own words."""

    def __init__(self, template: str = "", **fields: Any):
        self.message = Message(template, fields)
        super().__init__(self.message.render())

    def __reduce__(self) -> Any:
        return functools.partial(type(self), self.message.template, **self.message.fields), ()


class DataError(MongefitError, ValueError):
    """Arrays, weights, pairs or files cannot be used."""


class OptionError(MongefitError, ValueError):
    """An option has a value that it cannot take."""


class ModelFileError(DataError):
    """A model file is damaged, forged, or of a version that this release cannot read."""


class OutputExistsError(MongefitError, FileExistsError):
    """A file exists and must not be replaced."""


class MissingPackageError(MongefitError, ImportError):
    """A package that this part of the library needs is not installed."""


class TrainingError(MongefitError, RuntimeError):
    """Training could not go on: too many steps in a row failed."""


class ConvergenceError(MongefitError, RuntimeError):
    """A solve did not converge and ``strict`` was set, or nothing usable was found."""


def _near_matches(word: str, candidates: Iterable[Any]) -> list[str]:
    originals = {str(candidate).lower(): str(candidate) for candidate in candidates}
    return [originals[key] for key in difflib.get_close_matches(word.lower(), originals)]


def did_you_mean(word: str, candidates: Iterable[Any]) -> str:
    """' Did you mean …?' with the candidates that look like a word, or nothing."""
    near = _near_matches(word, candidates)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def wrong_option(name: str, needed: str, value: Any, *, hint: str = "") -> OptionError:
    """The error of an option that must be something else."""
    return OptionError(
        "{name} must be {needed}, got {value!r}.{hint}",
        name=Option(name), needed=needed, value=value, hint=hint,
    )  # fmt: skip


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def warn_user(template: str, category: type[Warning] = UserWarning, **fields: Any) -> None:
    """Warn at the line of the user's code that led here, however deep in the package this is.

    The warning keeps its `Message`, as errors do.
    """
    message = Message(template, fields)
    warning = category(message.render())
    warning.message = message  # type: ignore[attr-defined]
    _warn(warning)


def warn_or_raise(template: str, *, strict: bool, **fields: Any) -> None:
    """Warn that something did not converge, or raise a `ConvergenceError` if ``strict`` is set."""
    if strict:
        raise ConvergenceError(template, **fields)
    from sklearn.exceptions import ConvergenceWarning

    warn_user(template, ConvergenceWarning, **fields)


def _warn(warning: Warning) -> None:
    inside = [_HERE, contextlib.__file__]
    if "sklearn" in sys.modules:
        inside.append(os.path.dirname(str(sys.modules["sklearn"].__file__)) + os.sep)
    level, frame = 1, sys._getframe()
    while frame.f_code.co_filename.startswith(tuple(inside)) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


@contextlib.contextmanager
def noted_warnings(notes: list[str] | None = None) -> Iterator[list[str]]:
    """Let warnings through at the end of the block, and note what they said."""
    notes = [] if notes is None else notes
    with _caught_warnings() as caught:
        yield notes
    for warning in caught:
        notes.append(str(warning))
        _warn(warning)


def ignored_warnings() -> warnings.catch_warnings[None]:
    """Leave out warnings that do not concern the user."""
    return warnings.catch_warnings(action="ignore")


@contextlib.contextmanager
def summarised_warnings(noun: str) -> Iterator[None]:
    """Warn once, at the end of the block, of what happened in several of many fits.

    Warnings that differ only in their numbers count as one; the first of them is shown. ``noun`` is
    what the fits are called, in the plural, such as "members".
    """
    with _caught_warnings() as caught:
        yield
    alike: dict[tuple[type[Warning], str], list[Warning]] = {}
    for warning in caught:
        gist = re.sub(r"\d[\d.e+-]*", "#", str(warning))
        alike.setdefault((type(warning), gist), []).append(warning)
    for (category, _), those in alike.items():
        text = str(those[0])
        if len(those) > 1:
            text = f"{text} (the first of {len(those)} such warnings from {noun})"
        _warn(category(text))


@contextlib.contextmanager
def _caught_warnings() -> Iterator[list[Warning]]:
    caught: list[Warning] = []
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        yield caught
    caught += [
        each.message if isinstance(each.message, Warning) else each.category(each.message)
        for each in records
    ]
