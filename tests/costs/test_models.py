"""Laws of the kernel models: what holds for every GPU, whatever the constants."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config import catalog, shipped_fits
from simulator.config.catalog import gpu_named
from simulator.costs.kernels.accumulation import accumulation_s
from simulator.costs.kernels.attention import AttentionConstants, Heads, attention_s, backward_over_forward
from simulator.costs.kernels.estimator import Estimator, Options, measured_cost
from simulator.costs.kernels.experts import moe_s
from simulator.costs.kernels.family import Estimate, Fit
from simulator.costs.kernels.fit_choice import best_fit_for, known_library
from simulator.costs.kernels.gemm import FAMILY as GEMM
from simulator.costs.kernels.gemm import TILES, GemmConstants, gemm_s
from simulator.costs.kernels.gpu_model import Machine, clock_per_s, machine
from simulator.costs.kernels.rowwise import RATIOS, TRIP_CYCLES, RowwiseConstants, Speed, lookup_s, rowwise_s, speed_of
from simulator.errors import UserError
from simulator.hardware.gpu import PEAK_OF
from simulator.kernels import Attention, Experts, Gemm, Kernel, Part, Rowwise
from simulator.measurements.kernel_words import WIDTH
from simulator.units import GB, NS_PER_S, TFLOP, US_PER_S, ns

SHELF = shipped_fits.shipped()
ELDEST = replace(SHELF, fits={name: fits for name, fits in SHELF.fits.items() if name not in ("h200", "b300", "gb200", "gb300")})
"""The fits without those of later boards of a generation, which then borrow."""
MACHINES = (
    Machine(312 * TFLOP, 2039 * GB, 108),
    Machine(989 * TFLOP, 3350 * GB, 132),
    Machine(2250 * TFLOP, 8000 * GB, 148),
)
TOLERANCE = 1e-9
FAMILIES = ("gemm", "moe", "attention", "rowwise")
LARGE = Gemm(8192, 8192, 8192, 2)
LONG = Attention(2, 8192, 32, 8, 128, True, 2)

of_family = {family: [f.constants for fits in SHELF.fits.values() for f in fits if f.family == family] for family in FAMILIES}
machines = st.sampled_from(MACHINES)
tensor_fits: Any = st.sampled_from(
    [
        (fit.constants, machine(SHELF.gpus[owner], PEAK_OF.get(fit.dtype, fit.dtype)), WIDTH[fit.dtype])
        for owner, fits in SHELF.fits.items()
        for fit in fits
        if fit.family == "gemm" and fit.dtype != "fp32"
    ]
)
"""Constants of products on tensor cores, the GPU that they were fitted to, and the bytes of an element."""
gemms: Any = st.sampled_from(of_family["gemm"])
attentions: Any = st.sampled_from(of_family["attention"])
lengths = st.integers(1, 2**14)


class TestProducts:
    @given(gemms, machines, lengths, lengths, lengths, st.integers(1, 16))
    def test_none_beats_the_roofs(self, c: GemmConstants, on: Machine, m: int, n: int, k: int, batch: int) -> None:
        took = gemm_s(c, on, m, n, k, batch)
        moved = 2 * batch * (m * k + k * n + m * n)
        least = max(2 * batch * m * n * k / on.flop_per_s, moved / on.bytes_per_s) + c.launch_us / US_PER_S
        assert took >= least * (1 - TOLERANCE)

    @given(gemms, machines, lengths, lengths, lengths, st.sampled_from("mnkb"), st.integers(1, 4096))
    def test_more_takes_no_less(self, c: GemmConstants, on: Machine, m: int, n: int, k: int, which: str, more: int) -> None:
        sizes = dict(zip("mnkb", (m, n, k, 2), strict=True))
        grown = {**sizes, which: sizes[which] + more}
        assert gemm_s(c, on, *grown.values()) >= gemm_s(c, on, *sizes.values()) * (1 - TOLERANCE)

    @pytest.mark.parametrize("on", MACHINES, ids=lambda on: str(on.sms))
    def test_a_wave_more_begins_where_the_multiprocessors_end(self, on: Machine) -> None:
        """Tiles as large as they come: flat up to one for each multiprocessor, a step at the next."""
        alone = replace(on, bytes_per_s=on.bytes_per_s * 2**20)
        c = GemmConstants(launch_us=0, compute=1, quantum=1, tile=1e6, power=0, throttle=0, split_us=1e6)
        rows, columns = TILES[0]
        tiles = np.arange(1, 3 * on.sms + 2)
        took = gemm_s(c, alone, rows * tiles, columns, 4096)
        steps = [int(tiles[i]) for i in np.flatnonzero(np.diff(took) > took[0] / 8)]
        assert steps[-1] == 3 * on.sms
        assert {on.sms, 2 * on.sms} <= set(steps)
        assert took[on.sms - 1] == pytest.approx(took[on.sms - 8])

    def test_nvfp4_has_one_tile(self) -> None:
        """As measured on a B200: 64 tiles of 128 x 256 take as long as one, and one more than the multiprocessors twice that."""
        (c,) = [fit.constants for fit in SHELF.fits["b200"] if (fit.dtype, fit.library) == ("nvfp4", "trtllm")]
        assert isinstance(c, GemmConstants)
        b200 = machine(SHELF.gpus["b200"], "nvfp4")
        on = replace(b200, bytes_per_s=b200.bytes_per_s * 2**20)
        tiles = np.array([1, 64, on.sms, on.sms + 1])
        one, many, full, more = gemm_s(c, on, 128, 256 * tiles, 2**16, element_bytes=0.5625)
        assert one <= many <= 1.05 * one
        assert many <= full <= 1.1 * one
        assert 1.8 * full < more < 2.1 * full

    def test_a_quantum_of_nothing_spreads_the_last_wave(self) -> None:
        on, c = MACHINES[1], GemmConstants(quantum=1e-12)
        took = gemm_s(c, on, 256 * np.arange(2 * on.sms, 4 * on.sms), 2048, 4096)
        assert np.diff(took).max() < 0.02 * took[0]

    def test_few_tiles_over_a_long_dimension_are_split(self) -> None:
        on, split = MACHINES[1], GemmConstants()
        never = replace(split, split_us=1e9)
        assert gemm_s(split, on, 128, 128, 65536) < 0.3 * gemm_s(never, on, 128, 128, 65536)
        assert gemm_s(split, on, 8192, 8192, 8192) == gemm_s(never, on, 8192, 8192, 8192)

    @given(tensor_fits, st.integers(10, 14))
    def test_a_vector_product_takes_the_time_of_its_bytes(self, fit: tuple[GemmConstants, Machine, float], power: int) -> None:
        c, on, width = fit
        launch_s = c.launch_us / US_PER_S
        once, twice = (gemm_s(c, on, 1, 2**power * i, 2**14, element_bytes=width) - launch_s for i in (1, 2))
        assert twice <= 2.05 * once
        large = gemm_s(c, on, 1, 2**17, 2**14, element_bytes=width) - launch_s
        assert large == pytest.approx(width * 2**31 / (c.memory * on.bytes_per_s), rel=0.45)

    @given(tensor_fits, lengths, lengths, lengths, st.sampled_from(("m", "n", "k")), st.integers(1, 512))
    def test_in_turn_more_takes_no_less(
        self, fit: tuple[GemmConstants, Machine, float], m: int, n: int, k: int, which: str, more: int
    ) -> None:
        c, on, width = fit
        sizes = {"m": m, "n": n, "k": k}
        grown = {**sizes, which: sizes[which] + more}
        cold, once, six = (gemm_s(c, on, **sizes, element_bytes=width, turns=turns) for turns in (0, 1, 6))
        assert once <= six * (1 + TOLERANCE)
        assert six <= cold * (1 + TOLERANCE)
        assert gemm_s(c, on, **grown, element_bytes=width, turns=6) >= six * (1 - TOLERANCE)

    def test_only_weights_that_fit_stay_in_the_cache(self) -> None:
        """Six of 8 MiB do in the 96 MB of an L40S, six of 32 MiB do not; in the 6 MB of an A40 not even the former do."""
        graphics, smaller = (machine(shipped_fits.gpu(name), "bf16") for name in ("l40s", "a40"))
        c = replace(GemmConstants(), cold_us=1.0)
        for k, on, stays in ((2**11, graphics, True), (2**13, graphics, False), (2**11, smaller, False)):
            cold, warm = (US_PER_S * gemm_s(c, on, 1, 2**11, k, turns=turns) for turns in (0, 6))
            at_most_us = US_PER_S * 2 * 2**11 * k / on.bytes_per_s
            assert (warm < cold - 1 and warm - c.launch_us < at_most_us) if stays else warm == cold

    def test_what_comes_from_memory_starts_later(self) -> None:
        on, c = MACHINES[0], GemmConstants()
        later_s = gemm_s(replace(c, cold_us=1.5), on, 64, 4096, 4096) - gemm_s(c, on, 64, 4096, 4096)
        assert later_s * US_PER_S == pytest.approx(1.5)

    def test_experts_of_odd_channels_take_longer(self) -> None:
        """By what was fitted, in their products: Triton loads sixteen at a time."""
        c, on = GemmConstants(odd=1.5), MACHINES[1]
        plain, odd = (moe_s(replace(c, odd=x), on, 512, 4096, 168, (128, 8)) for x in (1.0, 1.5))
        assert 1.4 < odd / plain < 1.5
        assert moe_s(c, on, 512, 4096, 176, (128, 8)) < odd
        found: list[Any] = of_family["moe"]
        assert all(1.2 < fitted.odd < 2 for fitted in found)

    def test_many_at_once_are_each(self) -> None:
        rng = np.random.default_rng(0)
        m, n, k, batch = (rng.integers(1, 9000, 100) for _ in range(4))
        c, on = GemmConstants(), MACHINES[0]
        together = gemm_s(c, on, m, n, k, batch)
        assert together.tolist() == [float(gemm_s(c, on, *sizes)) for sizes in zip(m, n, k, batch, strict=True)]

    def test_a_group_takes_less_than_its_products_apart(self) -> None:
        c, on = GemmConstants(), MACHINES[1]
        assert gemm_s(c, on, 512, 2048, 4096, 16) < 16 * gemm_s(c, on, 512, 2048, 4096)


class TestAttention:
    @given(attentions, machines, st.integers(1, 8), st.integers(1, 2**14), st.sampled_from([1, 2, 8, 32]), st.booleans())
    def test_it_grows(self, c: AttentionConstants, on: Machine, batch: int, seq: int, heads: int, causal: bool) -> None:
        def took(batch: int = batch, seq: int = seq, heads: int = heads, causal: bool = causal) -> Any:
            return attention_s(c, on, Heads(batch, seq, heads, heads, 128, causal))

        now = took() * (1 - TOLERANCE)
        assert took(batch=2 * batch) >= now
        assert took(seq=seq + 1) >= now
        assert took(seq=seq + int(c.rows)) >= now
        assert took(heads=2 * heads) >= now
        assert took(causal=False) >= took(causal=True) * (1 - TOLERANCE)

    @given(attentions, machines, st.integers(4, 14), st.sampled_from([64, 128, 192, 256]), st.booleans())
    def test_it_does_not_beat_the_peak(self, c: AttentionConstants, on: Machine, power: int, width: int, causal: bool) -> None:
        seq = 2**power
        flop = Attention(4, seq, 16, 16, width, causal, 2).flop
        assert attention_s(c, on, Heads(4, seq, 16, 16, width, causal)) >= flop / on.flop_per_s

    @given(attentions, machines)
    def test_backward_is_as_much_longer_as_measured(self, c: AttentionConstants, on: Machine) -> None:
        what, launch_s = Heads(4, 8192, 32, 8, 128), c.launch_us / US_PER_S
        forward, backward = attention_s(c, on, what), attention_s(c, on, what, backward=True)
        assert (backward - launch_s) / (forward - launch_s) == pytest.approx(c.backward)
        assert 2 <= c.backward <= 3.3

    @given(attentions, st.sampled_from([64, 96, 128, 160, 192, 256]), st.sampled_from([64, 96, 128, 160, 192, 256]))
    def test_backward_over_forward_grows_with_the_width_of_heads(self, c: AttentionConstants, one: int, other: int) -> None:
        """From the ratio of the flop, where it is not below that on heads of the usual width."""
        narrow, wide = (float(backward_over_forward(c, width)) for width in sorted((one, other)))
        assert min(c.backward, 2.5) <= narrow <= wide <= c.backward * 2**0.3

    def test_backward_over_forward_is_as_measured_on_an_a100(self) -> None:
        """SimuMax, heads of 192 with values of 128: 3.3 times where heads of 128 take 2.9 times."""
        c = AttentionConstants(backward=2.9, widths="flash")
        assert backward_over_forward(c, 160) == pytest.approx(3.3, rel=0.02)

    def test_causal_takes_half_of_a_long_sequence(self) -> None:
        c, on = AttentionConstants(), MACHINES[1]
        ratio = attention_s(c, on, Heads(8, 32768, 32, 32, 128, 1)) / attention_s(c, on, Heads(8, 32768, 32, 32, 128, 0))
        assert ratio == pytest.approx(0.5, abs=0.03)

    def test_parts_of_a_causal_sequence_add_up(self) -> None:
        c, on, half = AttentionConstants(launch_us=0, throttle=0), MACHINES[1], 32768
        parts = [attention_s(c, on, Heads(4, half, 32, 32, 128, 1, before)) for before in (0, half)]
        assert sum(parts) == pytest.approx(float(attention_s(c, on, Heads(4, 2 * half, 32, 32, 128, 1))), rel=0.03)

    @given(attentions, machines, st.integers(64, 8192), st.sampled_from([1, 4, 32]))
    def test_traffic_moves_beside_the_arithmetic(self, c: AttentionConstants, on: Machine, seq: int, heads: int) -> None:
        what, still = Heads(2, seq, heads, heads, 128), replace(on, bytes_per_s=math.inf)
        launch_s = c.launch_us / US_PER_S
        working_s, both_s = (float(attention_s(c, each, what)) - launch_s for each in (still, on))
        moving_s = 2 * 2 * 2 * 128 * 2 * seq * heads / (c.memory * on.bytes_per_s)
        assert max(working_s, moving_s) * (1 - TOLERANCE) <= both_s <= (working_s + moving_s) * (1 + TOLERANCE)

    @pytest.mark.parametrize(("widths", "padded"), [("flash", 96), ("flash3", 96), ("sixteens", 80)])
    def test_heads_are_padded_to_the_widths_of_a_library(self, widths: str, padded: int) -> None:
        c, on = AttentionConstants(widths=widths, memory=1.0), replace(MACHINES[1], bytes_per_s=math.inf)
        took = {width: float(attention_s(c, on, Heads(8, 4096, 16, 16, width))) for width in (64, 72, 80, 96, 272, 288)}
        assert took[64] < took[72] == took[padded] <= took[96]
        assert took[272] < took[288]

    def test_packed_heads_share_keys_at_short_lengths(self) -> None:
        apart, on = AttentionConstants(), MACHINES[1]
        packed, short = replace(apart, packed=True), Heads(64, 16, 64, 8, 128)
        assert attention_s(packed, on, short) < attention_s(apart, on, short)


class TestRowwise:
    @given(machines, st.integers(1, 2**36), st.integers(2, 8))
    def test_time_goes_with_bytes(self, on: Machine, moved: int, times: int) -> None:
        c = RowwiseConstants()
        launch_s = c.launch_us / US_PER_S
        assert rowwise_s(c, on, times * moved) - launch_s == pytest.approx(times * (rowwise_s(c, on, moved) - launch_s), rel=1e-6)
        assert rowwise_s(c, on, moved) >= moved / on.bytes_per_s

    def test_what_is_in_the_cache_comes_sooner_and_more_takes_no_less(self) -> None:
        c, cold = RowwiseConstants(launch_us=0), MACHINES[1]
        warm = replace(cold, cache_bytes=50e6, cache_bytes_per_s=2 * cold.bytes_per_s)
        assert rowwise_s(c, warm, 20e6) == pytest.approx(float(rowwise_s(c, cold, 20e6)) / 2)
        assert rowwise_s(c, warm, 75e6) == rowwise_s(c, cold, 75e6)
        halves = replace(warm, cache_partitions=2)
        assert rowwise_s(c, warm, 50e6) < rowwise_s(c, halves, 50e6) < rowwise_s(c, cold, 50e6)
        assert (np.diff(rowwise_s(c, warm, np.linspace(1, 1e8, 1000))) > 0).all()

    def test_a_block_waits_at_each_step_of_its_row(self) -> None:
        """One row of a gate, by one block: a round trip to memory for each 1,024 elements. Rows side by side take no longer."""
        c, on = RowwiseConstants(launch_us=0), MACHINES[0]
        gate = speed_of("silu_gated", eager=True)
        one, many = (rowwise_s(c, on, 6 * rows * 8192, gate, 8192) for rows in (1, on.sms // 4))
        assert one == pytest.approx(8 * TRIP_CYCLES / on.clock_per_s, rel=0.01)
        assert many == pytest.approx(float(one), rel=0.03)

    def test_threads_that_do_not_fit_move_nothing(self) -> None:
        """Blocks of 1,024 threads: a multiprocessor of 1,536 holds one of them, one of 2,048 two."""
        c, on = RowwiseConstants(launch_us=0), replace(MACHINES[0], bytes_per_s=1e18)
        gate = speed_of("silu_gated", eager=True)
        large, small = (rowwise_s(c, replace(on, threads=threads), 1e9, gate, 1024) for threads in (2048, 1536))
        assert small == pytest.approx(2 * float(large), rel=0.01)

    def test_eager_is_no_faster_than_fused_and_backward_no_faster_than_its_bytes(self) -> None:
        c = RowwiseConstants()
        for op, work in RATIOS.items():
            assert speed_of(op).slowdown == work.fused >= 1
            assert speed_of(f"{op}_backward").slowdown == work.backward >= 1
            for name in (op, f"{op}_backward"):
                fused, eager = (rowwise_s(c, MACHINES[1], 1e9, speed_of(name, eager=e), 4096) for e in (False, True))
                assert eager >= fused
        assert speed_of("silu_gated", eager=True) == speed_of("gelu_gated", eager=True) != Speed()
        assert speed_of("add") == speed_of("no such operator") == speed_of("add", eager=True) == Speed()

    def test_eager_kernels_sustain_what_was_measured(self) -> None:
        """The fractions of the memory's rate that public tables show for A100 and H100, to a tenth (layer norm: a fifth)."""
        sustained = {"rmsnorm": (0.34, 0.38), "layernorm": (0.48, 0.58), "silu_gated": (0.47, 0.54), "rope": (0.43, 0.46)}
        for op, fractions in {**sustained, "gelu": (0.64, 0.71), "add": (0.88, 0.98)}.items():
            for name, fraction in zip(("a100-80gb", "h100"), fractions, strict=True):
                kernel = Rowwise(op, 2**16, 8192, 1, 4)
                took_s = Estimator(shipped_fits.gpu(name), "fp16", SHELF, Options(eager=True)).estimate(kernel).seconds
                made = kernel.traffic_bytes / took_s / shipped_fits.gpu(name).memory_bytes_per_s
                assert made == pytest.approx(fraction, rel=0.2 if op == "layernorm" else 0.1), (op, name)

    def test_backward_ratios_are_those_measured(self) -> None:
        """On three passes over memory against two: softmax 2.6 times, layer norm 2.7."""
        for op, ratio in (("softmax", 2.6), ("layernorm", 2.7)):
            assert 3 * speed_of(f"{op}_backward").slowdown / (2 * speed_of(op).slowdown) == pytest.approx(ratio, rel=0.03)

    def test_a_lookup_waits_for_its_indices_not_its_bytes(self) -> None:
        c, on = RowwiseConstants(launch_us=0), MACHINES[0]
        assert lookup_s(c, on, 10**4, 10**4, 2 * 10**8) == lookup_s(c, on, 10**4, 10**4, 4 * 10**8)

    def test_few_ids_are_read_one_after_the_other(self) -> None:
        """Of any width; 16 ids take longer than 17, which another kernel reads. On an A100 14 and 4 us in whole microseconds."""
        c, on = RowwiseConstants(), machine(shipped_fits.gpu("a100-80gb"))
        took_us = {ids: 1e6 * float(lookup_s(c, on, ids, 4096, 4 * ids * 4096)) for ids in (1, 8, 16, 24)}
        assert took_us == pytest.approx({1: 3, 8: 8, 16: 14, 24: 4}, rel=0.4)
        assert took_us[16] - took_us[8] == pytest.approx(8 * (took_us[8] - took_us[1]) / 7)
        assert lookup_s(c, on, 16, 64, 4096) == lookup_s(c, on, 16, 8192, 4096) > 2 * lookup_s(c, on, 17, 4096, 4096)

    @pytest.mark.parametrize(
        "name, ghz", [("a100-80gb", 1.41), ("h100", 1.83), ("b200", 1.86), ("l40s", 2.49), ("v100-32gb", 1.53)]
    )
    def test_the_clock_is_in_the_peak(self, name: str, ghz: float) -> None:
        gpu = shipped_fits.gpu(name)
        assert clock_per_s(replace(gpu, clock_hz=0.0)) == pytest.approx(ghz * GB, rel=0.01)
        assert clock_per_s(gpu) == gpu.clock_hz


