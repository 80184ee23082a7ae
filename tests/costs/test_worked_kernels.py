"""Times of kernels that were computed by hand, on a GPU and with constants that leave one term at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from simulator.costs.kernels.attention import FAMILY as ATTENTION
from simulator.costs.kernels.attention import AttentionConstants, Heads, attention_s
from simulator.costs.kernels.experts import FAMILY as EXPERTS
from simulator.costs.kernels.experts import moe_s
from simulator.costs.kernels.family import BURST, TimedKernels
from simulator.costs.kernels.gemm import TILE_SETS, GemmConstants, gemm_s
from simulator.costs.kernels.gpu_model import Machine
from simulator.costs.kernels.rowwise import TRACED_PASSES, TRIP_CYCLES, RowwiseConstants, Speed, lookup_s, rowwise_s
from simulator.kernels import Experts
from simulator.units import GB, MB, TFLOP, US_PER_S

ON = Machine(100 * TFLOP, 1000 * GB, 100)
"""A multiprocessor computes one flop per picosecond, and a nanosecond of memory is 1,000 bytes."""
STILL = replace(ON, bytes_per_s=math.inf)
PLAIN_GEMM = GemmConstants(
    launch_us=5.0, compute=0.8, memory=0.5, ramp=40.0, hidden=0.25, quantum=1.0, norm=1.0, tile=1e6, split_us=1e9,
    split_traffic=0.25, power=0.0, power_us=30.0, throttle=0.0, throttle_us=600.0, tiles="block",
)  # fmt: skip
PLAIN_ATTENTION = AttentionConstants(
    launch_us=5.0, compute=0.5, exponential=0.25, overlap=1.0, ramp=100.0, quantum=1.0, norm=1.0, memory=0.5, cover=1.0,
    walk=1.0, walk_products=1.0, split_us=0.0, throttle=0.0, throttle_us=600.0, backward=3.0,
)  # fmt: skip


def gemm_us(c: GemmConstants, on: Machine, *sizes: int, **how: float) -> float:
    return US_PER_S * float(gemm_s(c, on, *sizes, **how))  # type: ignore[arg-type]


def attention_us(c: AttentionConstants, on: Machine, heads: Heads, *, backward: bool = False) -> float:
    return US_PER_S * float(attention_s(c, on, heads, backward=backward))


class TestGemm:
    """Tiles of 128 x 256: 2 x 128 x 256 flop per element of the inner dimension at 0.8 flop per picosecond are 81.92 ns. This
    tile reuses its operands as much as the reference tile does, so it loses nothing."""

    def test_three_waves_and_their_traffic(self) -> None:
        """201 tiles are two waves and one tile. In each wave a tile takes 1,000 elements and three quarters of the ramp of 40;
        the quarter that is hidden counts once."""
        tiled_us = 0.08192 * (3 * (1000 + 0.75 * 40) + 0.25 * 40)
        m, n, k = 3 * 128, 67 * 256, 1000
        assert gemm_us(PLAIN_GEMM, STILL, m, n, k) == pytest.approx(5 + tiled_us)
        moved_us = 2 * (m * k + k * n + m * n) / (0.5 * 1e6)
        assert gemm_us(PLAIN_GEMM, ON, m, n, k) == pytest.approx(5 + tiled_us + moved_us)
        assert gemm_us(PLAIN_GEMM, ON, m, n, k, element_bytes=1) == pytest.approx(5 + tiled_us + moved_us / 2)

    def test_half_of_the_last_wave(self) -> None:
        """With a quantum of a half, 250 tiles take half of 3 waves and half of 2.5."""
        half = replace(PLAIN_GEMM, quantum=0.5)
        assert gemm_us(half, STILL, 250 * 128, 256, 1000) == pytest.approx(5 + 0.08192 * (2.75 * 1030 + 10))

    def test_a_batch_is_so_many_gemms(self) -> None:
        """3 x 67 tiles, of 67 GEMMs."""
        m, n, k, batch = 3 * 128, 256, 1000, 67
        moved_us = batch * 2 * (m * k + k * n + m * n) / (0.5 * 1e6)
        assert gemm_us(PLAIN_GEMM, ON, m, n, k, batch) == pytest.approx(5 + 0.08192 * (3 * 1030 + 10) + moved_us)

    @pytest.mark.parametrize("batch", [1, 2])
    @pytest.mark.parametrize("loss", [0.0, 0.25])
    def test_a_split_adds_its_partial_sums(self, batch: int, loss: float) -> None:
        """Two multiprocessors for each GEMM: each takes half of the inner dimension, and 2 x 128 x 256 sums of 4 bytes are
        written for each, of which a quarter goes to memory. A split in four would take two waves, and more sums."""
        c = replace(PLAIN_GEMM, split_us=3.0, split_loss=loss)
        on = replace(ON, sms=2 * batch, flop_per_s=2e12 * batch)
        m, n, k = 128, 256, 4000
        whole_us, half_us = (0.08192 * (part + 40) for part in (k, k / 2))
        sums_us = 0.25 * 4 / (0.5 * 1e6) * 2 * batch * m * n
        moved_us = 2 * batch * (m * k + k * n + m * n) / (0.5 * 1e6)
        assert half_us * (1 + loss) + sums_us + 3 < whole_us
        assert gemm_us(c, on, m, n, k, batch) == pytest.approx(5 + half_us * (1 + loss) + sums_us + 3 + moved_us)

    def test_power_slows_by_the_share_of_the_peak_at_once_and_in_long_loops(self) -> None:
        """A power of 0.4 acts on the share of the peak that the GEMM reaches, with `power_us` more than its time in the
        denominator; a throttle of 0.2 likewise, with `throttle_us`, which is shorter in longer loops."""
        m, n, k = 10 * 128, 10 * 256, 1000
        ideal_us, tiled_us = 2 * m * n * k / 1e8, 0.08192 * 1040
        powered, throttled = replace(PLAIN_GEMM, power=0.4), replace(PLAIN_GEMM, throttle=0.2)
        slower = 1 + 0.4 * ideal_us / (tiled_us + 30)
        assert gemm_us(powered, STILL, m, n, k) == pytest.approx(5 + tiled_us * slower)
        for launches in (BURST, 4 * BURST):
            slower = 1 + 0.2 * ideal_us / (tiled_us + 600 * BURST / launches)
            assert gemm_us(throttled, STILL, m, n, k, launches=launches) == pytest.approx(5 + tiled_us * slower)
        endless = gemm_us(replace(throttled, power=0.4, power_us=0.0), STILL, m, n, k, launches=math.inf)
        assert endless == pytest.approx(5 + tiled_us + (0.4 + 0.2) * ideal_us)

    def test_what_a_benchmark_left_in_the_cache_comes_at_the_rate_of_the_cache(self) -> None:
        """In a cache as large as needed all operands of `turns` repeated GEMMs stay, and nothing starts later."""
        c = replace(PLAIN_GEMM, cold_us=2.0)
        m, n, k = 128, 256, 1000
        tiled_us, moved = 0.08192 * 1040, 2 * (m * k + k * n + m * n)
        cached = replace(ON, cache_bytes=1e12, cache_bytes_per_s=4e12)
        assert gemm_us(c, cached, m, n, k, turns=6) == pytest.approx(5 + tiled_us + moved / 4e6)
        assert gemm_us(c, cached, m, n, k) == pytest.approx(5 + 2 + tiled_us + moved / (0.5 * 1e6))

    def test_operands_of_a_batch_that_exceed_the_cache_come_from_memory(self) -> None:
        """100 GEMMs move 83 MB, and six times their second operands are 307 MB. A cache of 200 MB holds the former only."""
        cached = replace(ON, cache_bytes=200 * MB, cache_bytes_per_s=4e12)
        cold, once, six = (gemm_us(PLAIN_GEMM, cached, 128, 256, 1000, 100, turns=turns) for turns in (0, 1, 6))
        assert once < cold == six


@pytest.mark.parametrize("name", TILE_SETS)
def test_tiles_are_whole_fragments_and_no_larger_than_two_warpgroups_hold(name: str) -> None:
    for rows, across in TILE_SETS[name]:
        assert (rows % 16, across % 16) == (0, 0)
        assert rows * across <= 128 * 256


def test_experts_are_two_grouped_gemms_and_the_traffic_around_them() -> None:
    """Up and gate in one GEMM, down in the other. Around them 3 passes over the channels of the experts, which read both halves
    and write one, and 4 over the hidden size, which gather and add up the rows of a token."""
    tokens, hidden, expert, experts, top_k = 512, 4096, 1024, 64, 4
    rows = tokens * top_k / experts
    up_us = gemm_us(PLAIN_GEMM, ON, rows, 2 * expert, hidden, experts)  # type: ignore[arg-type]
    down_us = gemm_us(PLAIN_GEMM, ON, rows, hidden, expert, experts)  # type: ignore[arg-type]
    moved_us = 2 * tokens * top_k * (3 * expert + 4 * hidden) / (0.5 * 1e6)
    took_us = US_PER_S * float(moe_s(PLAIN_GEMM, ON, tokens, hidden, expert, (experts, top_k)))
    assert took_us == pytest.approx(up_us + down_us + moved_us)


@pytest.mark.parametrize("channels, odd, free", [(168, 1.5, True), (168, 1.0, False), (176, 1.5, False)])
def test_only_experts_of_odd_channels_determine_how_slow_these_are(channels: int, odd: float, free: bool) -> None:
    """And only for a library whose kernels such channels slow, whose fit starts above 1."""
    timed = TimedKernels(((Experts(64, channels, 512, 8, 2, 2),),), np.array([1.0]), ON, 2, np.array([True]))
    assert ("odd" in EXPERTS.free(timed, GemmConstants(odd=odd))) == free


class TestAttention:
    """A row of queries meets a key with 4 x 128 flop of GEMMs at 0.5 flop per picosecond, 1,024 ps, and an exponential of a
    quarter of 4 x 128 ps, 128 ps: with an overlap of 1 they add up to 1,152 ps, and a block of 128 rows takes 147.456 ns per key.
    Its ramp is 100 exponentials of 128 rows: 1.6384 us."""

    KEY_US, RAMP_US = 0.147456, 1.6384

    def test_blocks_of_full_attention_run_in_waves(self) -> None:
        """Two blocks for each of 75 heads are a wave and a half, which with a quantum of 1 count as two. The longest walk is one
        block's. Both are joined by a norm of 8. A cover of 1 adds the traffic of queries, results, keys and values."""
        shape = Heads(1, 256, 75, 25, 128, causal=0)
        walk_us = 256 * self.KEY_US + self.RAMP_US
        spread_us = walk_us * (2**8 + 1) ** (1 / 8)
        assert attention_us(PLAIN_ATTENTION, STILL, shape) == pytest.approx(5 + spread_us)
        moved_us = 2 * 128 * 256 * (2 * 75 + 2 * 25) / (0.5 * 1e6)
        assert attention_us(PLAIN_ATTENTION, ON, shape) == pytest.approx(5 + spread_us + moved_us)
        assert attention_us(PLAIN_ATTENTION, ON, shape, backward=True) == pytest.approx(5 + 3 * (spread_us + moved_us))

    def test_causal_blocks_take_their_mean_load_and_the_longest_walk(self) -> None:
        """Four blocks of 128 rows see 128, 256, 384 and 512 keys, on average 320. A norm of 1 adds the longest walk, one
        of 2 takes the root of the sum of squares."""
        shape = Heads(1, 512, 100, 100, 128)
        mean_us = 4 * (320 * self.KEY_US + self.RAMP_US)
        walk_us = 512 * self.KEY_US + self.RAMP_US
        full_us = (512 * self.KEY_US + self.RAMP_US) * (4**8 + 1) ** (1 / 8)
        assert mean_us + walk_us < full_us
        assert attention_us(PLAIN_ATTENTION, STILL, shape) == pytest.approx(5 + mean_us + walk_us)
        assert attention_us(replace(PLAIN_ATTENTION, norm=2), STILL, shape) == pytest.approx(5 + math.hypot(mean_us, walk_us))

    @pytest.mark.parametrize("heads, split", [(100, 1), (51, 1), (50, 2), (26, 2), (25, 4), (13, 4), (12, 8)])
    def test_walks_are_split_while_multiprocessors_are_free(self, heads: int, split: int) -> None:
        """A block for each head. Without a quantum a block on each hundredth multiprocessor is a hundredth of the load. To join
        twice as many parts takes `split_us` more each time."""
        c = replace(PLAIN_ATTENTION, quantum=0.0, split_us=0.5)
        walk_us = 128 * self.KEY_US + self.RAMP_US
        spread_us = walk_us * ((heads / 100) ** 8 + split**-8) ** (1 / 8) + math.log2(split) * 0.5
        assert attention_us(c, STILL, Heads(1, 128, heads, heads, 128, causal=0)) == pytest.approx(5 + spread_us)

    def test_a_walk_alone_is_slower_by_what_was_fitted(self) -> None:
        """One head of one block: everything 1.5 times as long, its GEMMs 1.25 times more."""
        c = replace(PLAIN_ATTENTION, walk=1.5, walk_products=1.25, quantum=0.0, split_us=1e6)
        walk_us = 1.5 * (1024 * 128 * (1.25 * 1.024 + 0.128) / 1e3 + self.RAMP_US)
        shape = Heads(1, 128, 1, 1, 128, causal=0, prefix=1024 - 128)
        assert attention_us(c, STILL, shape) == pytest.approx(5 + walk_us, rel=1e-3)

    def test_long_loops_throttle(self) -> None:
        """By a tenth in an endless loop, and by its share of `throttle_us` and its own time in a burst."""
        c, shape = replace(PLAIN_ATTENTION, throttle=0.1), Heads(1, 256, 75, 25, 128, causal=0)
        usual_us = attention_us(PLAIN_ATTENTION, STILL, shape) - 5
        assert attention_us(c, STILL, shape) == pytest.approx(5 + usual_us * (1 + 0.1 * usual_us / (usual_us + 600)))
        endless_us = US_PER_S * float(attention_s(c, STILL, shape, launches=math.inf))
        assert endless_us == pytest.approx(5 + 1.1 * usual_us)

    @pytest.mark.parametrize("causal", [0, 1])
    def test_a_backward_pass_takes_at_least_its_five_gemms_at_the_peak(self, causal: int) -> None:
        """If it were fitted to take twice as long as a forward pass of two GEMMs, which nearly reaches the peak."""
        c = replace(PLAIN_ATTENTION, compute=0.99, exponential=1e-9, backward=2.0, norm=8.0)
        seq, heads = 2048, 500
        scores = heads * seq * ((seq + 1) / 2 if causal else seq)
        gemm_us = 2 * scores * 128 / 1e8
        shape = Heads(1, seq, heads, heads, 128, causal=causal)
        assert 2 * gemm_us < attention_us(c, STILL, shape) - 5 < 2.5 * gemm_us
        assert attention_us(c, STILL, shape, backward=True) == pytest.approx(5 + 5 * gemm_us)

    def test_a_slower_library_takes_so_many_times_the_arithmetic(self) -> None:
        """GEMMs, exponentials and ramps alike; launches and traffic stay."""
        shape = Heads(2, 2048, 16, 4, 128)
        slower = ATTENTION.slower_library(PLAIN_ATTENTION, 1.7)
        usual_us, slow_us = (attention_us(c, STILL, shape) for c in (PLAIN_ATTENTION, slower))
        assert slow_us - 5 == pytest.approx(1.7 * (usual_us - 5))
        moved_us = attention_us(PLAIN_ATTENTION, ON, shape) - usual_us
        assert attention_us(slower, ON, shape) == pytest.approx(slow_us + moved_us)


