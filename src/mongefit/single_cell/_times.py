"""Which cells are of which time."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit.errors import DataError, Option, OptionError, Suggestion, did_you_mean, wrong_option
from mongefit.single_cell._columns import distinct, listed, obs_column

if TYPE_CHECKING:
    from anndata import AnnData


@dataclasses.dataclass(frozen=True)
class Times:
    """The two times that a map goes between.

    Attributes
    ----------
    key
        Column of obs that holds the time.
    source, target
        The values, as text. Numbers are compared as numbers: "2" finds 2, 2.0 and "2.0".
    """

    key: str
    source: str
    target: str

    @classmethod
    def of(cls, key: str, source: Any, target: Any) -> Times:
        """Times out of values of any type, which must differ."""
        if not isinstance(key, str):
            raise wrong_option("time_key", "the name of one column of obs", key)
        if _canonical(source) == _canonical(target):
            raise OptionError(
                f"source and target are both {source}. Name two values of obs[{key!r}]."
            )
        return cls(key, str(source), str(target))

    def rows(self, adata: AnnData, *, target: bool) -> NDArray[np.int64]:
        """Rows of the cells of the source, or of the target."""
        otherwise = None if self.key in adata.obs else self._column_that_fits(adata)
        codes, values = distinct(obs_column(adata, self.key, "time_key", otherwise=otherwise))
        wanted = self.target if target else self.source
        found = [_canonical(value) == _canonical(wanted) for value in values]
        if not any(found):
            raise DataError(
                f"obs[{self.key!r}] has no value {wanted}. Values: {listed(values)}."
                + did_you_mean(wanted, values)
            )
        return np.flatnonzero(np.isin(codes, np.flatnonzero(found)))

    def _column_that_fits(self, adata: AnnData) -> Suggestion:
        """Of the columns that hold both values, the one with the fewest others."""
        wanted = {_canonical(self.source), _canonical(self.target)}
        found = {str(key): distinct(adata.obs[key])[1] for key in adata.obs}
        fit = [key for key in found if wanted <= set(map(_canonical, found[key]))]
        best = min(fit, key=lambda key: len(found[key]), default=None)
        return Suggestion(() if best is None else (Option("time_key", best),))


def _canonical(value: Any) -> float | str:
    """A number where the value reads as one, else its text."""
    # By its text, so that 10.1 is found among float32 numbers too.
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    return text if math.isnan(number) else number
