"""Rules by which constants are borrowed from another GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.config import shipped_fits
from simulator.costs.kernels import fit_choice
from simulator.costs.kernels.estimator import EXTRAPOLATION_FACTOR, Estimator, Options
from simulator.costs.kernels.family import ABOVE_ONE, LOG, MOST_OF_PEAK, SHARE, SUSTAINED, Fit, Scale, Transfer, families
from simulator.costs.kernels.fit_choice import PLAIN_SIGMA, FitLibrary, SelectedFit, best_fit_for
from simulator.costs.kernels.gemm import FAMILY as GEMM
from simulator.costs.kernels.gemm import GemmConstants, gemm_s
from simulator.costs.kernels.gpu_model import ARCHITECTURES, cached_share, clock_per_s, fetched_s, machine, same_kernels
from simulator.costs.kernels.rowwise import FAMILY as ROWWISE
from simulator.costs.kernels.rowwise import OPERATOR_US, RowwiseConstants
from simulator.kernels import Attention, Gemm, Rowwise

SHELF = shipped_fits.shipped()
LARGE = Gemm(8192, 8192, 8192, 4)
PLAIN = Options(tensor_cores=False)


def without(*names: str) -> FitLibrary:
    return replace(SHELF, fits={name: fits for name, fits in SHELF.fits.items() if name not in names})


def test_boards_fed_by_their_slot_lend_fp32_to_their_like_only() -> None:
    assert best_fit_for(shipped_fits.gpu("h100"), without("h100"), "gemm", "fp32").owner not in ("l4", "p4", "t4")


def test_fp32_on_a_board_with_little_power_is_bound_by_it_and_less_power_never_helps() -> None:
    rest, l4 = without("l4"), shipped_fits.gpu("l4")
    took = [Estimator(replace(l4, tdp_w=watts), "fp32", rest, PLAIN).estimate(LARGE).seconds for watts in (300, 150, 72, 40)]
    assert took == sorted(took)
    assert took[2] > 1.5 * took[0]


def test_shares_of_peaks_stay_shares_and_launches_are_cycles() -> None:
    h100, a100 = shipped_fits.gpu("h100"), shipped_fits.gpu("a100-80gb")
    (own,) = (fit for fit in SHELF.fits["a100-80gb"] if (fit.family, fit.dtype, fit.library) == ("gemm", "bf16", "any"))
    made = best_fit_for(h100, replace(SHELF, fits={"a100-80gb": [own]}), "gemm", "bf16").fit.constants
    assert (made.compute, made.memory) == (own.constants.compute, own.constants.memory)
    assert made.launch_us == pytest.approx(own.constants.launch_us * clock_per_s(a100) / clock_per_s(h100))


def test_a_slower_clock_stretches_launches_without_a_limit_and_no_share_grows_beyond_the_peak() -> None:
    h100 = shipped_fits.gpu("h100")
    lent = replace(h100.kernels, provenance="transferred")
    slow = replace(h100, clock_hz=clock_per_s(h100) / 4, kernels=replace(lent, compute_fraction=1.0))
    half = replace(h100, kernels=replace(lent, compute_fraction=0.5))
    constants = GemmConstants(launch_us=2.0, split_us=0.5, compute=0.8)
    fit = Fit("gemm", "bf16", "any", constants, 0.05, {})
    made = GEMM.transferred(fit, Transfer(half, slow, "bf16", False, ())).constants
    assert (made.launch_us, made.split_us, made.compute) == pytest.approx((8.0, 2.0, MOST_OF_PEAK))
    assert GEMM.transferred(fit, Transfer(slow, half, "bf16", False, ())).constants.compute == pytest.approx(0.4)


@pytest.mark.parametrize("of_peak", [0.3, 0.7, 0.95])
def test_the_power_of_a_board_bounds_what_large_gemms_in_fp32_sustain_on_it(of_peak: float) -> None:
    """A board of another architecture, with a quarter of the power and the same multiprocessors: its GEMMs sustain half of the
    flop/s of the owner's, in an endless loop, without launches and ramps."""
    v100, t4 = shipped_fits.gpu("v100-pcie-32gb"), shipped_fits.gpu("t4")
    small = replace(t4, sms=v100.sms, tdp_w=v100.tdp_w / 4)
    constants = GemmConstants(compute=of_peak, power=0.1, throttle=0.3, tile=1.0)
    fit = Fit("gemm", "fp32", "any", constants, 0.05, {})
    made = GEMM.transferred(fit, Transfer(v100, small, "fp32", False, ())).constants

    def sustained(fitted: GemmConstants, flop_per_s: float) -> float:
        on = replace(machine(v100, "fp32"), flop_per_s=flop_per_s, bytes_per_s=float("inf"))
        side = 2**17
        return 2 * side**3 / float(gemm_s(fitted, on, side, side, side, launches=SUSTAINED))

    own, lent = sustained(constants, v100.peak("fp32")), sustained(made, small.peak("fp32"))
    assert lent == pytest.approx(own / 2, rel=0.02)


