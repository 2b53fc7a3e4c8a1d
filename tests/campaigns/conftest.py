"""Campaigns: many cases of one kind, a few of them in `make test` and all of them with --long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import CASES


class Campaign:
    """How many cases to run, and a tally of those that were.

    Attributes
    ----------
    long
        Whether the campaign is run at its full length.
    """

    def __init__(self, long: bool, properties: list[tuple[str, object]]):
        self.long = long
        self._properties = properties
        self._tally: dict[str, int] = {}

    def pick(self, short: int, long: int) -> int:
        """A number for the short campaign or for the long one."""
        return long if self.long else short

    def count(self, what: str, cases: int = 1) -> None:
        """Add to the tally that is printed in the end."""
        self._tally[what] = self._tally.get(what, 0) + cases
        self._properties[:] = [(CASES + name, number) for name, number in self._tally.items()]

    def cases(self, what: str, *, short: int, long: int) -> Iterator[int]:
        """Number the cases, and count those that are over."""
        for case in range(self.pick(short, long)):
            yield case
            self.count(what)


@pytest.fixture
def campaign(request):
    """The length of a campaign, and its tally."""
    return Campaign(request.config.getoption("--long"), request.node.user_properties)
