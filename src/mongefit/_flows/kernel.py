"""Maps of Gaussian kernels."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from mongefit._flows.base import Diffeo
from mongefit._registry import NonTrainable
from mongefit._runtime import double_precision, is_traced
from mongefit.errors import OptionError

_STEPS = 60


class KernelMap(Diffeo):
    """Φ(x) = Wx + t + Σ_k c_k exp(−‖x − x_k‖²/2w²), which starts as the identity.

    With it on the source alone, the cost contains what kernel ridge regression on the pairs knows.
    Φ is invertible where its Jacobian is: large coefficients can fold space. Φ⁻¹ is found by damped
    Newton steps from the nearest anchor; where there is none, Φ(Φ⁻¹(u)) is not u, which `transport`
    reports and `transform` refuses.

    Parameters
    ----------
    anchors
        The points x_k, such as the sources of the known pairs, in common units; not trained.
    width
        Width w of the kernel, such as the median distance between anchors; not trained.
    weight, shift, coefficients
        W, t and c to start from; the identity and zeros by default.
    """

    has_inverse: ClassVar[bool] = False

    weight: Float[Array, "d d"]
    shift: Float[Array, " d"]
    coefficients: Float[Array, "k d"]
    _anchors: NonTrainable[Float[Array, "k d"]]
    _width: NonTrainable[Float[Array, ""]]

    def __init__(
        self,
        anchors: ArrayLike,
        width: float,
        *,
        weight: ArrayLike | None = None,
        shift: ArrayLike | None = None,
        coefficients: ArrayLike | None = None,
    ):
        with double_precision():  # or JAX would round the anchors to float32
            points = jnp.asarray(anchors)
            dim = points.shape[1]
            self.weight = jnp.eye(dim) if weight is None else jnp.asarray(weight)
            self.shift = jnp.zeros(dim) if shift is None else jnp.asarray(shift)
            self.coefficients = (
                jnp.zeros_like(points) if coefficients is None else jnp.asarray(coefficients)
            )
            self._anchors = NonTrainable(points)
            self._width = NonTrainable(jnp.asarray(width, points.dtype))

    def __check_init__(self):
        count, dim = self.anchors.shape
        found = [part.shape for part in (self.weight, self.shift, self.coefficients)]
        if found != [(dim, dim), (dim,), (count, dim)]:
            raise OptionError(
                f"KernelMap with {count} anchors of {dim} features needs a weight [{dim}, {dim}], "
                f"a shift [{dim}] and coefficients [{count}, {dim}], got {found}."
            )
        # Of a map that is part of a traced function the number is not known.
        if not is_traced(self.width) and not 0 < float(self.width) < np.inf:
            raise OptionError(f"KernelMap needs a positive width, got {float(self.width)}.")

    @property
    def anchors(self) -> Float[Array, "k d"]:
        """The points x_k."""
        return self._anchors.tree

    @property
    def width(self) -> Float[Array, ""]:
        """The width w of the kernel."""
        return self._width.tree

    def forward(self, x):
        return x @ self.weight.T + self.shift + self._kernel(x) @ self.coefficients

    def inverse(self, u):
        fixed, target = jax.lax.stop_gradient((self, u))
        found = fixed._search(target)
        # Each of two Newton steps doubles how many derivatives are right.
        x = found.x
        for _ in range(2):
            J = jnp.where(found.solved[:, None, None], self.jacobian(x), jnp.eye(x.shape[1]))
            step = jnp.linalg.solve(J, (self.forward(x) - u)[..., None])[..., 0]
            x = jnp.where(found.solved[:, None], x - step, found.x)
        return x

    def log_det(self, x):
        return jnp.linalg.slogdet(self.jacobian(x))[1]

    def orientation(self, x):
        return jnp.linalg.slogdet(self.jacobian(x))[0]

    def departure(self, x):
        linear = jnp.sum((self.weight - jnp.eye(len(self.shift))) ** 2) + jnp.sum(self.shift**2)
        c = self.coefficients
        return linear + jnp.sum(c * (self._kernel(self.anchors) @ c))

    def jacobian(self, x: Float[Array, "N d"]) -> Float[Array, "N d d"]:
        """∂Φ/∂x at every row of x."""
        weighted = self._kernel(x) / self.width**2
        # Σ_k κ_k c_k (x_k − x)ᵀ / w², without an array of all differences.
        c, anchors = self.coefficients, self.anchors
        first = jnp.einsum("Nk,ki,kj->Nij", weighted, c, anchors)
        return self.weight + first - (weighted @ c)[:, :, None] * x[:, None, :]

    def _kernel(self, x: Float[Array, "N d"]) -> Float[Array, "N k"]:
        anchors = self.anchors.astype(x.dtype)
        squares = jnp.sum(x * x, 1)[:, None] + jnp.sum(anchors**2, 1) - 2 * x @ anchors.T
        return jnp.exp(-jnp.maximum(squares, 0.0) / (2 * self.width.astype(x.dtype) ** 2))

    def _search(self, u: Float[Array, "N d"]) -> _Found:
        """Φ⁻¹(u) by damped Newton steps for all rows at once."""
        images = self.forward(self.anchors.astype(u.dtype))
        squares = jnp.sum(images**2, 1) - 2 * u @ images.T
        start = self.anchors.astype(u.dtype)[jnp.argmin(squares, axis=1)]
        tolerance = 10 * jnp.finfo(u.dtype).eps * (1 + jnp.linalg.norm(u, axis=1))
        identity = jnp.eye(u.shape[1], dtype=u.dtype)

        def error(x):
            return jnp.linalg.norm(self.forward(x) - u, axis=1)

        def open_(state: _State):
            return jnp.any(state.error > tolerance) & (state.step < _STEPS)

        def advance(state: _State) -> _State:
            J = self.jacobian(state.x)
            turned = jnp.swapaxes(J, 1, 2)
            square = turned @ J
            size = jnp.trace(square, axis1=1, axis2=2) / u.shape[1]
            damped = square + (state.damping * size)[:, None, None] * identity
            gap = turned @ (self.forward(state.x) - u)[..., None]
            moved = state.x - jnp.linalg.solve(damped, gap)[..., 0]
            now = error(moved)
            better = now < state.error
            return _State(
                jnp.where(better[:, None], moved, state.x),
                jnp.where(better, now, state.error),
                jnp.where(better, 0.1 * state.damping, 10 * state.damping + 1e-6),
                state.step + 1,
            )

        first = _State(start, error(start), jnp.full(len(u), 1e-2, u.dtype), jnp.asarray(0))
        last = jax.lax.while_loop(open_, advance, first)
        # From where Newton's own steps finish the job.
        close = last.error <= jnp.finfo(u.dtype).eps ** 0.5 * (1 + jnp.linalg.norm(u, axis=1))
        regular = jnp.abs(jnp.linalg.det(self.jacobian(last.x))) > jnp.finfo(u.dtype).eps
        return _Found(last.x, close & regular)


class _State(NamedTuple):
    x: Float[Array, "N d"]
    error: Float[Array, " N"]
    damping: Float[Array, " N"]
    step: Int[Array, ""]


class _Found(NamedTuple):
    x: Float[Array, "N d"]
    solved: Bool[Array, " N"]