@pytest.mark.parametrize("scale, values", [(LOG, (0.01, 1.0, 300.0)), (SHARE, (0.01, 0.5, 0.99)), (ABOVE_ONE, (1.01, 2.0, 60.0))])
def test_the_scale_of_a_constant_leads_there_and_back(scale: Scale, values: tuple[float, ...]) -> None:
    for value in values:
        assert scale.outward(scale.inward(value)) == pytest.approx(value)


def test_gpus_of_an_architecture_that_is_not_listed_run_the_kernels_of_their_own_architecture_only() -> None:
    h100 = shipped_fits.gpu("h100")
    nameless, new, newer = (replace(h100, architecture=name) for name in ("", "sm_130", "sm_140"))
    assert same_kernels(new, new)
    assert not any(same_kernels(*pair) for pair in ((new, newer), (nameless, nameless), (new, h100), (nameless, h100)))
    assert same_kernels(h100, shipped_fits.gpu("h200"))


def test_sizes_of_multiprocessors_are_those_that_were_built() -> None:
    for built in ARCHITECTURES.values():
        assert built.lanes in (64, 128)
        assert built.exponentials in (16, 32)
        assert built.threads in (1024, 1536, 2048)
        assert built.cache_cycle_bytes in (16, 20)
        assert built.cache_partitions in (1, 2)


def test_a_fit_that_was_scaled_to_a_few_rows_is_transferred_within_the_sizes_of_the_fit_and_uncertain_beyond() -> None:
    by = Estimator(shipped_fits.gpu("h100"), "bf16", SHELF)
    fit = Fit("gemm", "bf16", "any", GemmConstants(), 0.05, {"m": (512, 1024)})
    sizes = {"m": 4096.0}
    for ranges, beyond in (({"m": (64, 8192)}, False), ({"m": (64, 2048)}, True), ({}, True), (None, True)):
        chosen = SelectedFit(replace(fit, transferred_ranges=ranges), "h100", "measured", 0.05)
        made = by.estimate_from(chosen, 1.0, "gemm", sizes)
        assert made.extrapolated == beyond
        assert made.sigma == pytest.approx(0.05 * (EXTRAPOLATION_FACTOR if beyond else 1))
        assert made.provenance == ("measured" if ranges is None else "transferred")
        assert by.estimate_from(chosen, 1.0, "gemm", {"m": 1024.0}).provenance == "measured"
    plain = SelectedFit(fit, "h100", "measured", 0.05)
    assert [by.estimate_from(plain, 1.0, "gemm", {"m": m}).extrapolated for m in (500.0, 512.0, 1024.0, 1040.0)] == [1, 0, 0, 1]


@pytest.mark.parametrize("gpu", ["l4", "t4", "h100", "b200"])
def test_the_host_takes_what_it_takes_where_rows_do_not_tell(gpu: str) -> None:
    assert 14 < Estimator(shipped_fits.gpu(gpu), "fp32", SHELF).beside(OPERATOR_US, "rowwise") < 18


def test_two_partitions_hold_less_and_a_cache_is_no_slower_than_memory() -> None:
    a100 = machine(shipped_fits.gpu("a100-80gb"), "bf16")
    whole = replace(a100, cache_partitions=1)
    for share in (0.5, 0.8, 1.1, 2.0):
        assert cached_share(a100, share * a100.cache_bytes) <= cached_share(whole, share * a100.cache_bytes)
        assert fetched_s(a100, share * a100.cache_bytes) <= share * a100.cache_bytes / a100.bytes_per_s * (
            1 + 1e-9
        )  # TOLERANCE: rounding


@pytest.mark.parametrize("op", ["rmsnorm", "layernorm", "softmax", "rmsnorm_backward", "gelu", "add"])
@pytest.mark.parametrize("rows", [1024, 8192, 65536])
def test_no_memory_bound_kernel_is_slower_with_more_bandwidth_and_more_multiprocessors(op: str, rows: int) -> None:
    """B200, whose ratios are those of another GPU, beside H200, which has its own."""
    kernel = Rowwise(op, rows, 8192, 2, 4)
    h200, b200 = (Estimator(shipped_fits.gpu(name), "bf16", SHELF).estimate(kernel).seconds for name in ("h200", "b200"))
    assert b200 < h200


