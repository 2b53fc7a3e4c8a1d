"""One map after another."""

from __future__ import annotations

from mongefit._flows.base import Diffeo


class ComposedMap(Diffeo):
    """Φ(x) = Φ₂(Φ₁(x)): a flow that goes on where an affine map ended, for example.

    A flow starts at the identity, so that ``ComposedMap(affine, flow)`` starts at the affine map.

    Parameters
    ----------
    first, second
        Φ₁ and Φ₂.
    """

    first: Diffeo
    second: Diffeo

    @property
    def has_inverse(self) -> bool:  # type: ignore[override]
        return self.first.has_inverse and self.second.has_inverse

    def forward(self, x):
        return self.second.forward(self.first.forward(x))

    def inverse(self, u):
        return self.first.inverse(self.second.inverse(u))

    def log_det(self, x):
        return self.first.log_det(x) + self.second.log_det(self.first.forward(x))

    def departure(self, x):
        return self.first.departure(x) + self.second.departure(self.first.forward(x))

    def orientation(self, x):
        return self.first.orientation(x) * self.second.orientation(self.first.forward(x))
