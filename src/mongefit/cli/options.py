"""Values of options that click has no type for, and options out of a TOML file."""

from __future__ import annotations

import difflib
import tomllib
from typing import Any

import click


def whole_numbers(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    """A tuple from text such as 64,64."""
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a list of whole numbers such as 64,64.", ctx, param
        ) from None


def number_or_range(
    ctx: click.Context, param: click.Parameter, text: str
) -> float | tuple[float, ...]:
    """A number from text such as 0.01, or a pair from 0.05,0.002."""
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


def check_training_options(options: dict[str, Any]) -> None:
    """Find what fit would refuse before any file is read."""
    from mongefit.validation import check_count, check_layers, check_positive, check_schedule

    for name in ("epsilon", "learning_rate", "diffeo_learning_rate"):
        check_schedule(options[name], name)
    check_count(options["max_iter"], "max_iter")
    check_count(options["n_init"], "n_init", minimum=1)
    if options["batch_size"] is not None:
        check_count(options["batch_size"], "batch_size", minimum=2)
    check_layers(options["hidden_layer_sizes"])
    check_positive(options["alpha"], "alpha")
