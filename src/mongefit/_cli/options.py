"""Options that commands share, and what is checked of them before any long work."""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from mongefit.errors import did_you_mean

Command = Callable[..., None]
Decorator = Callable[[Command], Command]
Options = dict[str, tuple[dict[str, Any], str]]


def whole_numbers(text: str) -> tuple[int, ...]:
    """A tuple from text such as 64,64."""
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a list of whole numbers such as 64,64."
        ) from None


def number_or_range(text: str) -> float | tuple[float, ...]:
    """A number from text such as 0.01, or a pair from 0.05,0.002."""
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 2):
        raise click.BadParameter(f"{text!r} is neither a number nor START,END such as 0.05,0.002.")
    return numbers[0] if len(numbers) == 1 else numbers


def number_or_several(text: str) -> float | tuple[float, ...]:
    """A number from text such as 0.9, or several from 1,0.99,0.9."""
    try:
        several = tuple(map(float, text.split(",")))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a number nor several such as 1,0.99,0.9."
        ) from None
    return several[0] if len(several) == 1 else several


def flag_of(name: str) -> str:
    """The flag of an option of the library."""
    return f"--{name.replace('_', '-')}"


def seed_option(*flags: str, text: str) -> Decorator:
    """Give a command an option for a seed."""
    return click.option(*flags, type=click.IntRange(min=0), default=0, help=text)


def grouped(keyword: str, options: Options, flags: dict[str, str]) -> Decorator:
    """Give a command several options, and call it with one dict of their values by name.

    Each name has settings for click and a help text. ``flags`` has those that differ from the name.
    """

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def collected(**values: Any) -> None:
            group = {name: values.pop(name) for name in options}
            function(**{keyword: group}, **values)

        for name, (settings, text) in reversed(options.items()):
            flag = flags.get(name, flag_of(name))
            collected = click.option(flag, name, help=text, **settings)(collected)
        return collected

    return decorate


