"""Check, without a network, that what is installed is what constraints.txt pins, and is intact.

Every installed package must be pinned at the version it has, and every file must still have the
hash that its package recorded when it was installed. Whether a version has known weaknesses is
known to the network only: `pip-audit --requirement constraints.txt` asks.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Made by venv and pip themselves, and this project.
UNPINNED = {"pip", "setuptools", "wheel", "mongefit"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return {normal(name): version for name, version in (each.split("==") for each in lines if each)}


def changed_files(package: Distribution) -> list[str]:
    """Files that are not what they were when the package was installed."""
    changed = []
    for file in package.files or ():
        if file.hash is None or file.suffix == ".pyc":
            continue
        path = Path(file.locate())
        if not path.exists():
            changed.append(f"{file} is gone")
            continue
        digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            changed.append(f"{file} was changed")
    return changed


def main() -> int:
    pinned = pins((ROOT / "constraints.txt").read_text())
    problems, count = [], 0
    for package in distributions():
        name = normal(package.metadata["Name"])
        if name in UNPINNED:
            continue
        count += 1
        if pinned.get(name) != package.version:
            problems.append(f"{name} {package.version}: constraints.txt has {pinned.get(name)}")
        problems += [f"{name}: {text}" for text in changed_files(package)]
    print("\n".join(problems) or f"{count} packages are as pinned and as installed.")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
