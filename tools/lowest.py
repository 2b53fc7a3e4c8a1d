"""Print, as constraints for pip, the lowest version of each package that pyproject.toml admits.

    python tools/lowest.py > constraints-min.txt

Tools of the developers are left out: users do not install them.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path


def lowest(text: str) -> list[str]:
    """``name==version`` for every ``name>=version`` of the project and its extras."""
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"].values()
    needed = itertools.chain(project["dependencies"], *extras)
    return [re.sub(r"^([\w.-]+)>=([\w.]+).*$", r"\1==\2", line) for line in needed]


if __name__ == "__main__":
    root = Path(__file__).parent.parent
    print("\n".join(lowest((root / "pyproject.toml").read_text())))
