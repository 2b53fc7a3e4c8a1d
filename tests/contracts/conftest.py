import pytest


@pytest.fixture(autouse=True)
def _double(x64):
    """The mathematics is tested in float64."""
