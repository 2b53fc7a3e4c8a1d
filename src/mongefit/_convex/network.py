"""A convex function that is learned."""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from mongefit._convex.base import ProjectedConvexFunction
from mongefit._convex.quadratic import check_matrix, square_root
from mongefit._numerics import safe_norm
from mongefit._runtime import double_precision, on_cpu
from mongefit.errors import OptionError

Activation = Literal["squareplus", "softplus"]


def _softplus_inverse(value: float) -> float:
    return float(np.log(np.expm1(value)))


@jax.custom_jvp
def _squareplus(t: Float[Array, "*N w"]) -> tuple[Float[Array, "*N w"], Float[Array, "*N w"]]:
    """½(t + √(t² + 4)) and its derivative. Roots are slow, and all derivatives share this one."""
    square = t * t + 4
    if not on_cpu():  # Divisions are as slow there.
        inverse = jax.lax.rsqrt(square)
        # Its rounding would make the value of a very negative t negative.
        value = jnp.maximum(0.5 * (t + square * inverse), 0)
        return value, value * inverse
    root = jnp.sqrt(square)
    value = 0.5 * (t + root)
    return value, value / root


@_squareplus.defjvp
def _(primals, tangents):
    (t,), (change,) = primals, tangents
    value, slope = _squareplus(t)
    return (value, slope), (slope * change, _activation_curvature("squareplus", t) * change)


def _activate(
    activation: Activation, t: Float[Array, "*N w"]
) -> tuple[Float[Array, "*N w"], Float[Array, "*N w"]]:
    """The activation and its derivative, sharing what they have in common."""
    if activation == "squareplus":
        return _squareplus(t)
    return jax.nn.softplus(t), jax.nn.sigmoid(t)


def _activation_curvature(activation: Activation, t: Float[Array, "*N w"]) -> Float[Array, "*N w"]:
    """The second derivative of the activation."""
    if activation == "squareplus":
        if not on_cpu():
            return 2 * jax.lax.rsqrt(t * t + 4) ** 3
        # The root is that of the value, and a power of 1.5 would be a logarithm and an exponential.
        root = jnp.sqrt(t * t + 4)
        return 2 / (root * root * root)
    slope = jax.nn.sigmoid(t)
    return slope * (1 - slope)


FEW = 4  # columns up to which a product is thin


@jax.custom_jvp
def _thin_product(left: Float[Array, "*N k"], right: Float[Array, "k w"]) -> Float[Array, "*N w"]:
    """The product of matrices, k or w small, term by term: fused with what it is used for."""
    k, w = right.shape
    if k <= w:
        return functools.reduce(jnp.add, (left[..., i, None] * right[i] for i in range(k)))
    return jnp.stack([jnp.sum(left * right[:, j], axis=-1) for j in range(w)], axis=-1)


@functools.partial(_thin_product.defjvp, symbolic_zeros=True)
def _(primals, tangents):
    (left, right), (of_left, of_right) = primals, tangents
    changes = []
    if not isinstance(of_left, SymbolicZero):
        # Backwards it is a sum over many columns, which a CPU has faster by a plain product.
        changes.append(_thin_product(of_left, right) if not on_cpu() else of_left @ right)
    if not isinstance(of_right, SymbolicZero):
        # Backwards it is a sum over all rows. That is fast as a matrix product only, unless there
        # is next to nothing to multiply.
        tiny = max(right.shape) <= FEW and not on_cpu()
        changes.append(_thin_product(left, of_right) if tiny else left @ of_right)
    return _thin_product(left, right), functools.reduce(jnp.add, changes)


def _product(left: Float[Array, "*N k"], right: Float[Array, "k w"]) -> Float[Array, "*N w"]:
    k, w = right.shape
    # A CPU sums many columns faster by a plain product, which also says what does not fit.
    thin = left.shape[-1] == k and (k <= FEW or (w <= FEW and not on_cpu()))
    return _thin_product(left, right) if thin else left @ right


class _Layers(NamedTuple):
    """The last state of a network, and t_k, which enter its activations, with their slopes."""

    state: Float[Array, "*N w"]
    inputs: list[Float[Array, "..."]]
    slopes: list[Float[Array, "..."]]


