"""Put small faults into the source, one at a time, and see whether the tests notice.

    python tools/mutants.py [--per-module 20] [--only ROOM] [--seed 0] [--jobs 1] [--again]

A fault (a mutant) swaps an operator, changes a constant or drops a sign. The source is divided into
rooms; of each, some mutants are drawn at random and the tests of that room are run against every
one, in a copy of the repository, which itself is never touched. Tests that fail have caught the
mutant. So have tests that take five times as long as without it: a loop that does not end is a
fault that is seen. What is left survived: either nothing tests that line well enough, or the
change makes no difference.

Every result is written to a log at once, and a run that was cut off goes on from there: a mutant
that is in the log is not run again as long as its file is the same. Survivors are, with --again:
after tests were added. The exit status is 1 if fewer than 95 % are caught, and 2 if the tests fail
without a mutant.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "src/mongefit"
GOAL = 0.95
PATIENCE = 5  # times the unmutated run
NOT_COPIED = (".venv*", ".git", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
CAUGHT, SURVIVED, TIMEOUT = "caught", "SURVIVED", "timeout"


class Room(NamedTuple):
    """Files of the package, and the tests that should notice a fault in them, in their order."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "convex": Room(("_convex/*.py",), ("tests/contracts/test_convex.py",)),
    "inverse": Room(
        ("_inverse/*.py",),
        ("tests/contracts/test_conjugate.py", "tests/contracts/test_convex.py"),
    ),
    "duals": Room(
        ("_duals/*.py",), ("tests/oracles/test_duals.py", "tests/oracles/test_gradients.py")
    ),
    "transport": Room(
        ("_transport.py", "_pairs/*.py"),
        (
            "tests/test_pairs.py",
            "tests/oracles/test_maps.py",
            "tests/oracles/test_kernel.py",
            "tests/oracles/test_debias.py",
            "tests/oracles/test_gradients.py",
        ),
    ),
    "losses": Room(
        ("losses/*.py", "penalties.py"),
        ("tests/contracts/test_losses.py", "tests/fitting/test_knowledge.py"),
    ),
    "training": Room(
        ("_training/*.py",),
        (
            "tests/training/test_batches.py",
            "tests/training/test_step.py",
            "tests/training/test_checkpoints.py",
            "tests/training/test_starts.py",
        ),
    ),
    "selection": Room(("model_selection/*.py",), ("tests/selection",)),
    "storage": Room(("_storage/*.py", "_io/tensors.py"), ("tests/storage",)),
}


# Where a fault can be put.


@dataclass(frozen=True)
class Mutant:
    """Bytes of a file to be replaced, and where they are for a reader and for the log."""

    file: str
    line: int
    column: int
    operator: str
    change: str
    start: int
    stop: int
    text: bytes
    digest: str

    @property
    def key(self) -> tuple[str, int, int, str, str]:
        return self.file, self.line, self.column, self.operator, self.digest


OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
CALLS = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "all": "any",
    "any": "all",
}
# Their faults could be seen by mypy or by nobody: zip(strict=True) guards what never happens.
KEYWORDS = {"static", "default_factory", "strict", "stacklevel"}
TYPES = {"TypeVar", "ParamSpec", "NewType", "cast"}
ANNOTATIONS = {"annotation", "returns", "decorator_list", "type_comment"}


def called(node: ast.AST) -> str:
    """The last name of what a call calls."""
    if isinstance(node, ast.Call):
        node = node.func
    return getattr(node, "attr", getattr(node, "id", ""))


def is_skipped(node: ast.AST) -> bool:
    """Whether faults in here are of no interest: words, types, and what only says what is wrong."""
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in KEYWORDS
    if isinstance(node, ast.If):
        return called(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Call):
        name = called(node)
        return name in TYPES or name == "warn" or name.endswith(("Error", "Warning"))
    return False


def nodes(tree: ast.AST, parent: ast.AST | None = None) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Every node that may be changed, with the one that holds it."""
    if is_skipped(tree):
        return
    yield tree, parent
    for name, value in ast.iter_fields(tree):
        if name in ANNOTATIONS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from nodes(child, tree)


def is_boolean(node: ast.AST) -> bool:
    """Whether an expression is surely true or false, or an array of such."""
    if isinstance(node, ast.BoolOp):
        return all(map(is_boolean, node.values))
    if isinstance(node, ast.BinOp):
        bits = isinstance(node.op, ast.BitAnd | ast.BitOr)
        return bits and is_boolean(node.left) and is_boolean(node.right)
    if isinstance(node, ast.Call):
        return called(node) in {"isinstance", "issubclass", "bool", "all", "any", "isfinite"}
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated or isinstance(node, ast.Compare)


def is_sequence(node: ast.AST) -> bool:
    """Whether an operand is text, a list or a tuple: with another operator nothing would run."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def counts_from_the_end(parent: ast.AST | None) -> bool:
    """Whether -1 is an axis, here or in a shape: of a matrix that axis is 1 too."""
    if isinstance(parent, ast.keyword):
        return parent.arg == "axis"
    return isinstance(parent, ast.Subscript) and called(parent.value) == "shape"


class Source:
    """A file in bytes, as the syntax tree counts columns in those."""

    def __init__(self, path: Path, root: Path = ROOT):
        self.name = path.relative_to(root).as_posix()
        self.data = path.read_bytes()
        self.digest = hashlib.sha256(self.data).hexdigest()[:16]
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.code = self._without_comments()

    def _without_comments(self) -> bytes:
        """The same bytes with blanks for comments, in which operators are looked for."""
        code = bytearray(self.data)
        for token in tokenize.tokenize(io.BytesIO(self.data).readline):
            if token.type == tokenize.COMMENT:
                start = self.starts[token.start[0] - 1]
                start += len(token.line[: token.start[1]].encode())
                size = len(token.string.encode())
                code[start : start + size] = b" " * size
        return bytes(code)

    def span(self, node: Any) -> tuple[int, int]:
        """Where a node begins and ends."""
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: ast.AST) -> bytes:
        start, stop = self.span(node)
        return self.data[start:stop]

    def changed(self, mutant: Mutant) -> bytes:
        return self.data[: mutant.start] + mutant.text + self.data[mutant.stop :]

    def mutant(self, operator: str, start: int, stop: int, text: bytes) -> Mutant:
        line = sum(begin <= start for begin in self.starts)
        old, new = (" ".join(each.decode().split()) for each in (self.data[start:stop], text))
        column = start - self.starts[line - 1]
        change = f"{old or 'nothing'} -> {new or 'nothing'}"
        return Mutant(self.name, line, column, operator, change, start, stop, text, self.digest)

    def mutants(self) -> list[Mutant]:
        """All faults that can be put into this file; a few may not be Python."""
        tree = ast.parse(self.data)
        return [each for node, parent in nodes(tree) for each in self._of(node, parent)]

    def is_fault(self, mutant: Mutant) -> bool:
        """Whether a mutant is Python, and another program."""
        try:
            return ast.dump(ast.parse(self.changed(mutant))) != ast.dump(ast.parse(self.data))
        except SyntaxError:
            return False

    def _of(self, node: ast.AST, parent: ast.AST | None) -> Iterator[Mutant]:
        if isinstance(node, ast.BinOp):
            yield from self._between(node.op, node.left, node.right)
        elif isinstance(node, ast.AugAssign):
            yield from self._between(node.op, node.target, node.value)
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self._between(node.op, left, right)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for op, left, right in zip(node.ops, sides, sides[1:], strict=False):
                yield from self._between(op, left, right)
        elif isinstance(node, ast.UnaryOp):
            yield from self._unary(node, parent)
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.Return) and node.value is not None and is_boolean(node.value):
            # Not `not`, which no array has.
            text = b"((" + self.text(node.value) + b") == False)"
            yield self.mutant("negate", *self.span(node.value), text)

    def _between(self, op: ast.AST, left: ast.AST, right: ast.AST) -> Iterator[Mutant]:
        """The operator between two operands, swapped."""
        arithmetic = isinstance(op, ast.operator)
        if type(op) not in OPERATORS or (arithmetic and (is_sequence(left) or is_sequence(right))):
            return
        old, new = (each.encode() for each in OPERATORS[type(op)])
        start = self.code.find(old, self.span(left)[1], self.span(right)[0])
        if start >= 0:
            yield self.mutant(old.decode(), start, start + len(old), new)

    def _unary(self, node: ast.UnaryOp, parent: ast.AST | None) -> Iterator[Mutant]:
        start = self.span(node)[0]
        if isinstance(node.op, ast.Not):
            yield self.mutant("not", start, start + len("not"), b"")
        elif isinstance(node.op, ast.USub) and not counts_from_the_end(parent):
            yield self.mutant("minus", start, start + len("-"), b"")

    def _constant(self, node: ast.Constant) -> Iterator[Mutant]:
        value = node.value
        if isinstance(value, bool):
            yield self.mutant("bool", *self.span(node), str(not value).encode())
        elif isinstance(value, int):
            yield self.mutant("int", *self.span(node), str(value + 1).encode())
        elif isinstance(value, float):
            yield self.mutant("float", *self.span(node), repr(2 * value or 1.0).encode())

    def _call(self, node: ast.Call) -> Iterator[Mutant]:
        name = called(node)
        plain = not node.keywords and not any(isinstance(each, ast.Starred) for each in node.args)
        if name in CALLS:
            stop = self.span(node.func)[1]
            yield self.mutant(name, stop - len(name), stop, CALLS[name].encode())
        elif name == "where" and plain and len(node.args) == 3:
            first, second = node.args[1:]
            start, middle = self.span(first)
            resume, stop = self.span(second)
            text = self.text(second) + self.data[middle:resume] + self.text(first)
            yield self.mutant("where", start, stop, text)
        elif name == "stop_gradient" and plain and len(node.args) == 1:
            yield self.mutant(name, *self.span(node), b"(" + self.text(node.args[0]) + b")")


# Which faults are put.


def files_of(room: Room) -> list[Path]:
    found = {path for pattern in room.files for path in (ROOT / PACKAGE).glob(pattern)}
    return sorted(path for path in found if path.name != "__init__.py")


def shares(sizes: list[int], total: int) -> list[int]:
    """Divide a total in proportion to the sizes, largest remainders first."""
    whole = sum(sizes)
    if not whole:
        return [0] * len(sizes)
    parts = [total * size // whole for size in sizes]
    by_rest = sorted(range(len(sizes)), key=lambda i: (-(total * sizes[i] % whole), i))
    for index in by_rest[: total - sum(parts)]:
        parts[index] += 1
    return parts


def draw(room: str, count: int, seed: int) -> list[Mutant]:
    """Some mutants of a room, spread over its files, of which no two are on one line."""
    sources = [Source(path) for path in files_of(ROOMS[room])]
    candidates = [source.mutants() for source in sources]
    parts = shares(list(map(len, candidates)), count)
    drawn: list[Mutant] = []
    for source, mutants, share in zip(sources, candidates, parts, strict=True):
        # Of a larger draw with the same seed, these are the first.
        random.Random(f"{seed} {source.name}").shuffle(mutants)  # noqa: S311
        by_line: dict[int, Mutant] = {}
        for mutant in mutants:
            if len(by_line) < share and mutant.line not in by_line and source.is_fault(mutant):
                by_line[mutant.line] = mutant
        drawn += sorted(by_line.values(), key=lambda each: each.start)
    return drawn


# How the tests are run.


class Copy:
    """A copy of the repository, in which one mutant at a time is tested."""

    def __init__(self, folder: Path, cache: Path):
        self.root = folder / "repository"
        self.temporary = folder / "temporary"
        self.output = folder / "output.txt"
        shutil.copytree(ROOT, self.root, ignore=shutil.ignore_patterns(*NOT_COPIED))
        self.environment = os.environ | {
            "PYTHONPATH": str(self.root / "src"),
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        self._check_import()

    def _check_import(self) -> None:
        """Refuse to go on if Python would import the package from elsewhere."""
        command = [sys.executable, "-c", "import mongefit; print(mongefit.__file__)"]
        done = subprocess.run(  # noqa: S603
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=True
        )
        if not Path(done.stdout.strip()).is_relative_to(self.root):
            sys.exit(f"The copy is not what is imported, but {done.stdout.strip()}.")

    def write(self, file: str, data: bytes) -> None:
        """Write a source file, and forget what was compiled of it in the same second."""
        path = self.root / file
        path.write_bytes(data)
        # By any name: import hooks, such as that of jaxtyping, have names of their own.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def start(self, tests: Iterable[str]) -> subprocess.Popen:
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={self.temporary}"]
        with self.output.open("wb") as output:
            return subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=self.root,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.output.read_text(errors="replace")


def end(process: subprocess.Popen) -> None:
    """End a run, and whatever it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Run:
    """The tests of a room on one copy, with a mutant or without."""

    def __init__(self, copy: Copy, room: str, mutant: Mutant | None = None):
        self.copy, self.mutant = copy, mutant
        self.original = b""
        if mutant is not None:
            source = Source(copy.root / mutant.file, copy.root)
            if source.digest != mutant.digest:
                sys.exit(f"{mutant.file} was changed while its mutants were run. Start again.")
            self.original = source.data
            copy.write(mutant.file, source.changed(mutant))
        self.began = time.monotonic()
        self.process = copy.start(ROOMS[room].tests)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def close(self) -> None:
        """End the run, and restore the copy."""
        end(self.process)
        if self.mutant is not None:
            self.copy.write(self.mutant.file, self.original)

    def caught_by(self) -> str:
        """The test that failed, as pytest names it."""
        lines = self.copy.said().splitlines()
        named = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return named[0][:200] if named else f"exit status {self.process.returncode}"


def baseline(copy: Copy, room: str) -> float:
    """Seconds that the tests of a room take; they must pass."""
    run = Run(copy, room)
    try:
        code = run.process.wait()
        seconds = run.seconds
    finally:
        run.close()
    if code:
        print(copy.said()[-4000:])
        print(f"The tests of {room} fail without a mutant.")
        sys.exit(2)
    return seconds


def outcomes(
    room: str, mutants: list[Mutant], copies: list[Copy], limit: float
) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    """Run the tests against every mutant, on all copies at once, and yield what happened."""
    waiting, free = list(reversed(mutants)), list(copies)
    running: dict[Run, Mutant] = {}
    try:
        while waiting or running:
            while waiting and free:
                mutant = waiting.pop()
                running[Run(free.pop(), room, mutant)] = mutant
            time.sleep(0.1)
            for run in list(running):
                code, seconds = run.process.poll(), round(run.seconds, 1)
                if code is None and seconds < limit:
                    continue
                outcome = TIMEOUT if code is None else CAUGHT if code else SURVIVED
                by = run.caught_by() if outcome == CAUGHT else ""
                run.close()
                free.append(run.copy)
                yield running.pop(run), {"outcome": outcome, "seconds": seconds, "by": by}
    finally:
        for run in running:
            run.close()


# What is kept and said.


def read_log(path: Path) -> dict[tuple, dict[str, Any]]:
    """The last result of every mutant in the log."""
    known = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
            key = tuple(record[name] for name in ("file", "line", "column", "operator", "digest"))
        except (ValueError, KeyError):
            continue  # a line that was cut off
        known[key] = record
    return known


def append(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # On a line of its own, whatever the line before is like.
    torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a") as log:
        log.write("\n" * bool(torn) + json.dumps(record) + "\n")


def described(record: dict[str, Any]) -> str:
    place = f"{record['file'].removeprefix(PACKAGE + '/')}:{record['line']}"
    change = record["change"]
    change = change if len(change) <= 60 else change[:57] + "..."
    outcome, seconds = record["outcome"], record["seconds"]
    return f"{record['room']:<10} {place:<34} {change:<60} {outcome:<8} {seconds:>6.1f} s"


def is_caught(record: dict[str, Any]) -> bool:
    return record["outcome"] != SURVIVED


def summary(records: list[dict[str, Any]]) -> str:
    """A table by room, and the survivors."""
    lines = [f"\n{'room':<10} {'mutants':>8} {'caught':>8} {'timeout':>8} {'survived':>9} {'%':>6}"]
    for room in [*ROOMS, "all"]:
        found = [each["outcome"] for each in records if room in ("all", each["room"])]
        if found:
            caught, timeout, survived = map(found.count, (CAUGHT, TIMEOUT, SURVIVED))
            share = 100 * (caught + timeout) / len(found)
            counts = f"{len(found):>8} {caught:>8} {timeout:>8} {survived:>9}"
            lines.append(f"{room:<10} {counts} {share:>6.1f}")
    survivors = [described(each) for each in records if not is_caught(each)]
    return "\n".join([*lines, "", *(["Survivors:", *survivors] if survivors else ["No survivor."])])


def judge(
    room: str, mutants: list[Mutant], copies: list[Copy], log: Path, again: bool
) -> list[dict[str, Any]]:
    """The results of a room: those in the log, and the rest by running the tests."""
    known = read_log(log)
    known = {key: each for key, each in known.items() if not again or is_caught(each)}
    records = [known[each.key] | {"room": room} for each in mutants if each.key in known]
    for record in records:
        print(described(record), "(from the log)", flush=True)
    pending = [each for each in mutants if each.key not in known]
    if not pending:
        return records
    seconds = baseline(copies[0], room)
    print(f"{room:<10} without a mutant {seconds:.1f} s", flush=True)
    for mutant, result in outcomes(room, pending, copies, PATIENCE * seconds):
        place = {name: value for name, value in asdict(mutant).items() if name != "text"}
        record = {"room": room} | place | result
        append(log, record)
        records.append(record)
        print(described(record), flush=True)
    return records


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-module", type=int, default=20, help="mutants of each room")
    parser.add_argument("--only", choices=list(ROOMS), help="one room instead of all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tested at once")
    parser.add_argument("--log", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--again", action="store_true", help="run the survivors in the log again")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    # So that what runs is ended and the copies are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    rooms = [chosen.only] if chosen.only else list(ROOMS)
    drawn = {room: draw(room, chosen.per_module, chosen.seed) for room in rooms}
    records = []
    with tempfile.TemporaryDirectory(prefix="mongefit-mutants-") as name:
        folder = Path(name)
        copies = [Copy(folder / str(job), folder / "jax") for job in range(max(chosen.jobs, 1))]
        for room, mutants in drawn.items():
            records += judge(room, mutants, copies, chosen.log, chosen.again)
    print(summary(records))
    return int(sum(map(is_caught, records)) < GOAL * len(records))


if __name__ == "__main__":
    sys.exit(main())
