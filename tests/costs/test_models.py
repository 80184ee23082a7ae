"""Laws of the kernel models: what holds for every GPU, whatever the constants."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.attention import ROWS, AttentionConstants, Heads, attention_s
from simulator.costs.gemm import TILES, GemmConstants, accumulation_s, gemm_s
from simulator.costs.machine import Machine
from simulator.costs.measured import Estimator, Options, measured_cost
from simulator.costs.moe import moe_s
from simulator.costs.roofline import roofline
from simulator.costs.rowwise import WORK, RowwiseConstants, clock_per_s, launches, lookup_s, rowwise_s, slowness
from simulator.costs.shelf import choose, known_library
from simulator.errors import UserError
from simulator.kernels import Attention, Gemm, Kernel, Part, Rowwise
from simulator.study import catalog, kernel_fits
from simulator.units import GB, NS_PER_S, TFLOP, US_PER_S, ns

SHELF = kernel_fits.shelf()
MACHINES = (
    Machine(312 * TFLOP, 2039 * GB, 108),
    Machine(989 * TFLOP, 3350 * GB, 132),
    Machine(2250 * TFLOP, 8000 * GB, 148),
)
TOLERANCE = 1e-9
LARGE = Gemm(8192, 8192, 8192, 2)
LONG = Attention(2, 8192, 32, 8, 128, True, 2)

of_family = {
    family: [f.constants for fits in SHELF.fits.values() for f in fits if f.family == family] for family in kernel_fits.CONSTANTS
}
machines = st.sampled_from(MACHINES)
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

    def test_a_quantum_of_nothing_spreads_the_last_wave(self) -> None:
        on, c = MACHINES[1], GemmConstants(quantum=1e-12)
        took = gemm_s(c, on, 256 * np.arange(2 * on.sms, 4 * on.sms), 2048, 4096)
        assert np.diff(took).max() < 0.02 * took[0]

    def test_few_tiles_over_a_long_dimension_are_split(self) -> None:
        on, split = MACHINES[1], GemmConstants()
        never = replace(split, split_us=1e9)
        assert gemm_s(split, on, 128, 128, 65536) < 0.3 * gemm_s(never, on, 128, 128, 65536)
        assert gemm_s(split, on, 8192, 8192, 8192) == gemm_s(never, on, 8192, 8192, 8192)

    @given(gemms, machines, st.integers(10, 14))
    def test_a_vector_product_takes_the_time_of_its_bytes(self, c: GemmConstants, on: Machine, power: int) -> None:
        launch_s = c.launch_us / US_PER_S
        once, twice = (gemm_s(c, on, 1, 2**power * i, 2**14) - launch_s for i in (1, 2))
        assert twice <= 2.05 * once
        large = gemm_s(c, on, 1, 2**17, 2**14) - launch_s
        assert large == pytest.approx(2 * 2**31 / (c.memory * on.bytes_per_s), rel=0.4)

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
        assert took(seq=seq + ROWS) >= now
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

    def test_causal_takes_half_of_a_long_sequence(self) -> None:
        c, on = AttentionConstants(), MACHINES[1]
        ratio = attention_s(c, on, Heads(8, 32768, 32, 32, 128, 1)) / attention_s(c, on, Heads(8, 32768, 32, 32, 128, 0))
        assert ratio == pytest.approx(0.5, abs=0.03)

    def test_parts_of_a_causal_sequence_add_up(self) -> None:
        c, on, half = AttentionConstants(launch_us=0, throttle=0), MACHINES[1], 32768
        parts = [attention_s(c, on, Heads(4, half, 32, 32, 128, 1, before)) for before in (0, half)]
        assert sum(parts) == pytest.approx(float(attention_s(c, on, Heads(4, 2 * half, 32, 32, 128, 1))), rel=0.03)

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

    def test_eager_is_no_faster_than_fused_and_backward_no_faster_than_its_bytes(self) -> None:
        for op, work in WORK.items():
            assert slowness(op, eager=True) >= slowness(op) >= 1
            assert slowness(f"{op}_backward") == work.backward >= 1
            assert launches(op, eager=True) >= launches(op) == 1
        assert slowness("silu_gated", eager=True) == slowness("gelu_gated", eager=True) > 1
        assert slowness("add") == slowness("no such operator") == 1

    def test_backward_ratios_are_those_measured(self) -> None:
        """On three passes over memory against two: softmax 2.6 times, layer norm 2.7."""
        for op, ratio in (("softmax", 2.6), ("layernorm", 2.7)):
            assert 3 * slowness(f"{op}_backward") / (2 * slowness(op)) == pytest.approx(ratio, rel=0.03)

    def test_a_lookup_waits_for_its_indices_not_its_bytes(self) -> None:
        c, on = RowwiseConstants(launch_us=0), MACHINES[0]
        assert lookup_s(c, on, 10**8, 2 * 10**8) == lookup_s(c, on, 10**8, 4 * 10**8)

    @pytest.mark.parametrize(
        "name, ghz", [("a100-80gb", 1.41), ("h100", 1.83), ("b200", 1.86), ("l40s", 2.49), ("v100-32gb", 1.53)]
    )
    def test_the_clock_is_in_the_peak(self, name: str, ghz: float) -> None:
        gpu = kernel_fits.gpu(name)
        assert clock_per_s(gpu.peak("fp16"), gpu.sms) == pytest.approx(ghz * GB, rel=0.01)


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
    def test_training_kernels_are_near_the_roofline(self, name: str) -> None:
        gpu = kernel_fits.gpu(name)
        cost, roof = measured_cost(gpu, "fp16", SHELF), roofline(gpu, "fp16")
        backward = replace(LONG, part=Part.INPUT_GRADIENT)
        for kernel in (LARGE, LONG, backward, Rowwise("add", 8192, 8192, 2, 6)):
            assert 0.5 < cost(kernel) / roof(kernel) < 2, kernel

    def test_it_says_whose_word_it_is(self, name: str) -> None:
        made = Estimator(kernel_fits.gpu(name), "fp16", SHELF).estimate(LARGE)
        assert made.provenance == ("measured" if name in ("a100-80gb", "a100-pcie-80gb", "h100", "b200") else "transferred")
        assert 0 < made.sigma < 0.3
        assert not made.extrapolated


class TestChoosing:
    @pytest.mark.parametrize(
        "name, lender",
        [
            ("h200", "h100"),
            ("gh200-96gb", "h100"),
            ("b300", "b200"),
            ("gb200", "b200"),
            ("gb300", "b200"),
            ("a100-40gb", "a100-80gb"),
        ],
    )
    def test_a_gpu_borrows_from_its_kin(self, name: str, lender: str) -> None:
        for family in ("gemm", "attention"):
            chosen = choose(kernel_fits.gpu(name), SHELF, family, "bf16")
            assert chosen
            assert (chosen.owner, chosen.provenance) == (lender, "transferred")

    def test_what_is_measured_is_known_better(self) -> None:
        own, lent = (choose(kernel_fits.gpu(name), SHELF, "gemm", "bf16") for name in ("h100", "h200"))
        assert own
        assert lent
        assert own.sigma < lent.sigma

    def test_beyond_the_measured_sizes(self) -> None:
        estimator = Estimator(kernel_fits.gpu("h100"), "bf16", SHELF)
        near, far = estimator.estimate(LARGE), estimator.estimate(replace(LARGE, m=2**20))
        assert far.extrapolated
        assert far.sigma > near.sigma

    def test_without_any_measurement(self) -> None:
        made = Estimator(kernel_fits.gpu("h100"), "bf16", replace(SHELF, fits={})).estimate(LARGE)
        assert (made.provenance, made.extrapolated) == ("roofline", True)

    def test_a_library_by_its_other_name(self) -> None:
        assert known_library("FA2", SHELF) == "flash_attention"
        with pytest.raises(UserError, match="no kernels of library 'fa9'") as caught:
            known_library("fa9", SHELF)
        assert "fa" in caught.value.hint

    def test_generations_of_attention(self) -> None:
        """Unfused, then each FlashAttention faster than the one before; the second does not fill Hopper's tensor cores."""
        h100 = kernel_fits.gpu("h100")

        def took(library: str) -> float:
            return Estimator(h100, "bf16", SHELF, Options(library)).estimate(LONG).seconds

        times = [took(library) for library in ("unfused", "fa1", "fa2", "fa3")]
        assert times == sorted(times, reverse=True)
        assert 1.4 < times[2] / times[3] < 2.2

    def test_fp8_without_its_cast_is_nearly_twice_as_fast(self) -> None:
        h100 = kernel_fits.gpu("h100")
        half, byte = Estimator(h100, "bf16", SHELF), Estimator(h100, "fp8", SHELF)
        ratio = half.estimate(LARGE).seconds / byte.estimate(replace(LARGE, element_bytes=1)).seconds
        assert 1.6 < ratio < 2.05
        assert byte.cast_s(8192, 8192, 1) > 10 / US_PER_S
        assert half.cast_s(8192, 8192, 2) == 0

    def test_fp32_products_run_as_tf32_unless_told_otherwise(self) -> None:
        a100 = kernel_fits.gpu("a100-80gb")
        product = replace(LARGE, element_bytes=4)
        tensor, plain = (Estimator(a100, "fp32", SHELF, Options(tensor_cores=t)).estimate(product) for t in (True, False))
        assert 5 < plain.seconds / tensor.seconds < 9