def test_threads_wait_longer_for_a_memory_that_delivers_more_but_less_than_in_proportion() -> None:
    """The ratios that H100 lends to H200, which has its own: within 12% of them, and between those of H100 and in proportion."""
    h200, kernel = shipped_fits.gpu("h200"), Rowwise("rmsnorm", 65536, 8192, 2, 4)
    own, lent = (Estimator(h200, "bf16", shelf).estimate(kernel).seconds for shelf in (SHELF, without("h200")))
    assert abs(lent / own - 1) < 0.12


@pytest.mark.parametrize(
    "memory, clock, sms", [(4.0, 1.0, 1.0), (1.0, 0.25, 1.0), (1.0, 1.0, 0.25), (2.0, 0.5, 1.0), (2.0, 2.0, 1.0)]
)
def test_threads_wait_by_the_root_of_the_bytes_that_each_may_have_in_a_cycle(memory: float, clock: float, sms: float) -> None:
    """Of an H100 with another memory, clock and number of multiprocessors; its threads are those of its architecture."""
    h100 = shipped_fits.gpu("h100")
    other = replace(
        h100, memory_bytes_per_s=memory * h100.memory_bytes_per_s, clock_hz=clock * clock_per_s(h100), sms=round(sms * h100.sms)
    )
    fit = Fit("rowwise", "", "any", RowwiseConstants(), 0.05, {}, waits=1.5)
    made = ROWWISE.transferred(fit, Transfer(h100, other, "bf16", False, ()))
    assert made.waits == pytest.approx(1.5 * (memory / clock / sms) ** 0.5)


def test_kernels_in_triton_are_borrowed_from_any_gpu() -> None:
    """They are compiled for each. Other kernels for one generation are replaced by what runs here."""
    h200, rest = shipped_fits.gpu("h200"), without("h200")
    for named, taken in {"triton": "triton", "triton_kv_fp8": "triton_kv_fp8", "trtllm_mha": "fa3"}.items():
        assert best_fit_for(h200, rest, "attention", "bf16", named).fit.library == taken


def test_triton_is_borrowed_for_heads_as_wide_as_those_timed_only() -> None:
    by = Estimator(shipped_fits.gpu("h100"), "bf16", SHELF, Options("triton"))
    usual = replace(by, options=Options())
    narrow, wide = (Attention(1, 4096, 16, 16, width, True, 2) for width in (128, 256))
    assert by.estimate(narrow) == usual.estimate(narrow)
    assert by.estimate(wide).seconds > 2 * usual.estimate(wide).seconds


def test_fp32_of_another_architecture_is_less_certain_than_tensor_cores_and_boards_alike() -> None:
    v100 = shipped_fits.gpu("v100-pcie-32gb")
    assert best_fit_for(v100, without(v100.name), "gemm", "fp32").borrowed_sigma == PLAIN_SIGMA > GEMM.far_sigma
    assert best_fit_for(shipped_fits.gpu("a100-pcie-40gb"), without("a100-pcie-40gb"), "gemm", "fp32").borrowed_sigma < 0.2


@pytest.mark.parametrize("gpu", ["h100", "b200", "l4", "a100-40gb", "mi300x"])
def test_the_fits_of_others_do_not_matter_where_a_gpu_has_its_own(monkeypatch: pytest.MonkeyPatch, gpu: str) -> None:
    """The choice among all fits is the same as the choice among its own."""
    on = shipped_fits.gpu(gpu)
    libraries = ("", "any", "flash_attention", "fa3", "torch_flow", "triton", "deep_gemm", "cublas")
    asked = [(family, dtype, name) for family in families() for dtype in ("", "bf16", "fp8", "fp32") for name in libraries]
    found = [best_fit_for(on, SHELF, *wanted) for wanted in asked]
    monkeypatch.setattr(fit_choice, "_has_its_own", lambda *of: False)
    assert found == [best_fit_for(on, SHELF, *wanted) for wanted in asked]


def test_only_files_of_fits_that_are_asked_for_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped_fits.shipped.cache_clear()
    read: list[str] = []
    load = shipped_fits.load

    def loaded(path: Path) -> tuple[str, tuple[Fit, ...]]:
        read.append(path.stem)
        name, fits = load(path)
        assert name == path.stem
        return name, fits

    monkeypatch.setattr(shipped_fits, "load", loaded)
    shelf = shipped_fits.shipped()
    Estimator(shipped_fits.gpu("h100"), "bf16", shelf).estimate(LARGE)
    assert read == ["h100"]
    assert list(dict(shelf.fits)) == list(shelf.gpus) == sorted(read)
    shipped_fits.shipped.cache_clear()