def read_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Take the options in a TOML file for defaults; what the command line says wins."""
    if path is None:
        return
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} is not valid TOML: {error}.") from error
    options = {
        name.removeprefix("--"): option
        for option in ctx.command.params
        if isinstance(option, click.Option) and option is not param
        for name in option.opts
        if name.startswith("--")
    }
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("_", "-")
        option = options.get(name)
        if option is None:
            hint = did_you_mean(name, options)
            raise click.BadParameter(f"{path}: there is no option {key!r}.{hint}")
        defaults[str(option.name)] = _as_text(option, key, value, path)
    ctx.default_map = defaults


def _as_text(option: click.Option, key: str, value: Any, path: str) -> Any:
    """What would have been typed: so that a file is read as strictly as a command line."""
    if option.is_flag:
        if isinstance(value, bool):
            return value
        raise click.BadParameter(f"{path}: {key} is true or false, got {value!r}.")
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return ",".join(map(str, value))
    if isinstance(value, list | dict | bool):
        raise click.BadParameter(f"{path}: {key} cannot be {value!r}.")
    return str(value)


_SIZES = {"type": whole_numbers, "metavar": "SIZES"}
_RANGE = {"type": number_or_range, "metavar": "NUMBER|START,END"}
_SEVERAL = {"type": number_or_several, "metavar": "NUMBER|NUMBERS"}
_COST = {"type": click.Choice(["icnn", "conjugate_icnn", "matrix", "sqeuclidean"])}
_DIFFEO = {"type": click.Choice(["none", "affine", "kernel", "shared", "separate"])}
_DUAL = {"type": click.Choice(["newton", "sinkhorn"])}
_DIFFERENTIATE = {"type": click.Choice(["implicit", "unrolled"])}
_DTYPE = {"type": click.Choice(["float64", "mixed", "float32"])}

# Options of `MongeMap`, with the defaults there. What is not given is None: for cells without any
# of them, settings are chosen.
_TRAINING: Options = {
    "cost": (
        _COST,
        "Learned network, learned by its conjugate, learned matrix, or squared Euclidean.  "
        "[default: icnn]",
    ),
    "diffeo": (
        _DIFFEO,
        "Maps of the clouds: none, of the source from the pairs, a flow for both, one each.  "
        "[default: none]",
    ),
    "hidden_layer_sizes": (_SIZES, "Widths of the learned function.  [default: 64,64]"),
    "symmetric": ({"default": None}, "Whether h(-z) = h(z).  [default: symmetric]"),
    "alpha": ({"type": float}, "Strong convexity of h.  [default: 0.01]"),
    "epsilon": (_RANGE, "Regularisation relative to the mean cost.  [default: 0.1,0.01]"),
    "debias": ({"default": None}, "Whether to undo the shrinking of the map.  [default: no]"),
    "tau_a": (
        _SEVERAL,
        "How strictly the source keeps its mass, up to 1; of several the best is chosen.  "
        "[default: 1.0]",
    ),
    "tau_b": (_SEVERAL, "How strictly the target keeps its mass.  [default: 1.0]"),
    "max_iter": ({"type": int}, "Training steps.  [default: 500]"),
    "validation_fraction": (
        {"type": float},
        "Share of the pairs or clones, from 20 on, to stop early by.  [default: 0.2]",
    ),
    "batch_size": ({"type": int}, "Points of each cloud in a training step.  [default: all]"),
    "n_init": (
        {"type": int},
        "Starts, of which the one with the least loss is kept.  [default: 1]",
    ),
    "learning_rate": (_RANGE, "Adam's rate for h.  [default: 0.05]"),
    "diffeo_learning_rate": (_RANGE, "Adam's rate for the flows.  [default: 0.005]"),
    "dual": (_DUAL, "How potentials are found in training.  [default: newton]"),
    "differentiate": (_DIFFERENTIATE, "How potentials are differentiated.  [default: implicit]"),
    "dtype": (_DTYPE, "Precision.  [default: float64]"),
}

TAUS = ("tau_a", "tau_b")
"""What settings may be chosen with, and among."""

training_options = grouped(
    "training",
    _TRAINING,
    {"symmetric": "--symmetric/--no-symmetric", "debias": "--debias/--no-debias"},
)
"""Gives a command the options of training as ``training``; None for those that are not given."""


def check_training_options(training: dict[str, Any]) -> dict[str, Any]:
    """The options of training that are given; what fit would refuse of them is found here."""
    from mongefit._validation import (
        check_count,
        check_layers,
        check_positive,
        check_schedule,
        check_tau,
    )

    given = {name: value for name, value in training.items() if value is not None}
    if given.get("diffeo") == "none":
        given["diffeo"] = None
    for name in ("epsilon", "learning_rate", "diffeo_learning_rate"):
        if name in given:
            check_schedule(given[name], name)
    for name, minimum in (("max_iter", 0), ("n_init", 1), ("batch_size", 2)):
        if name in given:
            check_count(given[name], name, minimum=minimum)
    for name in TAUS:
        several = given[name] if isinstance(given.get(name), tuple) else (given.get(name, 1.0),)
        for tau in several:
            check_tau(tau, name)
    if "hidden_layer_sizes" in given:
        check_layers(given["hidden_layer_sizes"])
    if "alpha" in given:
        check_positive(given["alpha"], "alpha")
    return given


def check_output(
    path: str,
    *,
    force: bool,
    inputs: Iterable[str | None],
    suffixes: Sequence[str] | None = None,
    flag: str = "-o",
) -> None:
    """Check that a file can be written and is none of the inputs."""
    from mongefit._io import check_writable

    for name in inputs:
        if name is not None and os.path.realpath(name) == os.path.realpath(path):
            raise click.UsageError(f"{flag} {path} is also an input. Choose another name.")
    try:
        check_writable(path, overwrite=force, suffixes=suffixes)
    except ValueError as error:
        raise click.UsageError(f"{flag} {error}") from error


def check_folder(folder: str, names: Iterable[str], *, force: bool) -> dict[str, str]:
    """The paths of files in a folder, once it is checked that they can be written."""
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
