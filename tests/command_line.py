"""Running a command of this process, as the tests of the command line do."""

from __future__ import annotations

from click.testing import CliRunner

from mongefit._cli import cli


def run(*arguments, code=0):
    result = CliRunner().invoke(cli, list(map(str, arguments)))
    assert result.exit_code == code, f"{result.exit_code}: {result.output}{result.exception!r}"
    assert "Traceback" not in result.output
    return result