class TestRowwise:
    """A memory of 1,000 bytes per nanosecond, of which kernels stream half; the clock is 1 GHz."""

    SLOW = replace(ON, clock_per_s=1 * GB)
    HALF = RowwiseConstants(launch_us=3.0, stream=0.5, lookup_cycles=2.0)

    def test_a_kernel_streams_its_bytes_behind_one_launch(self) -> None:
        assert US_PER_S * float(rowwise_s(self.HALF, self.SLOW, 8e6)) == pytest.approx(3 + 16)
        took_us = US_PER_S * float(rowwise_s(self.HALF, self.SLOW, 8e6, Speed(slowdown=1.5, kernels=2)))
        assert took_us == pytest.approx(2 * 3 + 1.5 * 16)

    def test_a_choice_between_a_tensor_and_a_number_reads_a_mask_of_bytes(self) -> None:
        """Four bytes in, one of the mask, four out."""
        assert 4 * TRACED_PASSES["where"] == 4 + 1 + 4

    @pytest.mark.parametrize(
        "ids, moved, us", [(16, 100, 16 * TRIP_CYCLES / 1e3), (1000, 100, 1000 * 50 * 2 / 100 / 1e3), (9, 4e8, 800)]
    )
    def test_a_look_up_waits_for_its_indices_or_its_bytes(self, ids: int, moved: float, us: float) -> None:
        """Up to 16 ids one after the other; more at two cycles for each element, on 100 multiprocessors."""
        assert US_PER_S * float(lookup_s(self.HALF, self.SLOW, ids, 50, moved)) == pytest.approx(3 + us)
        assert US_PER_S * float(lookup_s(self.HALF, self.SLOW, ids, 50, moved, kernels=4)) == pytest.approx(4 * 3 + us)
