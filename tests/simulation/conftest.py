from collections.abc import Iterator

import pytest

from tests.simulation.adapters import Running, product_over_models


@pytest.fixture
def running() -> Iterator[Running]:
    """The product's modules speak to the models during the test."""
    with product_over_models() as world:
        yield world