def _adjoints(
    slopes: list[Float[Array, "..."]],
    hidden: list[Float[Array, "..."]],
    out: Float[Array, " w"],
) -> list[Float[Array, "..."]]:
    """∂n/∂s_k, the derivatives of the network in the states of its layers."""
    adjoints = [out]
    for weight, slope in zip(reversed(hidden), reversed(slopes[1:]), strict=True):
        adjoints.append((adjoints[-1] * slope) @ weight)
    return adjoints[::-1]


class ICNN(ProjectedConvexFunction):
    r"""A learned convex function: an input convex neural network plus quadratic terms.

    With non-negative hidden-to-hidden and hidden-to-output weights and a convex non-decreasing
    activation σ, the network n(z) = e^γ ⟨w, s_K⟩, s_{k+1} = σ(W_k s_k + V_k z + b_k), is convex
    (Amos et al. 2017). The function is

        h(z) = n(z) − n(0) − ⟨∇n(0), z⟩ + ½‖Qz‖² + (α/2)‖z‖²,

    symmetrised as ½(h(z) + h(−z)) on request. Q starts at the identity and the gain e^γ small, so
    that h starts close to ½(1 + α)‖z‖².

    Parameters
    ----------
    dim
        Dimension d of the displacements.
    hidden_layer_sizes
        Width of each hidden layer.
    key
        Random key for the initial weights.
    symmetric
        Whether h(−z) = h(z).
    alpha
        Coefficient of (α/2)‖z‖²; must be positive.
    activation
        "squareplus", ½(t + √(t² + 4)), or "softplus", log(1 + e^t), which is slower in float64.
    quadratic
        Whether the learned quadratic ½‖Qz‖² is there. The paper's own h has none.
    matrix
        Symmetric A with no eigenvalue below alpha: h starts close to ½zᵀAz. The identity, and a
        little more, by default.
    gain
        Initial e^γ.
    """

    passthrough: tuple[Float[Array, "w d"], ...]
    bias: tuple[Float[Array, " w"], ...]
    hidden: tuple[Float[Array, "w v"], ...]
    out: Float[Array, " w"]
    log_gain: Float[Array, ""]
    quadratic: Float[Array, "d d"] | None
    alpha: float = eqx.field(static=True)
    symmetric: bool = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        dim: int,
        hidden_layer_sizes: tuple[int, ...] = (64, 64),
        *,
        key: PRNGKeyArray,
        symmetric: bool = True,
        alpha: float = 0.01,
        activation: Activation = "squareplus",
        quadratic: bool = True,
        matrix: ArrayLike | None = None,
        gain: float = 0.1,
    ):
        if not hidden_layer_sizes or any(width < 1 for width in hidden_layer_sizes):
            raise OptionError(
                f"hidden_layer_sizes needs at least one positive width, got {hidden_layer_sizes}."
            )
        if not alpha > 0 or not np.isfinite(alpha):
            raise OptionError(f"alpha must be positive and finite, got {alpha}.")
        if activation not in ("squareplus", "softplus"):
            raise OptionError(f"activation must be 'squareplus' or 'softplus', got {activation!r}.")
        widths = tuple(hidden_layer_sizes)
        layers = len(widths)
        # All at once, each as large as the largest: every draw by itself is compiled for itself.
        # The numbers are the same, for a short draw of JAX's is the beginning of a longer one.
        through, bias, between = jax.vmap(lambda k: jr.split(k, layers))(jr.split(key, 3))
        shapes = [*((width, dim) for width in widths), *zip(widths[1:], widths[:-1], strict=True)]
        most = max(rows * columns for rows, columns in shapes)
        normal = jax.vmap(lambda k: jr.normal(k, (most,)))(jnp.concatenate([through, between[:-1]]))
        drawn = [
            row[: rows * columns].reshape(rows, columns)
            for row, (rows, columns) in zip(normal, shapes, strict=True)
        ]
        uniform = jax.vmap(lambda k: jr.uniform(k, (max(widths),), minval=-2.0, maxval=2.0))(bias)
        self.passthrough = tuple(weight / np.sqrt(dim) for weight in drawn[:layers])
        self.bias = tuple(row[:width] for row, width in zip(uniform, widths, strict=True))
        self.hidden = tuple(_softplus_inverse(1.0) + 0.3 * weight for weight in drawn[layers:])
        self.out = jnp.full((widths[-1],), _softplus_inverse(1.0))
        self.log_gain = jnp.asarray(np.log(gain))
        self.quadratic = jnp.eye(dim) if quadratic else None
        if matrix is not None:
            if not quadratic:
                raise OptionError("An ICNN without its quadratic cannot start from a matrix.")
            with double_precision():
                self.quadratic = jnp.asarray(square_root(check_matrix(matrix, dim), less=alpha))
        self.alpha = alpha
        self.symmetric = symmetric
        self.activation = activation

    @property
    def is_even(self) -> bool:
        return self.symmetric

    @property
    def strong_convexity(self) -> float:
        return self.alpha

    def _positive_weights(self) -> tuple[list[Float[Array, "..."]], Float[Array, " w"]]:
        """Non-negative weights, divided by the fan-in so that widths do not change the scale."""
        hidden = [jax.nn.softplus(raw) / raw.shape[1] for raw in self.hidden]
        out = jnp.exp(self.log_gain) * jax.nn.softplus(self.out) / self.out.shape[0]
        return hidden, out

    def curvature_bound(self) -> Float[Array, ""]:
        r"""A number L, computed from the weights alone, with ∇²h(z) ≤ L everywhere.

        Slopes of the activation are at most 1 and its curvature at most ¼. With the weights of the
        network non-negative, the gradients of the units of layer k are therefore no longer than
        r_k = ‖V_k‖ + W_{k−1} r_{k−1}, norms taken row by row, their adjoints no larger than
        ā_k = W_kᵀ ā_{k+1}, ā_K = e^γ w, and the largest eigenvalue of ∇²n no larger than its trace,

            tr ∇²n(z) ≤ ¼ Σ_k ⟨ā_k, r_k²⟩.

        The largest absolute row sum of QᵀQ bounds the eigenvalues of the quadratic, and α is added.
        """
        hidden, out = self._positive_weights()
        lengths = [safe_norm(self.passthrough[0])]
        for weight, through in zip(hidden, self.passthrough[1:], strict=True):
            lengths.append(safe_norm(through) + weight @ lengths[-1])
        adjoint, trace = out, out @ lengths[-1] ** 2
        for weight, length in zip(reversed(hidden), reversed(lengths[:-1]), strict=True):
            adjoint = adjoint @ weight
            trace = trace + adjoint @ length**2
        bound = self.alpha + 0.25 * trace
        if self.quadratic is not None:
            square = self.quadratic.T @ self.quadratic
            bound = bound + jnp.max(jnp.sum(jnp.abs(square), axis=1))
        return bound

    def _layers(self, z, hidden) -> _Layers:
        through: Any = self.passthrough
        bias: Any = self.bias
        if z.shape[-1] < FEW and not on_cpu():
            # Biases are one more column: alone, their derivatives would be slow sums.
            z = jnp.concatenate([z, jnp.ones_like(z[..., :1])], axis=-1)
            through = [
                jnp.concatenate([V, b[:, None]], axis=1) for V, b in zip(through, bias, strict=True)
            ]
            bias = [0.0] * len(bias)
        return self._activated([_product(z, V.T) for V in through], bias, hidden)

    def _activated(self, parts, bias, hidden) -> _Layers:
        """The layers of a z that enters them with V_k z."""
        inputs, slopes = [parts[0] + bias[0]], []
        state, slope = _activate(self.activation, inputs[0])
        slopes.append(slope)
        for weight, part, b in zip(hidden, parts[1:], bias[1:], strict=True):
            inputs.append(state @ weight.T + part + b)
            state, slope = _activate(self.activation, inputs[-1])
            slopes.append(slope)
        return _Layers(state, inputs, slopes)

    def _both_signs(self, z):
        """z, where symmetric with −z after it, and weights by which the mean of n is their sum."""
        hidden, out = self._positive_weights()
        return (jnp.concatenate([z, -z]), hidden, 0.5 * out) if self.symmetric else (z, hidden, out)

    def _network_value(self, z):
        """n(z), or where symmetric its mean with n(−z)."""
        z, hidden, out = self._both_signs(z)
        value = _product(self._layers(z, hidden).state, out[:, None])[..., 0]
        if not self.symmetric:
            return value
        # Summed, not sliced: backwards the slopes are then constants, and a compiler finds the
        # products with them again that ∇n has.
        return jnp.sum(value.reshape(2, len(z) // 2, *value.shape[1:]), axis=0)

    def _network_gradient(self, slopes, adjoints):
        terms = [
            _product(adjoint * slope, V)
            for adjoint, slope, V in zip(adjoints, slopes, self.passthrough, strict=True)
        ]
        return functools.reduce(jnp.add, reversed(terms))

    def _gradient_at_zero(self):
        """∇n(0)."""
        hidden, out = self._positive_weights()
        slopes = self._at_zero(hidden).slopes
        return self._network_gradient(slopes, _adjoints(slopes, hidden, out))

    def _at_zero(self, hidden) -> _Layers:
        return self._activated([0.0] * len(self.bias), self.bias, hidden)

    def project(self, z):
        parts = [*self.passthrough, jnp.eye(z.shape[-1], dtype=z.dtype)]
        if self.quadratic is not None:
            parts.append(self.quadratic)
        return _product(z, jnp.concatenate(parts).T)

    def value_of_projected(self, Az):
        hidden, out = self._positive_weights()
        dim = self.passthrough[0].shape[1]
        ends = np.cumsum([*(len(through) for through in self.passthrough), dim])
        *parts, z, image = jnp.split(Az, ends, axis=-1)

        def network(sign):
            layers = self._activated([sign * part for part in parts], self.bias, hidden)
            return _product(layers.state, out[:, None])[..., 0]

        mean = 0.5 * (network(1) + network(-1)) if self.symmetric else network(1)
        return self._normalised(mean, z, image)

    def value(self, z):
        image = z[..., :0] if self.quadratic is None else _product(z, self.quadratic.T)
        return self._normalised(self._network_value(z), z, image)

    def _normalised(self, mean, z, image):
        """h(z) from n(z), or where symmetric its mean with n(−z), and from Qz, empty without Q."""
        hidden, out = self._positive_weights()
        value = mean - self._at_zero(hidden).state @ out
        if not self.symmetric:
            value = value - z @ self._gradient_at_zero()
        return value + 0.5 * (
            jnp.sum(image * image, axis=-1) + self.alpha * jnp.sum(z * z, axis=-1)
        )

    def gradient(self, z):
        both, hidden, out = self._both_signs(z)
        slopes = self._layers(both, hidden).slopes
        return self._whole_gradient(z, slopes, _adjoints(slopes, hidden, out))

    def _whole_gradient(self, z, slopes, adjoints):
        """∇h(z) from ∇n."""
        gradient = self._network_gradient(slopes, adjoints)
        if self.symmetric:
            gradient = gradient[: len(z)] - gradient[len(z) :]
        else:
            gradient = gradient - self._gradient_at_zero()
        gradient = gradient + self.alpha * z
        if self.quadratic is not None:
            gradient = gradient + _product(_product(z, self.quadratic.T), self.quadratic)
        return gradient

    def gradient_and_hessian(self, z):
        both, hidden, out = self._both_signs(z)
        layers = self._layers(both, hidden)
        adjoints = _adjoints(layers.slopes, hidden, out)
        hessian = self._network_hessian(layers, adjoints, hidden)
        if self.symmetric:
            hessian = hessian[: len(z)] + hessian[len(z) :]
        constant = self.alpha * jnp.eye(z.shape[-1], dtype=z.dtype)
        if self.quadratic is not None:
            constant = constant + self.quadratic.T @ self.quadratic
        return self._whole_gradient(z, layers.slopes, adjoints), hessian + constant

    def _network_hessian(self, layers: _Layers, adjoints, hidden):
        # ∇²n = Σ_k J_kᵀ diag(∂n/∂s_k · σ''(t_k)) J_k with J_k = ∂t_k/∂z: a sum of non-negative
        # multiples of squares, so it is positive semidefinite in floating point too.
        terms, jacobian = [], None
        for k, (t, adjoint, V) in enumerate(
            zip(layers.inputs, adjoints, self.passthrough, strict=True)
        ):
            if jacobian is None:
                jacobian = jnp.broadcast_to(V, (len(t), *V.shape))
            else:
                inner = layers.slopes[k - 1][..., None] * jacobian
                jacobian = V + jnp.einsum("wv,Nvd->Nwd", hidden[k - 1], inner)
            scaled = (adjoint * _activation_curvature(self.activation, t))[..., None] * jacobian
            terms.append(jnp.einsum("Nwd,Nwe->Nde", scaled, jacobian))
        return functools.reduce(jnp.add, reversed(terms))

    def hessian(self, z):
        return self.gradient_and_hessian(z)[1]
