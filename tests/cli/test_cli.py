"""The command line: every command, every exit code, what is said and what is left behind."""

from __future__ import annotations

import errno
import importlib
import inspect
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax.experimental.compilation_cache.compilation_cache import reset_cache

import mongefit
from mongefit._cli import cli
from mongefit._cli.console import Console
from mongefit._cli.interrupts import Terminated
from mongefit._cli.pictures import save_cost
from mongefit._convex import SquaredEuclidean
from mongefit._costs import Cost
from mongefit._estimators.monge_map import MongeMap
from mongefit._io import read_points, write_points
from mongefit._transport import Units
from mongefit.datasets import t_shape
from mongefit.errors import ConvergenceError, ModelFileError, Option, TrainingError
from tests.command_line import run

# One size of clouds and of layers throughout, the demo included, so that everything is compiled
# once. The steps fill two of the intervals that training compiles.
N = 24
STEPS = 19
SIZES = ("--hidden-layer-sizes", "32,32")
FAST = (*SIZES, "--max-iter", "0", "--epsilon", "0.05")
FIXED = ("--cost", "sqeuclidean", "--epsilon", "0.05")
HEAVY = ("jax", "sklearn", "scipy", "numpy", "matplotlib", "equinox")


def spawn(*arguments, cache, stderr=subprocess.PIPE, stdout=subprocess.PIPE, **environment):
    cleaned = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TQDM_"))}
    source = os.path.dirname(os.path.dirname(mongefit.__file__))
    # As conftest.py has it, or nothing in the shared cache would fit.
    settings = {"PYTHONPATH": source, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    # A suite that runs in the background would hand on that Ctrl-C is ignored.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "mongefit", *map(str, arguments)],
            stdout=stdout,
            stderr=stderr,
            env={**cleaned, **settings, "XDG_CACHE_HOME": str(cache), **environment},
        )
    finally:
        signal.signal(signal.SIGINT, handler)