class TestExperts:
    def test_experts_that_get_no_token_are_not_read(self) -> None:
        c, on = GemmConstants(), MACHINES[1]
        assert moe_s(c, on, 1, 4096, 1024, (256, 8)) == moe_s(c, on, 1, 4096, 1024, (8, 8))

    def test_more_tokens_take_no_less(self) -> None:
        c, on = GemmConstants(), MACHINES[1]
        took = moe_s(c, on, 2 ** np.arange(4, 15), 4096, 1024, (64, 8))
        assert (np.diff(took) >= 0).all()


@pytest.mark.parametrize("name", catalog.files("gpus"))
class TestEveryGpu:
    def test_training_kernels_are_above_the_roofs_and_near_them(self, name: str) -> None:
        """Peak and bandwidth bound them: a large product takes less than 2.2 times as long, attention 3.2, an addition 1.4."""
        gpu = shipped_fits.gpu(name)
        cost, peak = measured_cost(gpu, "fp16", SHELF), gpu.matmul_peak("fp16")
        backward = replace(LONG, part=Part.INPUT_GRADIENT)
        for kernel, most in ((LARGE, 2.2), (LONG, 3.2), (backward, 3.2), (Rowwise("add", 8192, 8192, 2, 6), 1.4)):
            roof_s = max(kernel.flop / peak, kernel.traffic_bytes / gpu.memory_bytes_per_s)
            assert 1 < cost(kernel) / (roof_s * NS_PER_S) < most, kernel

    def test_what_it_sustains_acts_on_what_is_lent_and_on_nothing_else(self, name: str) -> None:
        """Half of either fraction changes no constant that was fitted on the GPU itself, and some that another lends it, where
        the fraction is stated and not fitted: fractions of a fitted GPU are of another model, and what it borrows keeps its own.
        """
        gpu = shipped_fits.gpu(name)
        cases = [(family, dtype) for family in FAMILIES for dtype in WIDTH]
        before = {case: best_fit_for(gpu, SHELF, *case) for case in cases}
        for fraction in ("compute_fraction", "memory_fraction"):
            less = replace(gpu, kernels=replace(gpu.kernels, **{fraction: getattr(gpu.kernels, fraction) / 2}))
            after = {case: best_fit_for(less, replace(SHELF, gpus={**SHELF.gpus, name: less}), *case) for case in cases}
            owners = {one.owner for case, one in before.items() if one and after[case].fit.constants != one.fit.constants}
            assert bool(owners) == (gpu.kernels.provenance == "transferred"), f"{fraction} on {name}"
            assert name not in owners

    def test_it_says_whose_word_it_is(self, name: str) -> None:
        made = Estimator(shipped_fits.gpu(name), "fp16", SHELF).estimate(LARGE)
        own = {fit.dtype for fit in SHELF.fits.get(name, ()) if fit.family == "gemm"}
        assert made.provenance == ("measured" if "bf16" in own else "transferred")
        assert 0 < made.sigma < 0.3
        assert not made.extrapolated


