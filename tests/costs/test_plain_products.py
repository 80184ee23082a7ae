"""Products without tensor cores, as an eager framework runs them: linear layers, and batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.gemm import TALL, TILE_SETS, TILES, GemmConstants, gemm_s
from simulator.costs.machine import Machine
from simulator.study import kernel_fits
from simulator.units import GB, MB, TFLOP, US_PER_S

WIDTH = 4
SMALL_CACHE = Machine(9.3 * TFLOP, 732 * GB, 56, cache_bytes=4 * MB)
LARGE_CACHE = replace(SMALL_CACHE, cache_bytes=2**20 * MB)
EAGER = GemmConstants(launch_us=30.0, alone_us=20.0, reread=15.0, astride=1.0, tiles="tall")
PRODUCTS = [fit.constants for fits in kernel_fits.shelf().fits.values() for fit in fits if fit.family in ("gemm", "moe")]
NEUTRAL = {"alone_us": 0.0, "batched_ramp": 1.0, "reread": 0.0, "astride": 0.0}


def took_us(c: GemmConstants, on: Machine, m: int, n: int, k: int, batch: int = 1) -> float:
    return US_PER_S * float(gemm_s(c, on, m, n, k, batch, width=WIDTH))


def test_a_product_alone_launches_later_than_a_batch() -> None:
    plain = replace(EAGER, alone_us=0.0)
    assert took_us(EAGER, SMALL_CACHE, 64, 64, 64) == pytest.approx(took_us(plain, SMALL_CACHE, 64, 64, 64) + EAGER.alone_us)
    assert took_us(EAGER, SMALL_CACHE, 64, 64, 64, 2) == took_us(plain, SMALL_CACHE, 64, 64, 64, 2)


def test_a_batch_has_a_ramp_of_its_own() -> None:
    """Products over a short dimension, as the scores of attention: half of the time is ramp."""
    quick = replace(EAGER, batched_ramp=0.1)
    assert took_us(quick, SMALL_CACHE, 1024, 1024, 64, 64) < 0.7 * took_us(EAGER, SMALL_CACHE, 1024, 1024, 64, 64)
    assert took_us(quick, SMALL_CACHE, 1024, 1024, 64) == took_us(EAGER, SMALL_CACHE, 1024, 1024, 64)


def test_wide_products_read_again_what_exceeds_the_cache() -> None:
    """As P100 shows: as many tiles, but the columns in flight are four times as many, and the rows a quarter."""
    wide, tall = (took_us(EAGER, SMALL_CACHE, *sizes, 4096) for sizes in ((2048, 32768), (32768, 2048)))
    assert wide > 1.5 * tall
    kept, never = (took_us(c, LARGE_CACHE, 2048, 32768, 4096) for c in (EAGER, replace(EAGER, reread=0.0)))
    assert kept == pytest.approx(never, rel=1e-3)
    assert took_us(EAGER, SMALL_CACHE, 2048, 32768, 4096, 2) == took_us(
        replace(EAGER, reread=0.0), SMALL_CACHE, 2048, 32768, 4096, 2
    )


def test_rows_astride_of_sectors_are_read_more_of() -> None:
    """Eight numbers of 32 bits are a sector."""
    even, odd, never = (
        took_us(c, SMALL_CACHE, 4096, 16384, k) for c, k in ((EAGER, 4096), (EAGER, 4095), (replace(EAGER, astride=0), 4095))
    )
    assert never < even < odd
    assert odd > 1.3 * even


@given(*[st.integers(1, 2**14)] * 2, st.integers(1, 2**11), st.sampled_from("mnk"), st.integers(1, 512))
def test_more_takes_no_less_where_rows_are_even(m: int, n: int, eighth: int, which: str, more: int) -> None:
    sizes = {"m": m, "n": n, "k": 8 * eighth}
    grown = {**sizes, which: sizes[which] + 8 * more}
    assert took_us(EAGER, SMALL_CACHE, *grown.values()) >= took_us(EAGER, SMALL_CACHE, *sizes.values()) * (1 - 1e-9)


def test_tall_tiles_are_no_wider_than_tall() -> None:
    assert TILE_SETS["tall"] == TALL
    assert all(rows >= across for rows, across in TALL)
    assert any(rows < across for rows, across in TILES)


def test_only_eager_fits_have_terms_of_their_own() -> None:
    """Those of CUDA graphs, on tensor cores, are what they were."""
    eager = [c for c in PRODUCTS if isinstance(c, GemmConstants) and c.tiles == "tall"]
    others = [c for c in PRODUCTS if isinstance(c, GemmConstants) and c.tiles != "tall"]
    assert len(eager) == 8
    assert all(getattr(c, name) == value for c in others for name, value in NEUTRAL.items())
    assert all(c.alone_us > 0 and c.reread > 0 for c in eager)
    assert np.mean([c.launch_us for c in eager]) > 20