def finish(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, (out or b"").decode(), (err or b"").decode()


def advice(out):
    """The commands that the demo recommends."""
    lines = out.split("Try next:\n")[1].replace("\\\n", " ").strip().splitlines()
    return [line.split()[1:] for line in lines]


def rmse(mapped, truth):
    return np.sqrt(np.mean(np.sum((mapped - truth) ** 2, axis=1)))


def everything_in(folder):
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two clouds, their pairs and weights, which is the current one."""
    monkeypatch.chdir(tmp_path)
    x, y = t_shape(N, seed=3)
    write_points("x.csv", x, header=["a", "b"])
    write_points("y.csv", y)
    np.savez("both.npz", x=x, y=y)
    pairs = np.repeat(np.arange(N)[:, None], 2, axis=1)
    write_points("pairs.npy", pairs)
    write_points("pairs.csv", pairs)
    write_points("few.csv", pairs[:18])
    (tmp_path / "weight.csv").write_text("w\n" + "2\n" * N)
    return tmp_path


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Home of a compilation cache that this process shares with those it starts."""
    home = tmp_path_factory.mktemp("cache")
    settings = {
        "jax_compilation_cache_dir": str(home / "mongefit" / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.05,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for values in (settings, before):
        for name, value in values.items():
            jax.config.update(name, value)
        reset_cache()
        if values is settings:
            yield home


@pytest.fixture(scope="module")
def demo(tmp_path_factory, cache):
    """What a newcomer has after the first command: both streams, and the folder."""
    folder = tmp_path_factory.mktemp("demo") / "here"
    with pytest.MonkeyPatch.context() as patch:
        # By its name, because mongefit._cli.demo is the command.
        patch.setattr(importlib.import_module("mongefit._cli.demo"), "_N_TRAINING", N)
        result = run("demo", "-o", folder, "--seed", "3")
    return result.stdout, result.stderr, folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of the squared Euclidean cost, for what needs any model."""
    folder = tmp_path_factory.mktemp("model")
    x, y = t_shape(N, seed=3)
    MongeMap("sqeuclidean", epsilon=0.05).fit(x, y).save(folder / "any.mongefit")
    return folder / "any.mongefit"


def test_users_are_not_told_what_libraries_will_drop(capsys):
    class Both(UserWarning, DeprecationWarning):
        pass

    with Console(quiet=False, verbose=False, as_json=False).running():
        warnings.warn("parseString is deprecated", Both, stacklevel=1)
        warnings.warn("points coincide", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: points coincide\n"


class TestStart:
    @pytest.mark.parametrize(
        ("arguments", "code", "expected"),
        [
            (["--version"], 0, mongefit.__version__),
            (["--help"], 0, "Start with: mongefit demo"),
            (["fit", "--help"], 0, "--hidden-layer-sizes"),
            (["fit", "a", "b", "-o", "c", "--alfa", "1"], 2, "'--alpha'"),
            (["trasform"], 2, "Did you mean 'transform'?"),
        ],
    )
    def test_answers_before_anything_heavy_is_imported(self, arguments, code, expected):
        program = (
            "import sys\nfrom mongefit._cli import main\nsys.argv[0] = 'mongefit'\n"
            f"try:\n    main()\nfinally:\n    print([m for m in {HEAVY} if m in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True
        )
        assert done.returncode == code
        assert expected in done.stdout + done.stderr
        assert done.stdout.endswith("[]\n")

    def test_every_option_of_the_estimator_is_there_with_its_default(self):
        expected = {
            name: parameter.default
            for name, parameter in inspect.signature(MongeMap).parameters.items()
            # Losses, penalties and optimizers are objects: the command line learns from pairs.
            if name not in ("losses", "penalties", "optimizer", "verbose")
        }
        with cli.commands["fit"].make_context("fit", ["x", "y", "-o", "m"]) as context:
            found = {name: context.params[name] for name in expected}
            stated = {param.name: param for param in context.command.params}
        for name, default in expected.items():
            if found[name] is None and name != "batch_size":
                # What is not given is the estimator's default, which the help states.
                text = "none" if default is None else default
                text = ",".join(map(str, text)) if isinstance(text, tuple) else str(text)
                text = {"symmetric": "symmetric", "debias": "no"}.get(name, text)
                assert stated[name].help.endswith(f"[default: {text}]"), name
            elif name != "batch_size":
                assert found[name] == default


class TestDemo:
    def test_ends_in_pictures_and_advice(self, demo):
        out, err, folder = demo
        assert out.startswith(f"t_shape: {N} known pairs to learn from, 32 new points to test.")
        assert {path.name for path in folder.iterdir()} == {
            "choice.png",
            "cost.png",
            "map.png",
            "model.mongefit",
            "new_points.csv",
            "pairs.csv",
            "source.csv",
            "target.csv",
        }
        for name in ("map.png", "cost.png", "choice.png"):
            assert (folder / name).read_bytes().startswith(b"\x89PNG")
        rows = re.findall(r"^(?:squared Euclidean|learned cost) +(\S+) +(\S+)$", out, re.MULTILINE)
        euclidean, learned = np.array(rows, dtype=float)
        assert np.all(learned < 0.5 * euclidean)
        assert re.search(r"^Chosen among \d+ candidates in ", out, re.MULTILINE)
        assert "ridge on pairs" in out and max(map(len, out.splitlines()[2:14])) <= 60
        assert "Compiling" in err
        assert "warning" not in err

    def test_table_is_what_the_model_does(self, demo):
        out, _, folder = demo
        x, y = t_shape(32, seed=1003)
        np.testing.assert_array_equal(read_points(folder / "new_points.csv"), x)
        score = mongefit.load(folder / "model.mongefit").score(x, y)
        row = re.search(r"^learned cost +(\S+) ", out, re.MULTILINE)
        assert float(row[1]) == pytest.approx(-score, rel=1e-3)

    def test_advice_can_be_followed(self, demo, tmp_path, monkeypatch):
        out, _, folder = demo
        monkeypatch.chdir(tmp_path)
        transform, fit, info = advice(out)
        assert "Mapped 32 points." in run(*transform).stdout
        model = mongefit.load(folder / "model.mongefit")
        expected = model.transform(t_shape(32, seed=1003)[0])
        np.testing.assert_array_equal(read_points("mapped.csv"), expected)
        assert "debias yes" in re.sub(r"\s+", " ", run(*info).stdout)
        result = run(*fit, "--holdout", "0", "--seed", "3")
        again = mongefit.load("my.mongefit")
        assert again.data_sha256_ == model.data_sha256_
        np.testing.assert_allclose(again.map_.g, model.map_.g, rtol=1e-6)
        assert {"map.png", "cost.png", "choice.png"} <= set(os.listdir("my"))
        assert "held-out pairs" in result.stdout

    def test_options_are_those_of_a_map(self, demo, tmp_path, monkeypatch):
        out, *_ = demo
        monkeypatch.chdir(tmp_path)
        *_, fit, _ = advice(out)
        same = (*SIZES, "--epsilon", "0.05,0.002", "--max-iter", STEPS, "--seed", "3")
        result = run(*fit, *same, "--holdout", "0")
        assert "no pairs are held out; the error on unseen ones is unknown" in result.stderr
        assert "held-out" not in result.stdout
        assert re.search(
            rf"^{STEPS} steps in \S+ s, 0 skipped; dual error", result.stdout, re.MULTILINE
        )
        assert set(os.listdir("my")) == {"map.png", "cost.png", "history.png"}
        found = json.loads(run("info", "my.mongefit", "--json").stdout)
        assert found["final_loss"] == mongefit.load("my.mongefit").history_["loss"][-1]
        assert found["options"]["epsilon"] == {"tuple": [0.05, 0.002]}

    def test_does_not_overwrite(self, demo):
        *_, folder = demo
        before = everything_in(folder)
        assert "--force" in run("demo", "-o", folder, code=1).stderr
        assert everything_in(folder) == before

    def test_folder_that_cannot_be_made(self, folder):
        assert "no folder" in run("demo", "-o", "no/where", code=1).stderr
        assert "is a file" in run("demo", "-o", "x.csv", code=1).stderr


class TestFit:
    def test_says_what_it_took_and_how_well_it_does(self, folder):
        result = run("fit", "x.csv", "y.csv", "--pairs", "pairs.csv", "-o", "m.mongefit", *FAST)
        lines = result.stdout.splitlines()
        assert lines[:3] == [
            f"Source: {N} points, 2 features (x.csv)",
            f"Target: {N} points, 2 features (y.csv)",
            f"Pairs: {N} known, 5 held out (pairs.csv)",
        ]
        assert lines[4] == "RMSE                 training pairs   held-out pairs"
        names = [re.split(r"  +", line)[0] for line in lines[5:9]]
        assert names == ["identity", "target mean", "squared Euclidean", "learned cost"]
        assert re.fullmatch(r"Untrained in \S+ s; dual error \S+", lines[10])
        assert lines[11:] == ["Wrote m.mongefit"]
        assert result.stderr == ""
        assert mongefit.load("m.mongefit").random_state == 0

    def test_mass_that_is_not_kept(self, folder):
        options = ("--cost", "sqeuclidean", "--epsilon", "0.1", "--tau-a", "0.8")
        result = run("fit", "x.csv", "y.csv", "-o", "m.mongefit", *options)
        line = next(line for line in result.stdout.splitlines() if line.startswith("Mass"))
        model = mongefit.load("m.mongefit")
        assert model.tau_a == 0.8 and 0 < model.died_ < 1
        assert line == (
            f"Mass: {model.died_:.1%} of the source goes nowhere, 0.0% of the target comes from "
            "nowhere."
        )
        assert "tau a 0.8" in run("info", "m.mongefit").stdout
        refused = run("fit", "x.csv", "y.csv", "-o", "n.mongefit", "--tau-b", "0", code=2)
        assert "--tau-b must be a number above 0 and at most 1" in refused.stderr

    def test_strengths_are_chosen_among(self, folder, monkeypatch):
        from mongefit.model_selection._training import Trainer

        # Candidates in closed form alone: nothing to compile for training.
        monkeypatch.setattr(Trainer, "judge", lambda *args: [])
        base = ("fit", "x.csv", "y.csv", "--pairs", "pairs.csv", "-o", "m.mongefit")
        out = run(*base, "--tau-a", "1,0.9", "--tau-b", "0.95").stdout
        model = mongefit.load("m.mongefit")
        assert isinstance(model, mongefit.MongeMapCV)
        assert (model.tau_a, model.tau_b) == ((1.0, 0.9), 0.95)
        assert model.best_params_["tau_b"] == 0.95 and "Mass: " in out
        assert set(model.cv_results_["tau_a"]) == {1.0, 0.9}
        refused = run(*base, "--force", "--tau-a", "1,0.9", "--epsilon", "0.1", code=2)
        assert "Several values of --tau-a are chosen among only where all else" in refused.stderr
        for bad in ("1,", "1,x", "choose"):
            assert "neither a number nor several" in run(*base, "--tau-a", bad, code=2).stderr
        refused = run(*base, "--force", "--tau-b", "1,2", code=2)
        assert "--tau-b must be a number above 0 and at most 1, got 2.0" in refused.stderr

    def test_json(self, folder):
        result = run(
            "fit", "x.csv", "y.csv", "--pairs", "pairs.npy", "-o", "m.mongefit", *FAST,
            "--json", "-q", "--seed", "5",
        )  # fmt: skip
        assert result.stderr == ""
        found = json.loads(result.stdout)
        x, y = t_shape(N, seed=3)
        model = mongefit.load("m.mongefit")
        euclidean = MongeMap("sqeuclidean", epsilon=0.05).fit(x, y)
        expected = {
            "identity": x,
            "target_mean": np.broadcast_to(y.mean(0), y.shape),
            "squared_euclidean": euclidean.transform(x),
            "learned_cost": model.transform(x),
        }
        held_out = np.isin(np.arange(N), np.random.default_rng(5).permutation(N)[:5])
        assert (found["n_source"], found["n_pairs"], found["n_held_out"]) == (N, N, 5)
        assert found["files"] == ["m.mongefit"]
        assert found["diagnostics"] == model.diagnostics_
        assert found["data_sha256"] == model.data_sha256_
        for part, chosen in {"training": ~held_out, "held_out": held_out}.items():
            errors = {name: row[part] for name, row in found["rmse"].items()}
            assert errors == pytest.approx(
                {name: rmse(mapped[chosen], y[chosen]) for name, mapped in expected.items()}
            )

    def test_fixed_cost_needs_no_pairs(self, folder):
        result = run("fit", "both.npz:x", "both.npz:y", "-o", "m.bin", *FIXED)
        assert result.stderr == ""
        assert "RMSE" not in result.stdout
        assert re.search(r"^Solved in \S+ s; dual error", result.stdout, re.MULTILINE)
        assert mongefit.load("m.bin").cost == "sqeuclidean"

    def test_fixed_cost_with_pairs(self, folder):
        result = run(
            "fit", "x.csv", "y.csv", "--pairs", "pairs.csv", "-o", "m", *FIXED, "--pictures", "p"
        )
        assert result.stderr == "note: this cost is fixed; the pairs only measure its error.\n"
        assert "known pairs" in result.stdout
        assert "learned" not in result.stdout
        assert {path.name for path in (folder / "p").iterdir()} == {"map.png", "cost.png"}

    @pytest.mark.parametrize("dim", [1, 3])
    def test_cost_picture_of_other_dimensions(self, tmp_path, dim):
        points = np.random.default_rng(0).normal(size=(8, dim))
        entropic_map = SimpleNamespace(
            cost=Cost(SquaredEuclidean()), units=Units.none(dim), x=jnp.zeros((1, dim))
        )
        model = SimpleNamespace(map_=entropic_map, transform=lambda x: 2 * x)
        save_cost(tmp_path / "cost.png", model, points)
        assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")

    def test_few_pairs(self, folder):
        result = run("fit", "x.csv", "y.csv", "--pairs", "few.csv", "-o", "m.mongefit", *FAST)
        assert "Pairs: 18 known, 0 held out" in result.stdout
        assert "the error on unseen ones is unknown" in result.stderr
        assert "held-out" not in result.stdout
        run(
            "fit", "x.csv", "y.csv", "--pairs", "few.csv", "-o", "m", *FAST, "--holdout", "0.98",
            code=2,
        )  # fmt: skip
        result = run(
            "fit", "x.csv", "y.csv", "--pairs", "few.csv", "-o", "m", *FAST, "--holdout", "0.3"
        )
        assert "Pairs: 18 known, 5 held out" in result.stdout

    def test_weights(self, folder):
        weights = ("--source-weight", "weight.csv", "--target-weight", "weight.csv")
        base = ("fit", "x.csv", "y.csv", "-o", "m.mongefit", *FIXED, *weights)
        refused = run(*base, code=3).stderr
        assert "weight.csv has sum 48, not 1." in refused
        assert "set --normalize-weight." in refused
        run(*base, "--normalize-weight")
        assert mongefit.load("m.mongefit").normalize_weight

    def test_force(self, folder):
        (folder / "m.mongefit").write_text("precious")
        base = ("fit", "x.csv", "y.csv", "-o", "m.mongefit", *FIXED)
        assert "or set --force to replace it." in run(*base, code=1).stderr
        assert (folder / "m.mongefit").read_text() == "precious"
        run(*base, "--force")
        assert mongefit.load("m.mongefit").n_features_in_ == 2

    def test_warnings_are_short_lines(self, folder):
        with open("pairs.csv", "a") as file:
            file.write("0,0\n")
        result = run("fit", "x.csv", "y.csv", "--pairs", "pairs.csv", "-o", "m", *FAST, "-q")
        assert result.stderr == f"warning: 1 of {N + 1} pairs are repeated; each is counted once.\n"

    def test_quiet_and_verbose(self, folder):
        base = ("fit", "x.csv", "y.csv", "--pairs", "few.csv", "-o", "m", *FAST, "--force")
        assert run(*base, "-q").stderr == ""
        assert re.search(r"^JAX \d.* on ", run(*base, "-v").stderr, re.MULTILINE)

    def test_sixty_columns(self, folder, monkeypatch):
        monkeypatch.setenv("COLUMNS", "60")
        base = ("fit", "x.csv", "y.csv", "--pairs", "pairs.csv", "-o", "m.mongefit", *FAST)
        texts = [run(*base).stdout, run("info", "m.mongefit").stdout]
        for name, command in cli.commands.items():
            # Not through the runner, which fixes the width of help at 80.
            with command.make_context(f"mongefit {name}", [], resilient_parsing=True) as context:
                texts.append(context.get_help())
        assert max(len(line) for text in texts for line in text.splitlines()) <= 60


class TestConfig:
    def fit(self, text, *arguments, **options):
        with open("fit.toml", "w") as file:
            file.write(text)
        return run("fit", "x.csv", "y.csv", "--config", "fit.toml", *arguments, **options)

    def test_options_from_a_file(self, folder):
        self.fit(
            'pairs = "pairs.csv"\noutput = "m.mongefit"\nhidden-layer-sizes = [32, 32]\n'
            "epsilon = [0.1, 0.05]\nmax_iter = 0\nstrict = true\nseed = 4\nholdout = 0\n",
            "--seed", "7",
        )  # fmt: skip
        model = mongefit.load("m.mongefit")
        assert model.hidden_layer_sizes == (32, 32)
        assert model.epsilon == (0.1, 0.05)
        assert (model.strict, model.random_state) == (True, 7)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("max-itr = 3", "no option 'max-itr'. Did you mean max-iter?"),
            ("config = 'a.toml'", "no option 'config'"),
            ("max-iter = 3.5", "'3.5' is not a valid integer"),
            ("max-iter = true", "max-iter cannot be True"),
            ("strict = 1", "strict is true or false"),
            ("cost = 'icn'", "'icn' is not one of"),
            ("epsilon = [1, 2, 3]", "neither a number nor START,END"),
            ("[fit]\nalpha = 1", "no option 'fit'"),
            ("alpha = ", "not valid TOML"),
        ],
    )
    def test_refused(self, folder, text, expected):
        before = set(everything_in(folder))
        result = self.fit(text, "--pairs", "pairs.csv", "-o", "m", code=2)
        assert expected in result.stderr
        assert set(everything_in(folder)) - before == {str(folder / "fit.toml")}

    def test_missing_file(self, folder):
        result = run("fit", "x.csv", "y.csv", "--config", "no.toml", "-o", "m", code=2)
        assert "no.toml cannot be read" in result.stderr


class TestTransform:
    def test_forward_and_back(self, folder, model):
        assert run("transform", model, "x.csv", "-o", "t.npy").stdout == (
            f"Mapped {N} points.\nWrote t.npy\n"
        )
        x, _ = t_shape(N, seed=3)
        np.testing.assert_array_equal(np.load("t.npy"), mongefit.load(model).transform(x))
        found = json.loads(
            run("transform", model, "t.npy", "-o", "b.tsv", "--inverse", "--json").stdout
        )
        assert (found["n_points"], found["inverse"], found["output"]) == (N, True, "b.tsv")
        expected = mongefit.load(model).inverse_transform(np.load("t.npy"))
        np.testing.assert_array_equal(read_points("b.tsv"), expected)

    def test_force(self, folder, model):
        (folder / "t.csv").write_text("precious")
        assert "--force" in run("transform", model, "x.csv", "-o", "t.csv", code=1).stderr
        run("transform", model, "x.csv", "-o", "t.csv", "--force")
        assert len(read_points("t.csv")) == N


class TestInfo:
    def test_text(self, model):
        out = run("info", model).stdout
        assert f"  points          {N} source, {N} target\n" in out
        assert "  cost            SquaredEuclidean\n" in out
        assert "  flows           none\n" in out
        assert "  trained         no\n" in out
        assert re.search(r"random\s+state\s+0", out)

    def test_json(self, demo):
        *_, folder = demo
        found = json.loads(run("info", folder / "model.mongefit", "--json").stdout)
        model = mongefit.load(folder / "model.mongefit")
        assert found["shape"] == [N, N, 2]
        assert found["choice"]["report"]["rows"] == list(model.report_.rows)
        assert found["data_sha256"] == model.data_sha256_
        assert found["options"]["epsilon"] == model.best_params_["epsilon"]

    def test_cost(self, model):
        out = run("info", model, "--cost").stdout
        assert "Curvature: 100.0% squared Euclidean" in out
        found = json.loads(run("info", model, "--cost", "--json").stdout)["learned_cost"]
        assert found["euclidean"] == pytest.approx(1)
        assert [way["curvature"] for way in found["directions"]] == pytest.approx([1, 1])
        assert np.shape([way["parts"] for way in found["directions"]]) == (2, 2)


class TestFailures:
    """Failures beside those of tests/faults: exit code, message, and nothing left behind."""

    FIT = ("fit", "x.csv", "y.csv", "--pairs", "pairs.csv", "-o", "m.mongefit")

    @pytest.mark.parametrize(
        ("arguments", "code", "expected"),
        [
            (("fit", "x.csv", "y.csv"), 2, "Missing option '-o'"),
            ((*FIT, "--learning-rate", "-1"), 2, "--learning-rate must be positive"),
            ((*FIT, "--learning-rate", "0.1,x"), 2, "neither a number nor START,END"),
            ((*FIT, "--n-init", "0"), 2, "--n-init must be a whole number >= 1"),
            ((*FIT, "--batch-size", "1"), 2, "--batch-size must be a whole number >= 2"),
            ((*FIT, "--hidden-layer-sizes", "8,x"), 2, "not a list of whole numbers"),
            ((*FIT, "--holdout", "1"), 2, "must be at least 0 and below 1"),
            ((*FIT, "--diffeo", "share"), 2, "'share' is not one of"),
            ((*FIT, "--pictures", "x.csv"), 1, "x.csv is a file"),
            ((*FIT, "--pictures", "no/p"), 1, "there is no folder"),
            (("transform", "MODEL", "X.csv", "-o", "t.csv"), 3, "X.csv not found"),
            (("transform", "no.mongefit", "x.csv", "-o", "t.csv"), 3, "no.mongefit not found"),
            (("transform", "MODEL", "x.csv", "-o", "t.txt"), 2, "Known: .csv"),
            (("transform", "MODEL", "x.csv", "-o", "no/t.csv"), 1, "there is no folder"),
            (("info", "cut.mongefit"), 3, "is damaged"),
            (("info", "x.csv"), 3, "is not a mongefit model"),
        ],
    )  # fmt: skip
    def test_message_and_exit_code(self, folder, model, arguments, code, expected):
        (folder / "cut.mongefit").write_bytes(model.read_bytes()[:-100])
        before = everything_in(folder)
        result = run(*(model if part == "MODEL" else part for part in arguments), code=code)
        assert result.stdout == ""
        assert expected in " ".join(result.stderr.split())
        assert everything_in(folder) == before

    @pytest.mark.parametrize(
        ("error", "code", "expected"),
        [
            (KeyboardInterrupt(), 130, "Interrupted; nothing was written.\n"),
            (Terminated(), 143, "Terminated; nothing was written.\n"),
            (
                ConvergenceError("Try a smaller {steps}.", steps=Option("max_iter")),
                4,
                "Error: Try a smaller --max-iter.",
            ),
            (TrainingError("Step 3."), 1, "Error: Step 3."),
            (MemoryError(), 1, "Error: Not enough memory."),
            (
                RuntimeError("odd\nlong"),
                1,
                "Error: RuntimeError: odd (unexpected; MONGEFIT_DEBUG=1",
            ),
        ],
    )
    def test_while_fitting(self, folder, monkeypatch, error, code, expected):
        def fail(*_, **__):
            raise error

        monkeypatch.setattr(MongeMap, "fit", fail)
        before = everything_in(folder)
        assert expected in run("fit", "x.csv", "y.csv", "-o", "m", *FIXED, code=code).stderr
        assert everything_in(folder) == before

    def test_while_drawing(self, folder, monkeypatch):
        def fail(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr("mongefit._cli.pictures.plot_convex", fail)
        base = ("fit", "x.csv", "y.csv", "-o", "m.mongefit", *FIXED, "--pictures", "p")
        assert "already written: m.mongefit, p/map.png." in run(*base, code=130).stderr

    def test_traceback_on_request(self, folder, monkeypatch):
        monkeypatch.setenv("MONGEFIT_DEBUG", "1")
        result = CliRunner().invoke(cli, ["info", "x.csv"])
        assert isinstance(result.exception, ModelFileError)

    def test_device_that_is_not_there(self, folder, model, cache):
        process = spawn(
            "transform", model, "x.csv", "-o", "t.csv", cache=cache, JAX_PLATFORMS="xpu"
        )
        code, out, err = finish(process)
        assert (code, out) == (1, "")
        assert err.startswith("Error: JAX_PLATFORMS=xpu, but JAX finds no such device here.")
        assert not os.path.exists("t.csv")


class TestProcess:
    """What only a process of its own shows."""

    def test_reader_that_has_gone(self, folder, model, cache):
        reader, writer = os.pipe()
        os.close(reader)
        process = spawn(
            "transform", model, "x.csv", "-o", "t.csv", "-v",
            cache=cache, stdout=writer, MONGEFIT_NO_CACHE="1",
        )  # fmt: skip
        os.close(writer)
        code, _, err = finish(process)
        assert code == 0
        assert err.splitlines()[1:] == ["compilation cache: none"]
        assert len(read_points("t.csv")) == N

    @pytest.mark.parametrize(
        ("sent", "code", "moment", "word"),
        [
            (signal.SIGINT, 130, "training 10/", "Interrupted"),
            (signal.SIGTERM, 143, "Compiling", "Terminated"),
        ],
    )
    def test_stopped(self, demo, cache, tmp_path, sent, code, moment, word):
        *_, source = demo
        terminal, stderr = pty.openpty()
        termios.tcsetwinsize(stderr, (24, 60))
        process = spawn(
            "fit", source / "source.csv", source / "target.csv", "--pairs", source / "pairs.csv",
            "-o", tmp_path / "m.mongefit", "--holdout", "0", *SIZES, "--max-iter", "100000",
            cache=cache, stderr=stderr,
        )  # fmt: skip
        os.close(stderr)
        seen = read_until(terminal, moment)
        process.send_signal(sent)
        started = time.monotonic()
        seen += read_until(terminal, None)
        assert finish(process)[0] == code, seen
        assert time.monotonic() - started < 20
        assert f"{word}; nothing was written." in seen
        assert "Traceback" not in seen
        assert not list(tmp_path.iterdir())
        os.close(terminal)

    def test_the_end_waits_for_no_thread(self):
        code = (
            "import threading, time; from mongefit import _cli as cli\n"
            "threading.Thread(target=time.sleep, args=(600,)).start()\n"
            "cli.main()"
        )
        ran = subprocess.run(
            [sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0 and ran.stdout.startswith("mongefit")

    def test_stopped_and_resumed(self, demo, cache, tmp_path):
        *_, source = demo

        def start(name, *options, stderr=subprocess.PIPE):
            return spawn(
                "fit", source / "source.csv", source / "target.csv", "--pairs",
                source / "pairs.csv", "-o", tmp_path / name, "--holdout", "0", *SIZES,
                "--max-iter", "600", *options, cache=cache, stderr=stderr,
            )  # fmt: skip

        kept = ("--checkpoint", tmp_path / "kept")
        terminal, stderr = pty.openpty()
        termios.tcsetwinsize(stderr, (24, 60))
        process = start("m.mongefit", *kept, stderr=stderr)
        os.close(stderr)
        seen = read_until(terminal, "training 10/")
        process.send_signal(signal.SIGTERM)
        seen += read_until(terminal, None)
        os.close(terminal)
        assert finish(process)[0] == 143, seen
        assert f"Terminated; training is kept in {tmp_path / 'kept'}" in seen.replace("\r\n", "")
        assert "Traceback" not in seen and not (tmp_path / "m.mongefit").exists()
        assert (tmp_path / "kept/checkpoint.safetensors").exists()
        ended, _, err = finish(start("m.mongefit", *kept))
        assert ended == 3 and "Go on with it (--resume)" in err
        assert finish(start("m.mongefit", *kept, "--resume"))[0] == 0
        assert finish(start("whole.mongefit"))[0] == 0
        resumed, whole = (
            mongefit.load(tmp_path / name) for name in ("m.mongefit", "whole.mongefit")
        )
        x = read_points(source / "source.csv")
        np.testing.assert_array_equal(resumed.transform(x), whole.transform(x))
        np.testing.assert_array_equal(resumed.history_["loss"], whole.history_["loss"])


def read_until(descriptor, word, seconds=200):
    """What a terminal shows until a word appears, or until the program has gone."""
    seen = ""
    deadline = time.monotonic() + seconds
    while word is None or word not in seen:
        assert select.select([descriptor], [], [], deadline - time.monotonic())[0], seen
        try:
            part = os.read(descriptor, 4096)
        except OSError as error:  # how Linux says that the other end is closed
            assert error.errno == errno.EIO
            part = b""
        if not part:
            assert word is None, seen
            return seen
        seen += part.decode(errors="replace")
    return seen