class TestNames:
    @pytest.mark.parametrize(
        "words, name",
        [
            ("A100-SXM-80", "a100-80gb"),
            ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
            ("A100-PCIE-40", "a100-pcie-40gb"),
            ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("GB300 NVL72", "gb300"),
            ("H100 PCIe", "h100-pcie"),
            ("h200_sxm", "h200"),
            ("B300-SXM", "b300"),
            ("GB200-NVL72", "gb200"),
            ("RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
            ("RTX-PRO-6000", "rtx-pro-6000"),
            ("NVIDIA A40", "a40"),
            ("V100-PCIE-32", "v100-pcie-32gb"),
            ("Tesla V100-SXM2-16GB", "v100-16gb"),
            ("AMD Instinct MI300X", "mi300x"),
        ],
    )
    def test_tables_spell_gpus_in_their_own_ways(self, words: str, name: str) -> None:
        assert gpu_named(words) == name

    @pytest.mark.parametrize("name", catalog.files("gpus"))
    def test_a_name_of_the_catalog_is_itself(self, name: str) -> None:
        assert gpu_named(name) == name

    @pytest.mark.parametrize("words", ["A1", "", "NVIDIA", "80GB PCIe"])
    def test_others_are_refused(self, words: str) -> None:
        with pytest.raises(UserError, match="no GPU"):
            gpu_named(words)

    @pytest.mark.parametrize("words", ["NVIDIA H100 NVL", "H100 NVL 94GB", "H100-NVL/PCIe"])
    def test_a_board_of_its_own(self, words: str) -> None:
        assert gpu_named(words) == "h100-nvl"

    @pytest.mark.parametrize(("words", "near"), [("H200-NVL", "h200"), ("NVIDIA A100 NVL", "a100")])
    def test_a_board_is_not_taken_for_the_module(self, words: str, near: str) -> None:
        with pytest.raises(UserError, match="no GPU") as caught:
            gpu_named(words)
        assert near in caught.value.hint


class TestChoosing:
    @pytest.mark.parametrize(
        "name, lender",
        [
            ("h200", "h100"),
            ("gh200-96gb", "h100"),
            ("b300", "gb300"),
            ("gb200", "b200"),
            ("gb300", "b300"),
            ("a100-40gb", "a100-80gb"),
            ("a40", "a100-80gb"),
            ("l40s", "a100-80gb"),
            ("rtx-pro-6000", "a100-80gb"),
        ],
    )
    def test_a_gpu_borrows_from_its_kin(self, name: str, lender: str) -> None:
        for family in ("gemm", "attention"):
            others = replace(SHELF, fits={owner: fits for owner, fits in SHELF.fits.items() if owner != name})
            chosen = best_fit_for(shipped_fits.gpu(name), others, family, "bf16")
            assert chosen
            assert (chosen.owner, chosen.provenance) == (lender, "transferred")

    @pytest.mark.parametrize("asked", ["torch_flow", "fa3", "cudnn"])
    def test_kernels_of_hopper_do_not_run_on_ada(self, asked: str) -> None:
        chosen = best_fit_for(shipped_fits.gpu("l40s"), SHELF, "attention", "bf16", asked)
        assert chosen
        assert (chosen.owner, chosen.fit.library) == ("a100-80gb", "flash_attention")

    def test_portable_kernels_run_in_narrower_formats(self) -> None:
        """FP8 on Ada: the kernels of Ampere at the peak of FP8, with the cast that was measured elsewhere."""
        l40s, h100 = shipped_fits.gpu("l40s"), shipped_fits.gpu("h100")
        chosen = best_fit_for(l40s, SHELF, "gemm", "fp8")
        assert chosen
        assert (chosen.owner, chosen.fit.dtype) == ("a100-80gb", "bf16")
        assert chosen.fit.cast
        half, byte = (
            Estimator(l40s, dtype, SHELF).estimate(replace(LARGE, element_bytes=width)).seconds
            for dtype, width in (("bf16", 2), ("fp8", 1))
        )
        assert 1.8 < half / byte < 2.1
        assert best_fit_for(h100, SHELF, "gemm", "fp8") != chosen

    def test_a_cast_that_is_lent_moves_its_bytes_and_waits_for_its_threads(self) -> None:
        """Faster memory helps a cast, but not as much as it is faster; slower memory leaves its threads time to spare."""
        h100, h200, l40s = (shipped_fits.gpu(name) for name in ("h100", "h200", "l40s"))
        took_s = {gpu.name: GEMM.cast_s(Estimator(gpu, "fp8", SHELF), 8192, 8192, 1) for gpu in (h100, h200, l40s)}
        assert 1 < took_s["h100"] / took_s["h200"] < h200.memory_bytes_per_s / h100.memory_bytes_per_s
        assert 1 < took_s["l40s"] / took_s["h100"] < h100.memory_bytes_per_s / l40s.memory_bytes_per_s
        assert took_s["l40s"] > 3 * 8192**2 / l40s.memory_bytes_per_s

    def test_what_is_lent_is_scaled_by_what_is_sustained(self) -> None:
        """GB200: 1.045 times a B200 on the same products, as public searches find, and not the 1.11 of the datasheets."""
        times = [
            Estimator(shipped_fits.gpu(name), "bf16", ELDEST).estimate(replace(LARGE, m=2**15)).seconds
            for name in ("b200", "gb200")
        ]
        assert times[0] / times[1] == pytest.approx(1.045, abs=0.03)

    def test_twice_the_exponentials_make_attention_faster_and_products_no_faster(self) -> None:
        b200, b300 = (Estimator(shipped_fits.gpu(name), "bf16", ELDEST) for name in ("b200", "b300"))
        narrow = replace(LONG, head_dim=64)
        assert b300.estimate(narrow).seconds < 0.9 * b200.estimate(narrow).seconds
        assert b300.estimate(LARGE).seconds > 0.98 * b200.estimate(LARGE).seconds

    def test_what_is_measured_is_known_better(self) -> None:
        own, lent = (best_fit_for(shipped_fits.gpu(name), SHELF, "gemm", "bf16") for name in ("h100", "h200"))
        assert own
        assert lent
        assert own.sigma < lent.sigma

    def test_beyond_the_measured_sizes(self) -> None:
        estimator = Estimator(shipped_fits.gpu("h100"), "bf16", SHELF)
        near, far = estimator.estimate(LARGE), estimator.estimate(replace(LARGE, m=2**20))
        assert far.extrapolated
        assert far.sigma > near.sigma

    def test_without_any_measurement(self) -> None:
        made = Estimator(shipped_fits.gpu("h100"), "bf16", replace(SHELF, fits={})).estimate(LARGE)
        assert (made.provenance, made.extrapolated) == ("roofline", True)

    def test_a_library_by_its_other_name(self) -> None:
        assert known_library("FA2", SHELF) == "flash_attention"
        with pytest.raises(UserError, match="no kernels of library 'fa9'") as caught:
            known_library("fa9", SHELF)
        assert "fa" in caught.value.hint

    def test_generations_of_attention(self) -> None:
        """Unfused, then each FlashAttention faster than the one before; the second does not fill Hopper's tensor cores."""
        h100 = shipped_fits.gpu("h100")

        def took(library: str) -> float:
            return Estimator(h100, "bf16", SHELF, Options(library)).estimate(LONG).seconds

        times = [took(library) for library in ("unfused", "fa1", "fa2", "fa3")]
        assert times == sorted(times, reverse=True)
        assert 1.4 < times[2] / times[3] < 2.2

    def test_a_library_that_does_not_run_here_is_not_called_measured(self) -> None:
        """FlashAttention 3 on an A100: what was measured there is FlashAttention 2."""
        estimator = Estimator(shipped_fits.gpu("a100-80gb"), "bf16", SHELF)
        own, asked = (replace(estimator, options=Options(name)).estimate(LONG) for name in ("fa2", "fa3"))
        assert (own.provenance, asked.provenance) == ("measured", "transferred")
        assert asked.seconds == own.seconds
        assert asked.sigma > own.sigma

    def test_fp8_without_its_cast_is_nearly_twice_as_fast(self) -> None:
        h100 = shipped_fits.gpu("h100")
        half, byte = Estimator(h100, "bf16", SHELF), Estimator(h100, "fp8", SHELF)
        ratio = half.estimate(LARGE).seconds / byte.estimate(replace(LARGE, element_bytes=1)).seconds
        assert 1.6 < ratio < 2.05
        assert GEMM.cast_s(byte, 8192, 8192, 1) > 10 / US_PER_S
        assert GEMM.cast_s(half, 8192, 8192, 2) == 0

    def test_fp32_products_run_as_tf32_unless_told_otherwise(self) -> None:
        a100 = shipped_fits.gpu("a100-80gb")
        product = replace(LARGE, element_bytes=4)
        tensor, plain = (Estimator(a100, "fp32", SHELF, Options(tensor_cores=t)).estimate(product) for t in (True, False))
        assert 5 < plain.seconds / tensor.seconds < 9


class TestCost:
    def test_nanoseconds_of_the_estimate(self) -> None:
        h100 = shipped_fits.gpu("h100")
        estimate = Estimator(h100, "bf16", SHELF).estimate
        kernels: list[Kernel] = [LARGE, LONG, Rowwise("rmsnorm", 8192, 8192, 2, 4), Rowwise("embedding", 8192, 8192, 2, 4)]
        cost = measured_cost(h100, "bf16", SHELF)
        assert [cost(kernel) for kernel in kernels] == [ns(estimate(kernel).seconds) for kernel in kernels]
        assert cost(LARGE) == pytest.approx(1.4e-3 * NS_PER_S, rel=0.05)

    def test_a_weight_gradient_adds_up_in_fp32(self) -> None:
        h100 = shipped_fits.gpu("h100")
        gradient = replace(LARGE, part=Part.WEIGHT_GRADIENT)
        apart = measured_cost(h100, "bf16", SHELF, Options(accumulate=False))
        cost = measured_cost(h100, "bf16", SHELF)
        assert cost(replace(LARGE, part=Part.INPUT_GRADIENT)) == cost(LARGE) == apart(gradient)
        found = best_fit_for(h100, SHELF, "gemm", "bf16")
        assert found
        assert isinstance(found.fit.constants, GemmConstants)
        took_s = cost(LARGE) / NS_PER_S
        c = found.fit.constants
        more_s = accumulation_s(c.accumulate, c.memory * h100.memory_bytes_per_s, 8192, 8192, took_s)
        assert cost(gradient) - cost(LARGE) == pytest.approx(float(more_s) * NS_PER_S, abs=2)

    def test_what_is_not_there_is_refused(self) -> None:
        with pytest.raises(UserError, match="no bf16 peak"):
            measured_cost(shipped_fits.gpu("v100-32gb"), "bf16", SHELF)
        with pytest.raises(UserError, match="no kernels of library"):
            measured_cost(shipped_fits.gpu("h100"), "bf16", SHELF, Options("no such"))


class TestFiles:
    @pytest.mark.parametrize("name", SHELF.fits)
    def test_a_file_says_what_it_was_written_from(self, name: str, tmp_path: Path) -> None:
        file = tmp_path / f"{name}.yaml"
        file.write_text(shipped_fits.text(name, SHELF.fits[name], "again"))
        assert shipped_fits.load(file) == (name, tuple(SHELF.fits[name]))
        shipped = (shipped_fits.folder() / f"{name}.yaml").read_text().splitlines()
        assert shipped[1:] == file.read_text().splitlines()[1:]
        assert re.search(r"\b20[12][0-9]$", shipped[0]), "when its sources were read"

    def test_constants_are_those_of_a_gpu(self) -> None:
        for fits in SHELF.fits.values():
            for fit in fits:
                assert 0 < fit.sigma < 0.5
                own = re.match(r"results/calibration/\w+-\d{4}-\d\d-\d\d ", fit.source)
                assert own or re.search(r"[\w-]+/[\w-]+@[0-9a-f]{7}\b|[\w-]+==[\d.]+", fit.source), (
                    "a repository at a commit, a package, or our own timings"
                )
                assert own or (fit.family == "attention") == ("; backward: " in fit.source)
                values = {f.name: getattr(fit.constants, f.name) for f in fields(fit.constants)}
                assert all(0 < values[name] <= 1 for name in ("compute", "memory", "quantum", "stream") if name in values), fit

    def test_ratios_of_operators_come_back(self, tmp_path: Path) -> None:
        """A pair has an error of its own; a bare number has that of the fit."""
        file = tmp_path / "mine.yaml"
        fit = replace(rowwise_fit(), ratios={"rmsnorm": (1.3, 0.04), "silu_gated_backward": (1.1, 0.02)})
        file.write_text(shipped_fits.text("h100", [fit], "mine"))
        assert shipped_fits.load(file) == ("h100", (fit,))
        file.write_text(file.read_text().replace("rmsnorm: [1.3, 0.04]", "rmsnorm: 1.3"))
        ((again,),) = [fits for _, fits in (shipped_fits.load(file),)]
        assert again.ratios["rmsnorm"] == (1.3, fit.sigma)

    @pytest.mark.parametrize(
        "old, new", [("tiles: plain_wide", "tiles: pln"), ("tiles: plain_wide", "tiles: 3"), ("ramp: ", "ramp: some")]
    )
    def test_words_that_are_no_constants_are_refused(self, tmp_path: Path, old: str, new: str) -> None:
        file = tmp_path / "mine.yaml"
        text = (shipped_fits.folder() / "l4.yaml").read_text()
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(UserError, match=new.partition(":")[0]):
            shipped_fits.load(file)

    @pytest.mark.parametrize("old, new", [("rowwise", "moe"), ("[1.3, 0.04]", "0"), ("[1.3, 0.04]", "[0, 1]"), ("1.3", "much")])
    def test_ratios_that_make_no_sense_are_refused(self, tmp_path: Path, old: str, new: str) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text(shipped_fits.text("h100", [replace(rowwise_fit(), ratios={"rmsnorm": (1.3, 0.04)})], "mine"))
        file.write_text(file.read_text().replace(old, new, 1))
        with pytest.raises(UserError, match="ratios"):
            shipped_fits.load(file)

    @pytest.mark.parametrize(
        "old, new, where, says",
        [
            (r"launch_us: \S+", "launch_us: 1.0e+15", "constants.launch_us", "1000000000000000.0 is too large"),
            (r"\bcompute: \S+", "compute: 1.95", "constants.compute", "1.95 is too much"),
            (r"\bnorm: \S+", "norm: 1000", "constants.norm", "1000 is too much"),
            (r"\bm: \[576, 129280\]", "m: [576, 57]", "ranges.m", "576 to 57 holds nothing"),
            ("dtype: bf16", "dtype: bf15", "dtype", "'bf15' is not a dtype"),
        ],
    )
    def test_numbers_that_no_kernel_has_are_refused(self, tmp_path: Path, old: str, new: str, where: str, says: str) -> None:
        file = tmp_path / "mine.yaml"
        text = (shipped_fits.folder() / "a100-pcie-80gb.yaml").read_text()
        assert re.search(old, text)
        file.write_text(re.sub(old, new, text, count=1))
        with pytest.raises(UserError, match=re.escape(f"{where}: {says}")):
            shipped_fits.load(file)

    def test_formats_are_those_that_tables_hold(self) -> None:
        assert set(shipped_fits.DTYPES) == set(WIDTH)

    def test_a_wrong_constant_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "x.yaml"
        text = (shipped_fits.folder() / "h100.yaml").read_text().replace("ramp:", "rampe:", 1)
        file.write_text(text)
        with pytest.raises(UserError, match="rampe"):
            shipped_fits.load(file)


def rowwise_fit() -> Fit:
    return next(fit for fit in SHELF.fits["a100-pcie-80gb"] if fit.family == "rowwise")


class TestRatios:
    """Operators that a profile measured themselves."""

    OP = Rowwise("rmsnorm", 8192, 8192, 2, 4)

    def estimate(self, gpu: str, times: float, kernel: Rowwise = OP, *, eager: bool = False) -> Estimate:
        fit = replace(rowwise_fit(), rows=0, ratios=dict.fromkeys(("rmsnorm", "cross_entropy"), (times, 0.03)))
        known = shipped_fits.overlaid(shipped_fits.gpu("h100"), [fit])
        others = {
            name: fits if name == "h100" else [one for one in fits if one.family != "rowwise"]
            for name, fits in known.fits.items()
        }
        fit_library = replace(known, fits=others)
        return Estimator(shipped_fits.gpu(gpu), "bf16", fit_library, Options(eager=eager)).estimate(kernel)

    def test_the_ratio_is_of_the_whole_time_of_a_pointwise_kernel(self) -> None:
        plain = self.estimate("h100", 1.7, replace(self.OP, op="add"))
        made = self.estimate("h100", 1.7)
        assert made.seconds == pytest.approx(1.7 * plain.seconds)
        assert (made.provenance, made.sigma) == ("measured", 0.03)
        assert self.estimate("h100", 1e-6).seconds == pytest.approx(self.OP.traffic_bytes / 3350e9)

    def test_another_gpu_borrows_it(self) -> None:
        made = self.estimate("h200", 1.7)
        assert made.provenance == "transferred"
        assert 0.03 < made.sigma < 0.2
        times = made.seconds / self.estimate("h200", 1.7, replace(self.OP, op="add")).seconds
        assert 1.7 < times < 1.7 * 4.8 / 3.35, "more so where the memory delivers more to as many threads"

    def test_it_speaks_for_eager_frameworks_too(self) -> None:
        """It is of the operator that such a framework runs."""
        assert self.estimate("h100", 1.7, eager=True) == self.estimate("h100", 1.7)

    def test_other_operators_and_those_that_eager_frameworks_run_as_several_keep_theirs(self) -> None:
        for kernel, eager in ((replace(self.OP, op="layernorm"), False), (replace(self.OP, op="cross_entropy"), True)):
            made = self.estimate("h100", 1.7, kernel, eager=eager)
            assert made.provenance == "transferred"
            assert made == self.estimate("h100", 3.0, kernel, eager=eager)


@pytest.mark.parametrize("op", ["rmsnorm", "layernorm", "softmax", "add"])
def test_more_bandwidth_never_slows_an_operator_known_from_another_gpu(op: str) -> None:
    b200 = SHELF.gpus["b200"]
    faster = [replace(b200, memory_bytes_per_s=terabytes * 1000 * GB) for terabytes in (2, 3.35, 5, 8, 10.4, 16)]
    times = [Estimator(gpu, "bf16", SHELF).estimate(Rowwise(op, 32768, 8192, 2, 4)).seconds for gpu in faster]
    assert times == sorted(times, reverse=True)


def test_the_launch_of_an_operator_does_not_wait_for_memory() -> None:
    def empty_s(gpu: str, op: str) -> float:
        return Estimator(SHELF.gpus[gpu], "bf16", SHELF).estimate(Rowwise(op, 8, 64, 2, 4)).seconds

    on_h100, on_b200 = (empty_s(gpu, "rmsnorm") / empty_s(gpu, "add") for gpu in ("h100", "b200"))
    assert on_b200 == pytest.approx(on_h100, rel=0.01)


class TestWhoseWordItIs:
    def test_a_backward_pass_that_nobody_measured_is_transferred(self) -> None:
        back = replace(LONG, part=Part.INPUT_GRADIENT)
        found = {
            gpu: Estimator(SHELF.gpus[gpu], "bf16", SHELF).estimate(back).provenance for gpu in ("a100-80gb", "h100", "b200")
        }
        assert found == {"a100-80gb": "measured", "h100": "transferred", "b200": "transferred"}
        for gpu in found:
            assert Estimator(SHELF.gpus[gpu], "bf16", SHELF).estimate(LONG).provenance == "measured"

    @pytest.mark.parametrize(
        "gpu, dtype, word", [("h100", "fp16", "measured"), ("h100", "tf32", "transferred"), ("b200", "mxfp8", "transferred")]
    )
    def test_a_format_is_measured_or_like_one_that_is(self, gpu: str, dtype: str, word: str) -> None:
        assert Estimator(SHELF.gpus[gpu], dtype, SHELF).estimate(LARGE).provenance == word

    def test_many_products_at_once_are_beyond_what_was_measured(self) -> None:
        by = Estimator(SHELF.gpus["h100"], "bf16", SHELF)
        assert not by.estimate(LARGE).extrapolated
        assert by.estimate(replace(LARGE, batch=64)).extrapolated

    def test_a_ratio_of_other_gpus_and_an_odd_width_leave_more_open(self) -> None:
        by = Estimator(SHELF.gpus["a100-80gb"], "bf16", SHELF)
        add, norm = (by.estimate(Rowwise(op, 8192, 8192, 2, 6)) for op in ("add", "softmax"))
        assert norm.sigma > add.sigma + 0.05
        assert by.estimate(replace(LONG, head_dim=72)).sigma > by.estimate(replace(LONG, head_dim=80)).sigma + 0.1

    @pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp8_block", "fp32", "nvfp4"])
    def test_the_next_of_a_kind_is_no_slower(self, dtype: str) -> None:
        """B300, and GB200, beside B200: where B200 was measured and where it borrows itself. B300's memory is 4% slower."""
        sizes = [(m, n, k) for m in (64, 4096, 16384) for n in (4096, 14336) for k in (4096, 14336)]
        for m, n, k in sizes:
            took = {
                gpu: Estimator(shipped_fits.gpu(gpu), dtype, ELDEST).estimate(Gemm(m, n, k, 2)).seconds
                for gpu in ("b200", "b300", "gb200")
            }
            assert took["gb200"] <= took["b200"] * 1.001
            assert took["b300"] <= took["b200"] * 1.045

    def test_experts_in_a_narrow_format_borrow_those_in_16_bits(self) -> None:
        experts = Experts(4096, 4096, 4096, 128, 8, 2)
        for dtype in ("fp8", "nvfp4"):
            said = Estimator(SHELF.gpus["b200"], dtype, SHELF).estimate(experts)
            usual = Estimator(SHELF.gpus["b200"], "bf16", SHELF).estimate(experts)
            assert said.provenance == "transferred"
            assert usual.seconds / 5 < said.seconds < usual.seconds

    def test_the_same_chip_lends_first(self) -> None:
        chosen = best_fit_for(shipped_fits.gpu("v100-32gb"), SHELF, "gemm", "fp32")
        assert chosen
        assert chosen.owner == "v100-pcie-32gb"


class TestRivals:
    """Two libraries in one profile, of which neither is always the faster."""

    @staticmethod
    def fits() -> list[Fit]:
        (fa3,) = [replace(f, backward_rows=9) for f in SHELF.fits["h100"] if f.library == "fa3"]
        c = fa3.constants
        assert isinstance(c, AttentionConstants)
        slow_start = replace(c, launch_us=400.0)
        slow_work = replace(c, compute=c.compute / 3, exponential=3 * c.exponential)
        return [replace(fa3, library="flash_attention", constants=slow_work), replace(fa3, library="cudnn", constants=slow_start)]

    @given(st.integers(6, 14), st.booleans())
    def test_it_is_the_fastest_of_the_profile(self, power: int, backward: bool) -> None:
        """Forward and backward together: a step takes both from one library."""
        gpu = shipped_fits.gpu("h100")
        fit_library = shipped_fits.overlaid(gpu, self.fits())
        kernel = replace(LONG, seq=2**power)
        by = Estimator(gpu, "bf16", fit_library)
        whole = {}
        for library in ("flash_attention", "cudnn"):
            alone = shipped_fits.overlaid(gpu, [f for f in self.fits() if f.library == library])
            own = Estimator(gpu, "bf16", alone)
            whole[library] = sum(own.estimate(replace(kernel, part=p)).seconds for p in (Part.FORWARD, Part.INPUT_GRADIENT))
        made = by.estimate(replace(kernel, part=Part.INPUT_GRADIENT) if backward else kernel)
        assert made.provenance == "measured"
        assert min(whole, key=whole.__getitem__) in made.model

    def test_both_win_somewhere_and_a_name_decides(self) -> None:
        gpu = shipped_fits.gpu("h100")
        fit_library = shipped_fits.overlaid(gpu, self.fits())
        models = [Estimator(gpu, "bf16", fit_library).estimate(replace(LONG, seq=seq)).model for seq in (64, 2**14)]
        assert ["flash_attention" in models[0], "cudnn" in models[1]] == [True, True]
        named = Estimator(gpu, "bf16", fit_library, Options("fa2")).estimate(replace(LONG, seq=2**14))
        assert "flash_attention" in named.model

    def test_what_ships_keeps_its_order(self) -> None:
        """Fits that ship are of inference libraries too: a training run takes the usual one, faster or not."""
        gpu = shipped_fits.gpu("h100")
        for kernel in (LONG, replace(LONG, seq=128), replace(LONG, head_dim=64)):
            plain, named = (Estimator(gpu, "bf16", SHELF, Options(name)).estimate(kernel) for name in ("", "fa3"))
            assert plain == named


class TestSite:
    @given(st.sampled_from([LARGE, LONG, Rowwise("rmsnorm", 8192, 8192, 2, 4), Rowwise("embedding", 8192, 8192, 2, 4)]),
           st.floats(0.01, 100), st.sampled_from(["", "unfused"]))  # fmt: skip
    def test_one_scalar_multiplies_every_kernel(self, kernel: Kernel, times: float, library: str) -> None:
        gpu = shipped_fits.gpu("h100")
        plain, site = (Estimator(g, "bf16", SHELF, Options(library)) for g in (gpu, replace(gpu, site_scalar=times)))
        first, second = plain.estimate(kernel), site.estimate(kernel)
        assert second.seconds == pytest.approx(times * first.seconds)
        assert (second.provenance, second.model) == (first.provenance, first.model)
        assert second.sigma == pytest.approx(first.sigma)
        assert GEMM.cast_s(site, 64, 64, 1) == times * GEMM.cast_s(plain, 64, 64, 1)


@pytest.mark.parametrize(
    ("gpu", "op", "says"),
    [
        ("a100-pcie-80gb", "add", "measured"),
        ("a100-pcie-80gb", "embedding", "transferred"),
        ("a100-pcie-80gb", "rmsnorm", "transferred"),
        ("a100-pcie-80gb", "silu_gated_backward", "transferred"),
        ("a100-pcie-80gb", "adam", "transferred"),
        ("h100", "add", "measured"),
        ("b200", "add", "transferred"),
        ("a100-80gb", "add", "transferred"),
    ],
)
def test_only_what_was_timed_on_a_gpu_is_called_measured(gpu: str, op: str, says: str) -> None:
    estimator = Estimator(shipped_fits.gpu(gpu), "bf16", shipped_fits.shipped())
    assert estimator.estimate(Rowwise(op, 8192, 8192, 2, 6)).provenance == says
