"""What weights that nobody filled save: nothing where memory is the bound or weights are few, a share of the time at the most."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.kernels.gpu_model import Machine
from simulator.units import GB, TFLOP

from .source import study_script

filled_share = study_script("kernels", "zero_weights").filled_share
BLACKWELL = Machine(2250 * TFLOP, 8000 * GB, 148)
SIZE = st.integers(1, 65536)


def share(m: int, n: int, k: int, seconds: float, *, saves: float = 0.4, half_gb: float = 8.0) -> float:
    sizes = [np.array([float(size)]) for size in (m, n, k)]
    return float(filled_share(saves, half_gb, BLACKWELL, sizes, np.array([seconds]))[0])


def test_at_the_full_rate_half_is_saved_where_half_is_new() -> None:
    m, n, k = 16384, 16384, 8 * 10**9 // (6 * 2 * 16384)
    seconds = 2 * m * n * k / BLACKWELL.flop_per_s
    assert share(m, n, k, seconds) == pytest.approx(1 - 0.4 / 2, rel=1e-4)
    assert share(m, n, k, 2 * seconds) == pytest.approx(1 - 0.4 / 4, rel=1e-4)


@given(SIZE, SIZE, SIZE, st.floats(1.0, 50.0), st.floats(0.0, 3.0), st.floats(0.1, 100.0))
def test_it_saves_a_share_and_more_of_larger_weights(m: int, n: int, k: int, slower: float, saves: float, half_gb: float) -> None:
    seconds = slower * 2 * m * n * k / BLACKWELL.flop_per_s
    one, two = (share(m, width, k, seconds * width / n, saves=saves, half_gb=half_gb) for width in (n, 2 * n))
    assert -1e-12 <= two <= one + 1e-12 <= 1 + 2e-12
    assert share(m, n, k, seconds, saves=0.0, half_gb=half_gb) == 1


def test_nothing_takes_less_than_no_time() -> None:
    assert share(16384, 65536, 65536, 1e-9, saves=3.0, half_gb=0.1) >= 0
