"""``python -m mongefit``."""

from mongefit._cli import main

main()
