"""A second opinion on a fitted map, in NumPy and from formulas, out of its arrays alone."""

from __future__ import annotations

import numpy as np

from mongefit._convex import ICNN, Mahalanobis, PowerNorm, SquaredEuclidean

ROUNDING = np.finfo(float).eps


def value_and_gradient(h, z):
    """h and ∇h at the rows of z [..., d]."""
    if isinstance(h, SquaredEuclidean):
        return 0.5 * (z**2).sum(-1), z
    if isinstance(h, Mahalanobis):
        gradient = z @ np.asarray(h.matrix)
        return 0.5 * (z * gradient).sum(-1), gradient
    if isinstance(h, PowerNorm):
        size = np.abs(z)
        value = (size**h.exponent / h.exponent + 0.5 * h.alpha * z**2).sum(-1)
        return value, np.sign(z) * size ** (h.exponent - 1) + h.alpha * z
    assert isinstance(h, ICNN) and h.activation == "squareplus"
    if h.symmetric:
        (up, rising), (down, falling) = _network(h, z), _network(h, -z)
        value, gradient = 0.5 * (up + down), 0.5 * (rising - falling)
        value = value - _network(h, np.zeros_like(z[..., :1, :]))[0]
    else:
        value, gradient = _network(h, z)
        start, slope = _network(h, np.zeros_like(z[..., :1, :]))
        value, gradient = value - start - (z * slope).sum(-1), gradient - slope
    value, gradient = value + 0.5 * h.alpha * (z**2).sum(-1), gradient + h.alpha * z
    if h.quadratic is not None:
        Q = np.asarray(h.quadratic)
        value, gradient = value + 0.5 * ((z @ Q.T) ** 2).sum(-1), gradient + z @ Q.T @ Q
    return value, gradient


def _network(h, z):
    """e^γ ⟨w, s_K⟩ with s_{k+1} = σ(W_k s_k + V_k z + b_k), and its gradient."""
    hidden = [_softplus(raw) / raw.shape[1] for raw in h.hidden]
    out = np.exp(float(h.log_gain)) * _softplus(h.out) / len(h.out)
    state = jacobian = None
    for k, (through, bias) in enumerate(zip(h.passthrough, h.bias, strict=True)):
        t = z @ np.asarray(through).T + np.asarray(bias)
        slope = np.broadcast_to(np.asarray(through), (*t.shape, z.shape[-1]))
        if k > 0:
            t = t + state @ hidden[k - 1].T
            slope = slope + np.einsum("wv,...vd->...wd", hidden[k - 1], jacobian)
        root = np.sqrt(t**2 + 4)
        state = 0.5 * (t + root)
        jacobian = (state / root)[..., None] * slope
    return state @ out, np.einsum("w,...wd->...d", out, jacobian)


def _softplus(raw):
    return np.logaddexp(0.0, np.asarray(raw, np.float64))


def marginal_error(made):
    """‖P1 − a‖₁ + ‖Pᵀ1 − b‖₁, and how much of it may be rounding."""
    x, y, a, b, f, g = (np.asarray(getattr(made, name), np.float64) for name in "xyabfg")
    eps = float(made.eps)
    C = value_and_gradient(made.cost.h, x[:, None] - y[None])[0]
    with np.errstate(divide="ignore"):
        P = np.exp(np.log(a)[:, None] + np.log(b) + (f[:, None] + g - C) / eps)
    error = np.abs(P.sum(1) - a).sum() + np.abs(P.sum(0) - b).sum()
    size = np.abs(f).max() + np.abs(g).max() + np.abs(C).max()
    return error, 16 * ROUNDING * size / eps


def inverse_residual(made, points, images):
    """‖∇h(x − T(x)) − p‖ / (1 + ‖p‖) in common units, and how much of it may be rounding."""
    centre, scale = np.asarray(made.units.centre), float(made.units.scale)
    inside, target = (points - centre) / scale, np.asarray(made.y)
    z = inside - (images - centre) / scale
    C, gradient = value_and_gradient(made.cost.h, inside[:, None] - target[None])
    with np.errstate(divide="ignore"):
        logits = np.log(np.asarray(made.b)) + (np.asarray(made.g) - C) / float(made.eps)
    weight = np.exp(logits - logits.max(1, keepdims=True))
    p = np.einsum("nm,nmd->nd", weight / weight.sum(1, keepdims=True), gradient)
    found = value_and_gradient(made.cost.h, z)[1]
    length = 1 + np.linalg.norm(p, axis=1)
    # What is lost on the way out of common units and back, times how steep ∇h is near z; and what
    # the softmax makes of rounding in C/eps.
    lost = 8 * ROUNDING * (np.abs(images).max() + np.abs(centre).max()) / scale
    near = value_and_gradient(made.cost.h, z + lost)[1]
    steep = np.linalg.norm(near - found, axis=1) + np.sqrt(lost) * (lost > 1e-12)
    soft = 16 * ROUNDING * np.abs(C).max(1) / float(made.eps) * np.abs(gradient).max((1, 2))
    return np.linalg.norm(found - p, axis=1) / length, (steep + soft) / length
