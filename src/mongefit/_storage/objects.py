"""Objects as JSON and tensors, and back.

An object is described by the name of its class and its fields: plain numbers and texts as JSON,
arrays as names of tensors, other objects in the same way. A class says how it is stored by its
fields alone. Only classes that are registered, or that the caller passes, are ever built.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray

from mongefit._registry import NonTrainable, is_ours, registered_classes
from mongefit.errors import ModelFileError, OptionError


class CannotSaveError(OptionError):
    """An object holds something that no file can hold, such as a function."""


def describe(value: Any, name: str, tensors: dict[str, np.ndarray]) -> Any:
    """A value as JSON; its arrays are added to ``tensors``, under names that begin with ``name``.

    A part that is a function or another object without fields is a CannotSaveError.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        if not math.isfinite(value):
            raise CannotSaveError(f"{name} is {value}, which a file cannot hold.")
        return float(value)
    if isinstance(value, np.ndarray | jax.Array):
        tensors[name] = np.asarray(value)
        return {"array": name}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [describe(v, f"{name}[{k}]", tensors) for k, v in enumerate(value)]}
    if isinstance(value, eqx.Module):
        fields = {
            field.name: describe(getattr(value, field.name), f"{name}.{field.name}", tensors)
            for field in dataclasses.fields(value)
        }
        cls = type(value)
        own = {} if is_ours(cls) or cls is NonTrainable else {"own": True}
        return {"class": cls.__name__, "fields": fields} | own
    what = getattr(value, "__name__", type(value).__name__)
    raise CannotSaveError(f"{name} is {what}, which a file cannot hold.")


class Restorer:
    """Builds objects out of what `describe` gave, of our classes and of those that are passed."""

    def __init__(self, tensors: Mapping[str, np.ndarray], classes: Mapping[str, type]):
        self._tensors = tensors
        self._classes = classes
        self.used: set[str] = set()

    def restore(self, spec: Any) -> Any:
        """The object that a description describes."""
        if spec is None or isinstance(spec, bool | int | float | str):
            if isinstance(spec, float) and not math.isfinite(spec):
                raise ModelFileError(f"it holds the number {spec}.")
            return spec
        if not isinstance(spec, dict):
            raise ModelFileError(f"it holds a {type(spec).__name__} where an object should be.")
        if "array" in spec:
            return self._array(spec["array"])
        for kind, sequence in (("tuple", tuple), ("list", list)):
            if kind in spec:
                return sequence(self.restore(each) for each in spec[kind])
        return self._object(spec)

    def take(self, name: str) -> np.ndarray:
        """A tensor as it is in the file."""
        if name not in self._tensors:
            raise ModelFileError(f"the tensor {name} is missing.")
        self.used.add(name)
        return self._tensors[name]

    def take_all(self, prefix: str) -> dict[str, np.ndarray]:
        """The tensors whose names begin with the prefix, by the rest of their names."""
        names = [name for name in self._tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.take(name) for name in names}

    def _array(self, name: str) -> jax.Array:
        tensor = self.take(name)
        if tensor.dtype not in (np.float32, np.float64):
            raise ModelFileError(f"the tensor {name} is {tensor.dtype}; real numbers are needed.")
        if not np.all(np.isfinite(tensor)):
            raise ModelFileError(f"the tensor {name} contains NaN or infinity.")
        return jnp.asarray(tensor)

    def _object(self, spec: dict[str, Any]) -> Any:
        name = str(spec["class"])
        cls = self._class(name, own=bool(spec.get("own", False)))
        hints = field_types(cls)
        # A field with a default may be younger than the file.
        fields = {
            field.name: field.default
            for field in dataclasses.fields(cls)
            if field.default is not dataclasses.MISSING
        }
        fields |= {key: self.restore(value) for key, value in spec["fields"].items()}
        if fields.keys() != hints.keys():
            raise ModelFileError(f"its {name} has other fields than the class {name}.")
        for key, value in fields.items():
            if not fits(value, hints[key]):
                raise ModelFileError(f"its {name} has a {key} of the wrong kind.")
        # As JAX does it: constructors draw random numbers, and arrays come from the file.
        built: Any = object.__new__(cls)
        for key, value in fields.items():
            object.__setattr__(built, key, value)
        for parent in cls.__mro__:
            if "__check_init__" in vars(parent):
                vars(parent)["__check_init__"](built)
        return built

    def _class(self, name: str, *, own: bool) -> type:
        known = self._classes if own else _known_classes()
        if name in known:
            return known[name]
        if own:
            raise ModelFileError(
                f"it holds an object of the class {name[:40]}, which is not part of mongefit. Pass "
                f"the class: load(path, classes=[{name[:40]}])."
            )
        raise ModelFileError(f"it holds an object of the unknown class {name[:40]!r}.")


def check_classes(classes: Sequence[type]) -> dict[str, type]:
    """Classes of the user's by name, each ready to be built."""
    found = {}
    for cls in classes:
        if not isinstance(cls, type) or not issubclass(cls, eqx.Module):
            raise OptionError(
                "classes must be a list of classes such as a subclass of ConvexFunction, Diffeo or "
                f"Term, got {cls!r}."
            )
        found[cls.__name__] = cls
        field_types(cls)
    return found


def _known_classes() -> dict[str, type]:
    return registered_classes() | {"NonTrainable": NonTrainable}


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """The fields of a class and their types.

    Cached, because it evaluates the annotations of the class: nothing may run while a file is read.
    """
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # an own class that imports its types for a type checker alone
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(cls)}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from a file is of the type that a field is annotated with."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(each, arguments[0]) for each in value)
    if origin is NonTrainable:
        return isinstance(value, NonTrainable) and fits(value.tree, arguments[0])
    if hint is float:
        return type(value) in (int, float)
    if hint in (int, bool, str, types.NoneType):
        return type(value) is hint
    if hint is jax.Array or (isinstance(hint, type) and issubclass(hint, AbstractArray)):
        return isinstance(value, hint)
    if isinstance(origin or hint, type):
        # What is annotated as a function is a term in a file: nothing else can be called.
        return isinstance(value, eqx.Module) and (
            callable(value) if origin is not None else isinstance(value, hint)
        )
    return isinstance(value, eqx.Module)


def warm_up() -> None:
    """Look at the types of all classes of the library, before any file is read."""
    for cls in _known_classes().values():
        field_types(cls)
