"""Values of options that click has no type for, and options out of a TOML file."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Callable
from typing import Any

import click


def whole_numbers(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """A tuple from text such as 64,64."""
    if text is None:
        return None
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a list of whole numbers such as 64,64.", ctx, param
        ) from None


def number_or_range(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> float | tuple[float, ...] | None:
    """A number from text such as 0.01, or a pair from 0.05,0.002."""
    if text is None:
        return None
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 2):
        raise click.BadParameter(
            f"{text!r} is neither a number nor START,END such as 0.05,0.002.", ctx, param
        )
    return numbers[0] if len(numbers) == 1 else numbers


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
    options = _options_by_name(ctx.command, without=param)
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        option = options.get(key.replace("_", "-"))
        if option is None:
            near = difflib.get_close_matches(key.replace("_", "-"), options)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise click.BadParameter(f"{path}: there is no option {key!r}.{hint}")
        defaults[str(option.name)] = _as_text(option, key, value, path)
    ctx.default_map = defaults


def _options_by_name(command: click.Command, without: click.Parameter) -> dict[str, click.Option]:
    return {
        name.removeprefix("--"): option
        for option in command.params
        if isinstance(option, click.Option) and option is not without
        for name in option.opts
        if name.startswith("--")
    }


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


_RANGE: dict[str, Any] = {"callback": number_or_range, "metavar": "NUMBER|START,END"}

# Options of `MongeMap`, each with its default there. None stands for not given: for cells without
# any of them, settings are chosen.
_TRAINING: dict[str, tuple[str, dict[str, Any]]] = {
    "cost": (
        "icnn",
        {
            "type": click.Choice(["icnn", "conjugate_icnn", "sqeuclidean"]),
            "help": "Learned convex function, learned by its conjugate, or squared Euclidean.",
        },
    ),
    "diffeo": (
        "none",
        {
            "type": click.Choice(["none", "shared", "separate"]),
            "help": "Flows: none, one for both clouds, one each.",
        },
    ),
    "hidden-layer-sizes": (
        "64,64",
        {"callback": whole_numbers, "metavar": "SIZES", "help": "Widths of the learned function."},
    ),
    "symmetric/--no-symmetric": ("symmetric", {"help": "Whether h(-z) = h(z)."}),
    "alpha": ("0.01", {"type": float, "help": "Strong convexity of h."}),
    "epsilon": ("0.01", _RANGE | {"help": "Regularisation relative to the mean cost."}),
    "max-iter": ("500", {"type": int, "help": "Training steps."}),
    "batch-size": ("all", {"type": int, "help": "Points of each cloud in a training step."}),
    "n-init": ("1", {"type": int, "help": "Starts, of which the one with the least loss is kept."}),
    "learning-rate": ("0.05", _RANGE | {"help": "Adam's rate for h."}),
    "diffeo-learning-rate": ("0.005", _RANGE | {"help": "Adam's rate for the flows."}),
    "dual": (
        "newton",
        {
            "type": click.Choice(["newton", "sinkhorn"]),
            "help": "How potentials are found in training.",
        },
    ),
    "differentiate": (
        "implicit",
        {
            "type": click.Choice(["implicit", "unrolled"]),
            "help": "How potentials are differentiated.",
        },
    ),
    "dtype": (
        "float64",
        {"type": click.Choice(["float64", "mixed", "float32"]), "help": "Precision."},
    ),
}


def training_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of training, and call it with those given as ``training``."""
    names = [name.partition("/")[0].replace("-", "_") for name in _TRAINING]

    @functools.wraps(function)
    def collected(**options: Any) -> None:
        training = {name: options.pop(name) for name in names}
        given = {name: value for name, value in training.items() if value is not None}
        if given.get("diffeo") == "none":
            given["diffeo"] = None
        function(training=given, **options)

    for name, (default, settings) in reversed(_TRAINING.items()):
        explained = settings | {"help": f"{settings['help']}  [default: {default}]"}
        collected = click.option(f"--{name}", default=None, **explained)(collected)
    return collected


def check_training_options(options: dict[str, Any]) -> None:
    """Find what fit would refuse before any file is read."""
    from mongefit._validation import check_count, check_layers, check_positive, check_schedule

    for name in ("epsilon", "learning_rate", "diffeo_learning_rate"):
        if name in options:
            check_schedule(options[name], name)
    for name, minimum in (("max_iter", 0), ("n_init", 1), ("batch_size", 2)):
        if name in options:
            check_count(options[name], name, minimum=minimum)
    if "hidden_layer_sizes" in options:
        check_layers(options["hidden_layer_sizes"])
    if "alpha" in options:
        check_positive(options["alpha"], "alpha")
