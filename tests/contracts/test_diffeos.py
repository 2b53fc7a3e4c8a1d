"""What every diffeomorphism must satisfy."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit._flows import AutoregressiveFlow
from tests.contracts.families import DIFFEOS, as_float32, shaken

family = pytest.mark.parametrize("name", DIFFEOS.keys())
dims = pytest.mark.parametrize("dim", [1, 2, 3])


@functools.cache
def measured(name, dim):
    """The flow at the start and shaken, at ten times the scale of the data."""

    @eqx.filter_jit
    def measure(phi, x):
        u = phi.forward(x)
        jacobian = jax.vmap(jax.jacfwd(lambda point: phi.forward(point[None])[0]))(x)
        return {
            "forward": u,
            "inverse": phi.inverse(x),
            "there and back": phi.inverse(u),
            "back and there": phi.forward(phi.inverse(x)),
            "log_det": phi.log_det(x),
            "slogdet": jnp.linalg.slogdet(jacobian)[1],
        }

    x = 10 * jr.normal(jr.key(5), (20, dim))
    start = DIFFEOS[name](dim)
    return x, measure(start, x), measure(shaken(start), x)


@family
@dims
def test_starts_exactly_as_the_identity(name, dim):
    x, start, _ = measured(name, dim)
    np.testing.assert_array_equal(start["forward"], x)
    np.testing.assert_array_equal(start["inverse"], x)
    np.testing.assert_array_equal(start["log_det"], 0)


@family
@dims
def test_inverse_undoes_forward(name, dim):
    x, _, found = measured(name, dim)
    assert np.abs(found["forward"] - x).max() > 0.1
    np.testing.assert_allclose(found["there and back"], x, atol=1e-8)
    np.testing.assert_allclose(found["back and there"], x, atol=1e-8)


@family
@dims
def test_log_det_agrees_with_autodiff(name, dim):
    _, _, found = measured(name, dim)
    np.testing.assert_allclose(found["log_det"], found["slogdet"], atol=1e-8)


def test_the_scale_is_bounded_however_large_the_weights():
    phi = shaken(DIFFEOS["one block"](2), size=1e3)
    assert jnp.abs(phi.log_det(jr.normal(jr.key(5), (20, 2)))).max() <= 2 * 2.0 + 1e-12


def test_float32_stays_float32():
    phi = as_float32(shaken(DIFFEOS["four blocks"](3)))
    x = jr.normal(jr.key(5), (20, 3), jnp.float32)
    u, back = jax.jit(lambda x: (phi.forward(x), phi.inverse(phi.forward(x))))(x)
    assert u.dtype == back.dtype == jnp.float32
    np.testing.assert_allclose(back, x, atol=1e-4)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((name, value) for name in ("n_blocks", "width", "depth") for value in (0, 2.0, True)),
        ("n_blocks", "4"),
        ("width", np.nan),
        *(("max_log_scale", value) for value in (0.0, -1.0, np.nan, np.inf, "2", None)),
    ],
)
def test_an_impossible_option_is_named(option, value):
    with pytest.raises(ValueError, match=rf"needs a .*{option}.*, got {value!r}\."):
        AutoregressiveFlow(2, key=jr.key(0), **{option: value})


def test_options_given_as_numpy_numbers_become_plain_ones():
    phi = AutoregressiveFlow(
        2, key=jr.key(0), n_blocks=np.int64(1), width=np.uint8(4), max_log_scale=np.float32(1.5)
    )
    found = (phi.n_blocks, phi.width, phi.max_log_scale)
    assert found == (1, 4, 1.5)
    assert [type(value) for value in found] == [int, int, float]
