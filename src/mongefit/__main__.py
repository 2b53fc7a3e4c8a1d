"""``python -m mongefit``."""

from mongefit.cli import main

main()