class TestCost:
    def test_nanoseconds_of_the_estimate(self) -> None:
        h100 = kernel_fits.gpu("h100")
        estimate = Estimator(h100, "bf16", SHELF).estimate
        kernels: list[Kernel] = [LARGE, LONG, Rowwise("rmsnorm", 8192, 8192, 2, 4), Rowwise("embedding", 8192, 8192, 2, 4)]
        cost = measured_cost(h100, "bf16", SHELF)
        assert [cost(kernel) for kernel in kernels] == [ns(estimate(kernel).seconds) for kernel in kernels]
        assert cost(LARGE) == pytest.approx(1.4e-3 * NS_PER_S, rel=0.05)

    def test_a_weight_gradient_adds_up_in_fp32(self) -> None:
        h100 = kernel_fits.gpu("h100")
        gradient = replace(LARGE, part=Part.WEIGHT_GRADIENT)
        apart = measured_cost(h100, "bf16", SHELF, Options(accumulate=False))
        cost = measured_cost(h100, "bf16", SHELF)
        assert cost(replace(LARGE, part=Part.INPUT_GRADIENT)) == cost(LARGE) == apart(gradient)
        found = choose(h100, SHELF, "gemm", "bf16")
        assert found
        assert isinstance(found.fit.constants, GemmConstants)
        more_s = accumulation_s(found.fit.constants, Estimator(h100, "bf16", SHELF).machine, 8192, 8192)
        assert cost(gradient) - cost(LARGE) == pytest.approx(float(more_s) * NS_PER_S, abs=2)

    def test_what_is_not_there_is_refused(self) -> None:
        with pytest.raises(UserError, match="no bf16 peak"):
            measured_cost(kernel_fits.gpu("v100-32gb"), "bf16", SHELF)
        with pytest.raises(UserError, match="no kernels of library"):
            measured_cost(kernel_fits.gpu("h100"), "bf16", SHELF, Options("no such"))


class TestFiles:
    @pytest.mark.parametrize("name", SHELF.fits)
    def test_a_file_says_what_it_was_written_from(self, name: str, tmp_path: Path) -> None:
        file = tmp_path / f"{name}.yaml"
        file.write_text(kernel_fits.text(name, SHELF.fits[name], "again"))
        assert kernel_fits.load(file) == (name, tuple(SHELF.fits[name]))
        assert (kernel_fits.folder() / f"{name}.yaml").read_text().splitlines()[1:] == file.read_text().splitlines()[1:]

    def test_constants_are_those_of_a_gpu(self) -> None:
        for fits in SHELF.fits.values():
            for fit in fits:
                assert 0 < fit.sigma < 0.5
                assert fit.source
                values = {f.name: getattr(fit.constants, f.name) for f in fields(fit.constants)}
                assert all(0 < values[name] <= 1 for name in ("compute", "memory", "quantum", "stream") if name in values), fit

    def test_a_wrong_constant_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "x.yaml"
        text = (kernel_fits.folder() / "h100.yaml").read_text().replace("ramp:", "rampe:", 1)
        file.write_text(text)
        with pytest.raises(UserError, match="rampe"):
            kernel_fits.load(file)
