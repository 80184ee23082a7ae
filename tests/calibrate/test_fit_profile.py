"""A profile from a table: constants come back, errors are told, and a run takes it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.calibrate import fit_table
from simulator.calibrate.bench import kernel_grid
from simulator.calibrate.fit_profile import GpuProfile, groups, profile
from simulator.config import catalog, shipped_fits
from simulator.costs.kernels.attention import AttentionConstants, Heads, attention_s
from simulator.costs.kernels.deep_gemm import spilled_s
from simulator.costs.kernels.estimator import Estimator, Options
from simulator.costs.kernels.family import Constant, Fit, families, kinds
from simulator.costs.kernels.fit_choice import BORROWED_SIGMA, FitLibrary
from simulator.costs.kernels.gemm import GemmConstants, gemm_s, timed_gemm_s
from simulator.costs.kernels.gpu_model import machine
from simulator.costs.kernels.rowwise import RowwiseConstants, rowwise_s
from simulator.errors import UserError
from simulator.kernels import Attention, Gemm, Part, Rowwise
from simulator.measurements.kernel_table import Measured, text
from simulator.measurements.kernel_words import TURNS, Probe, kernel_of

from ..commandline import SMALL, trainsim

GPU = "h200"
TRUTH = (
    Fit("gemm", "bf16", "any", replace(GemmConstants(), launch_us=4.0, compute=0.8, memory=0.7, ramp=300.0), 0.01, {}),
    Fit("attention", "bf16", "fa3", replace(AttentionConstants(), launch_us=5.0, compute=0.7, backward=2.4), 0.01, {}),
    Fit("rowwise", "", "", RowwiseConstants(launch_us=2.5, stream=0.8, lookup_cycles=3.0), 0.01, {}),
)
"""Of a GPU that nobody built."""
NOISE = 0.03


def truth() -> Estimator:
    gpu = replace(shipped_fits.gpu(GPU), cache_bytes=0.0)
    return Estimator(gpu, "bf16", FitLibrary({GPU: TRUTH}, {GPU: gpu}), Options())


def table(*ops: str, noise: float = NOISE) -> list[Measured]:
    """What measuring that GPU would give."""
    true, random = truth(), np.random.default_rng(1)
    probes = [
        p
        for p in kernel_grid.only(kernel_grid.default(["bf16"]), ops)
        if p.variant not in ("cudnn", "mem_efficient", "h2d", "d2h")
    ]
    kernels = [(probe, kernel) for probe in probes if (kernel := kernel_of(probe)) is not None]
    factors = np.exp(noise * random.standard_normal(len(kernels)))
    return [
        Measured("NVIDIA H200", probe, true.estimate(kernel).seconds * float(factor), source="trainsim calibrate gpu", cold=True)
        for (probe, kernel), factor in zip(kernels, factors, strict=True)
    ]


@cache
def made() -> GpuProfile:
    return profile(table("gemm", "attention", "add", "copy", "embedding"), shipped_fits.gpu(GPU), shipped_fits.shipped())


def test_constants_that_a_table_was_made_from_come_back() -> None:
    """Times at sizes between the measured ones are as of the true constants, within the error that the fit admits."""
    mine = shipped_fits.overlaid(shipped_fits.gpu(GPU), [judged.fit for judged in made().fits])
    true, fitted = truth(), replace(truth(), fits=mine, options=Options("flash_attention"))
    sigma = {judged.fit.family: judged.fit.sigma for judged in made().fits}
    for size in ((3000, 3000, 3000), (700, 9000, 5000), (12000, 1300, 7000)):
        kernel = Gemm(*size, 2)
        assert fitted.estimate(kernel).seconds == pytest.approx(true.estimate(kernel).seconds, rel=2 * sigma["gemm"])
        assert fitted.estimate(kernel).provenance == "measured"
    for op, heads in (("attention_fwd", (3, 3000, 20, 4, 128)), ("attention_bwd", (1, 6000, 24, 8, 64))):
        kernel = kernel_of(Probe(op, "bf16", 0, 0, 0, *heads, True, "flash_attention"))
        assert kernel is not None
        assert fitted.estimate(kernel).seconds == pytest.approx(true.estimate(kernel).seconds, rel=2 * sigma["attention"])
    for probe in (Probe("elementwise", "bf16", 3000, 3000, variant="add"), Probe("embedding", "bf16", 3000, 3000)):
        kernel = kernel_of(probe)
        assert kernel is not None
        assert fitted.estimate(kernel).seconds == pytest.approx(true.estimate(kernel).seconds, rel=2 * sigma["rowwise"])


def test_the_error_of_a_fit_is_that_of_sizes_that_it_did_not_see() -> None:
    """As much as the measurements scatter, and some more; told by whole sizes held out."""
    for judged in made().fits:
        assert judged.held_out >= 6
        assert NOISE / 2 < judged.error < 4 * NOISE, judged.fit.family
        assert judged.fit.ranges
        assert judged.fit.source == "trainsim calibrate gpu"


def test_what_few_rows_do_not_tell_is_not_claimed_to_be_sure() -> None:
    few = profile(table("gemm")[:6], shipped_fits.gpu(GPU), shipped_fits.shipped())
    (judged,) = few.fits
    assert judged.held_out == 0
    assert judged.fit.sigma >= 0.1


def test_rows_that_no_fit_takes_are_counted_with_the_reason() -> None:
    rows = [*table("gemm")[:6], Measured("h200", Probe("launch", "fp32", 8), 1.0)]
    rows += [Measured("h200", Probe("gemm", "tf32", 64, 64, 64), 1.0)]
    rows += [replace(row, role="sanity") for row in rows[:2]]
    found = profile(rows, shipped_fits.gpu(GPU), shipped_fits.shipped())
    assert found.unused == {"no model of launch": 1, "the role 'sanity'": 2, "tf32 takes the fit of bf16": 1}
    with pytest.raises(UserError, match="nothing to fit in 1 rows"):
        profile(rows[6:7], shipped_fits.gpu(GPU), shipped_fits.shipped())


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    first = shipped_fits.text(GPU, [judged.fit for judged in made().fits], "a profile")
    (tmp_path / "mine.yaml").write_text(first)
    name, fits = shipped_fits.load(tmp_path / "mine.yaml")
    assert shipped_fits.text(name, fits, "a profile") == first
    (tmp_path / "again.yaml").write_text(first)
    assert shipped_fits.load(tmp_path / "again.yaml") == (name, fits)
    assert "reread" not in first  # changes nothing here, and so need not be there
    (tmp_path / "again.yaml").write_text(first.replace("      launch_us", "      reread: 2\n      launch_us", 1))
    assert shipped_fits.load(tmp_path / "again.yaml")[1] != fits


def test_what_is_beside_products_has_a_name(tmp_path: Path) -> None:
    text = shipped_fits.text(GPU, [replace(made().fits[0].fit, beside={"spill_us": 2.0})], "a profile")
    (tmp_path / "mine.yaml").write_text(text)
    assert shipped_fits.load(tmp_path / "mine.yaml")[1][0].beside == {"spill_us": 2.0}
    (tmp_path / "mine.yaml").write_text(text.replace("spill_us", "spil_us"))
    with pytest.raises(UserError, match="did you mean 'spill_us'"):
        shipped_fits.load(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_text(text.replace("family: gemm", "family: moe"))
    with pytest.raises(UserError, match="beside: moe has nothing"):
        shipped_fits.load(tmp_path / "mine.yaml")


@pytest.mark.parametrize("name", sorted(shipped_fits.shipped().fits))
def test_what_ships_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    """Constants that change something are written, and those that do not come back as they were."""
    fits = [replace(fit, constants=replace(fit.constants, **moved(fit.constants))) for fit in shipped_fits.shipped().fits[name]]
    (tmp_path / "mine.yaml").write_text(shipped_fits.text(name, fits, "a profile"))
    again = shipped_fits.load(tmp_path / "mine.yaml")[1]
    assert [fit.constants for fit in again] == [fit.constants for fit in fits]
    assert [(fit.cast, fit.beside) for fit in again] == [(fit.cast, fit.beside) for fit in fits]


def moved(constants: Any) -> dict[str, float]:
    """A neutral constant of each kind, no longer neutral."""
    return {name: 1.5 for name, kind in kinds(constants).items() if isinstance(kind, Constant) and kind.optional}


def test_slow_steps_are_fitted_beside_block_scaled_products() -> None:
    gpu = shipped_fits.gpu("h100")
    shipped = next(fit for fit in shipped_fits.shipped().fits["h100"] if fit.dtype == "fp8_block")
    on = machine(gpu, "fp8")
    sizes = [(m, n, k) for m in (256, 512, 1024, 4096) for n in (2048, 6144, 8192) for k in (1024, 4096, 8192)]
    m, n, k = (np.array(column, dtype=np.float64) for column in zip(*sizes, strict=True))
    assert isinstance(shipped.constants, GemmConstants)
    seconds = timed_gemm_s(shipped.constants, on, (m, n, k, np.ones(len(m))), 1.0, cast=shipped.cast or (), turns=TURNS)
    seconds = seconds + spilled_s(4.0, on, m, n, k)
    probes = [Probe("gemm", "fp8_block", *one, variant="TN fwd") for one in sizes]
    rows = [Measured("h100", probe, took) for probe, took in zip(probes, seconds.tolist(), strict=True)]
    found = profile(rows, gpu, shipped_fits.shipped()).fits[0].fit
    assert found.beside["spill_us"] == pytest.approx(4.0, rel=0.05)
    assert profile(rows[:3], gpu, shipped_fits.shipped()).fits[0].fit.beside == shipped.beside


# Operators beside pointwise kernels -----------------------------------------------------------------------------------------

NORMS = ("rmsnorm", "softmax", "adam")
SLOWER = {"rmsnorm": 1.6, "rmsnorm_bwd": 0.8}
"""What this GPU that nobody built takes beyond what the ratios of all GPUs say."""


def norms() -> list[Measured]:
    rows = table("add", "copy", *NORMS)
    return [replace(row, seconds=row.seconds * SLOWER.get(row.probe.op, 1.0)) for row in rows]


def test_operators_that_were_measured_go_by_their_own_ratio() -> None:
    """Within the error that is told, at sizes between the measured ones; what was not measured keeps the general one."""
    found = profile(norms(), shipped_fits.gpu(GPU), shipped_fits.shipped())
    (judged,) = found.fits
    assert {ratio.op for ratio in judged.ratios} == {"rmsnorm", "rmsnorm_backward", "softmax", "softmax_backward", "adam"}
    assert all(0.05 <= ratio.error < 3 * NOISE for ratio in judged.ratios)
    mine = Estimator(
        replace(shipped_fits.gpu(GPU), cache_bytes=0.0), "bf16", shipped_fits.overlaid(shipped_fits.gpu(GPU), [judged.fit])
    )
    for op in ("rmsnorm", "rmsnorm_bwd", "softmax", "softmax_bwd", "layernorm"):
        kernel = kernel_of(Probe(op, "bf16", 12000, 5000))
        assert kernel is not None
        said, true_s = mine.estimate(kernel), truth().estimate(kernel).seconds * SLOWER.get(op, 1.0)
        assert isinstance(kernel, Rowwise)
        error = {ratio.op: ratio.error for ratio in judged.ratios}.get(kernel.op, 0.05)
        assert said.seconds == pytest.approx(true_s, rel=2 * error), op
        assert said.provenance == ("transferred" if op == "layernorm" else "measured")


@pytest.mark.parametrize("mark", [{"operators": 8}, {"probe": Probe("rmsnorm", "bf16", 4096, 4096, variant="eager")}])
def test_rows_of_several_operators_tell_nothing_about_one_kernel(mark: dict[str, Any]) -> None:
    rows = [replace(row, **mark) if row.probe.op == "rmsnorm" else row for row in norms()]
    found = profile(rows, shipped_fits.gpu(GPU), shipped_fits.shipped())
    assert "rmsnorm" not in found.fits[0].fit.ratios
    assert found.unused["rmsnorm: several operators, which run separately in a step"] == 18


def test_look_ups_of_one_id_fit_nothing() -> None:
    """The cache holds what they read; others in the same table do."""
    add, one_id = (Probe(op, "fp32", 4096, 4096, variant=word) for op, word in (("elementwise", "add"), ("embedding", "fwd")))
    sizes = [(m, 4096) for m in (2048, 4096, 8192, 16384)]
    rows = [Measured("H100-SXM", replace(probe, m=m, n=n), m * 1e-7) for probe in (add, one_id) for m, n in sizes]
    unused, others = Counter[str](), Counter[str]()
    (made,) = groups(rows, shipped_fits.gpu(GPU), unused)
    assert unused == {"embedding: ids that were all the same": 4}
    assert {row.probe.op for row in made.rows} == {"elementwise"}
    (made,) = groups([replace(row, probe=replace(row.probe, variant="")) for row in rows], shipped_fits.gpu(GPU), others)
    assert not others
    assert {row.probe.op for row in made.rows} == {"elementwise", "embedding"}


def test_without_pointwise_kernels_ratios_are_to_those_that_ship() -> None:
    """Which are of another machine: their own word stays transferred, that of the operators is measured."""
    gpu = shipped_fits.gpu("h100")
    found = profile(table("gemm", "softmax"), gpu, shipped_fits.shipped())
    judged = found.fits[-1]
    assert (judged.fit.family, judged.fit.rows) == ("rowwise", 0)
    by = Estimator(gpu, "bf16", shipped_fits.overlaid(gpu, [judged.fit]))
    said = {op: by.estimate(Rowwise(op, 8192, 8192, 2, 4)).provenance for op in ("softmax", "softmax_backward", "add")}
    assert said == {"softmax": "measured", "softmax_backward": "measured", "add": "transferred"}


def test_small_rows_and_rows_that_disagree_give_no_ratio() -> None:
    """Of one large row the ratio is, and its error says that it is one."""
    rows = norms()
    small = [row for row in rows if row.probe.op != "rmsnorm" or row.probe.m * row.probe.n < 2**21]
    found = profile(small, shipped_fits.gpu(GPU), shipped_fits.shipped())
    assert found.unused["no large row of rmsnorm"] == 1
    largest = max((row for row in rows if row.probe.op == "rmsnorm"), key=lambda row: row.seconds)
    (judged,) = profile([*small, largest], shipped_fits.gpu(GPU), shipped_fits.shipped()).fits
    assert {ratio.op: (ratio.large.rows, ratio.error) for ratio in judged.ratios}["rmsnorm"] == (1, 0.15)
    wild = [
        replace(row, seconds=row.seconds * (1 + 9 * (i % 2))) if row.probe.op == "rmsnorm" else row for i, row in enumerate(rows)
    ]
    found = profile(wild, shipped_fits.gpu(GPU), shipped_fits.shipped())
    assert "rmsnorm" not in found.fits[0].fit.ratios
    assert [count for reason, count in found.unused.items() if "no one ratio comes nearer to rmsnorm than" in reason] == [18]


def test_what_was_measured_of_norms_reaches_a_run(tmp_path: Path) -> None:
    step = {}
    for times in (1, 3):
        rows = [replace(row, gpu="H100-SXM") for row in norms()]
        slow = [replace(row, seconds=row.seconds * times) if row.probe.op.startswith("rmsnorm") else row for row in rows]
        (tmp_path / "table.csv").write_text(text(slow))
        assert trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml").code == 0
        (tmp_path / "run.yaml").write_text(SMALL.replace("nodes: 2", "nodes: 2, gpu: {name: h100, profile: mine.yaml}"))
        step[times] = trainsim("run", tmp_path / "run.yaml", "--set", "model.norm=rmsnorm", "--json").record["step_time_s"]
    assert step[3] > step[1] * 1.005


# Few rows -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1.6, 0.9])
@pytest.mark.parametrize("family", ["gemm", "attention", "rowwise"])
@given(data=st.data())
def test_slowed_constants_give_times_that_are_as_much_longer(family: str, times: float, data: st.DataObject) -> None:
    """At any size; shorter than what the peaks allow they do not become."""
    (c,) = [fit.constants for fit in TRUTH if fit.family == family]
    on, sizes = machine(shipped_fits.gpu(GPU), "bf16"), [data.draw(st.integers(64, 16384)) for _ in range(3)]

    def took_s(c: Any) -> float:
        if family == "gemm":
            return float(gemm_s(c, on, *sizes))
        if family == "rowwise":
            return float(rowwise_s(c, replace(on, cache_bytes=0.0), sizes[0] * sizes[1]))
        return float(attention_s(c, on, Heads(2, sizes[0], 16, 4, 128, 1), backward=sizes[1] > 8192))

    assert took_s(families()[family].slowed(c, times)) == pytest.approx(times * took_s(c), rel=1e-9)


def step(slower: float) -> list[Measured]:
    """What the trace of a step of a model gives: many products, attention once each way, one norm."""
    gpu = shipped_fits.gpu("h100")
    by = Estimator(gpu, "bf16", shipped_fits.shipped())
    probes = [Probe("gemm", "bf16", 4096, n, 4096, variant="fwd") for n in range(1024, 9216, 1024)]
    probes += [Probe(f"attention_{way}", "bf16", 0, 0, 0, 1, 8192, 32, 8, 128, True, "fa3") for way in ("fwd", "bwd")]
    probes += [Probe("rmsnorm", "bf16", 8192, 4096)]
    times = {"gemm": 1.0, "attention_fwd": slower, "attention_bwd": 1.2 * slower, "rmsnorm": slower}
    kernels = [(probe, kernel_of(probe)) for probe in probes]
    return [Measured("H100-SXM", probe, times[probe.op] * by.estimate(kernel).seconds) for probe, kernel in kernels]  # type: ignore[arg-type]


def test_one_row_of_attention_and_of_a_norm_is_enough_to_be_measured(tmp_path: Path) -> None:
    """At the size of the row the time is as measured; at others it is as much longer, and nobody says that it was measured."""
    (tmp_path / "table.csv").write_text(text(step(2.0)))
    said = trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml")
    assert "attention bf16 fa3: too few rows for a fit; 2 times that of h100 bf16 fa3" in said.out
    assert 'source: "not stated: 2 times that of h100 bf16 fa3"' in (tmp_path / "mine.yaml").read_text()
    gpu = shipped_fits.gpu("h100", str(tmp_path / "mine.yaml"))
    mine, ships = (Estimator(gpu, "bf16", fit_library) for fit_library in (shipped_fits.fits_for(gpu), shipped_fits.shipped()))
    forward = Attention(1, 8192, 32, 8, 128, True, 2)
    backward, norm = replace(forward, part=Part.INPUT_GRADIENT), Rowwise("rmsnorm", 8192, 4096, 2, 4)
    for kernel, times in ((forward, 2.0), (replace(forward, seq=4096), 2.0), (backward, 2.4), (norm, 2.0)):
        own, other = mine.estimate(kernel), ships.estimate(kernel)
        assert own.seconds == pytest.approx(times * other.seconds, rel=0.02)
        assert own.provenance == ("transferred" if getattr(kernel, "seq", 8192) == 4096 else "measured")
        assert own.sigma >= 0.15
        assert not own.extrapolated, "others were measured at such sizes"


@pytest.mark.parametrize("timed", [Part.FORWARD, Part.INPUT_GRADIENT])
def test_a_pass_of_attention_without_rows_is_not_called_measured(timed: Part) -> None:
    gpu, ships, op = (
        shipped_fits.gpu("h100"),
        shipped_fits.shipped(),
        "attention_fwd" if timed is Part.FORWARD else "attention_bwd",
    )
    rows = [row for row in step(1.0) if row.probe.op == op]
    fits = [judged.fit for judged in profile(rows, gpu, ships).fits]
    by = Estimator(gpu, "bf16", shipped_fits.overlaid(gpu, fits))
    found = {part: by.estimate(Attention(1, 8192, 32, 8, 128, True, 2, part)) for part in (Part.FORWARD, Part.INPUT_GRADIENT)}
    assert {part: one.provenance for part, one in found.items()} == {
        part: "measured" if part is timed else "transferred" for part in found
    }
    other = Part.INPUT_GRADIENT if timed is Part.FORWARD else Part.FORWARD
    assert found[other].sigma > found[timed].sigma


def test_one_row_is_measured_at_its_own_size_only() -> None:
    """Elsewhere the fit that was scaled speaks, as surely as without the row; beyond what that was measured at, less."""
    gpu, ships = shipped_fits.gpu("gb200"), shipped_fits.shipped()
    rows = [Measured("GB200", Probe("gemm", "bf16", 8192, 8192, 8192), 7e-4)]
    rows += [Measured("GB200", Probe("rmsnorm", "bf16", 65536, 8192), 4e-4)]
    fits = [judged.fit for judged in profile(rows, gpu, ships).fits]
    mine, others = (Estimator(gpu, "bf16", fit_library) for fit_library in (shipped_fits.overlaid(gpu, fits), ships))
    said = {size: mine.estimate(Gemm(*size, 2)) for size in ((8192, 8192, 8192), (16, 1024, 1024), (3000, 3000, 10**6))}
    how = {size: (one.provenance, one.extrapolated) for size, one in said.items()}
    assert list(how.values()) == [("measured", False), ("transferred", False), ("transferred", True)]
    assert said[16, 1024, 1024].sigma == pytest.approx(max(0.15, others.estimate(Gemm(16, 1024, 1024, 2)).sigma))
    norms = [mine.estimate(Rowwise("rmsnorm", *size, 2, 4)) for size in ((65536, 8192), (1, 128))]
    assert [(one.provenance, one.extrapolated) for one in norms] == [("measured", False), ("transferred", True)]
    assert norms[1].sigma > norms[0].sigma


def test_what_was_scaled_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [row for row in step(1.5) if row.probe.op != "gemm"]
    fits = tuple(judged.fit for judged in profile(rows, shipped_fits.gpu("h100"), shipped_fits.shipped()).fits)
    (tmp_path / "mine.yaml").write_text(shipped_fits.text("h100", fits, "a profile"))
    again = shipped_fits.load(tmp_path / "mine.yaml")[1]
    assert [fit.transferred_ranges for fit in again] == [fit.transferred_ranges for fit in fits]
    assert fits[0].transferred_ranges
    assert fits[0].ranges["seq"] == again[0].ranges["seq"] == (8192, 8192)
    (told,) = (fit.ratio_rows["rmsnorm"] for fit in again if fit.ratio_rows)
    assert (told.rows, told.bytes[0]) == (1, told.bytes[1])


def test_few_rows_that_no_one_factor_explains_are_left_out_with_the_reason() -> None:
    rows = step(1.0)
    forward = next(row for row in rows if row.probe.op == "attention_fwd")
    rows.append(replace(forward, probe=replace(forward.probe, seq=4096), seconds=forward.seconds * 3))
    found = profile(rows, shipped_fits.gpu("h100"), shipped_fits.shipped())
    assert found.unused == {"few rows of attention bf16 fa3, which no one factor explains": 3}


def test_what_a_profile_does_not_speak_of_is_named(tmp_path: Path) -> None:
    """In it, and on the screen."""
    (tmp_path / "table.csv").write_text(text([row for row in step(1.0) if row.probe.op == "gemm"]))
    said = trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml")
    for text_ in (said.out.lower(), (tmp_path / "mine.yaml").read_text().lower()):
        assert "not measured: attention bf16: that of h100 bf16 fa3, as it ships" in text_
        assert "not measured: rowwise: that of" in text_
    assert trainsim("calibrate", "fit", tmp_path / "table.csv", "--json").record["missing"][0].startswith("attention bf16")


# What makes no sense --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "words"),
    [(1 / 1000, "rows are faster than h100 can be"), (1000, "times slower than the peaks"), (1e6, "times slower than the peaks")],
)
def test_a_table_in_another_unit_is_refused_and_nothing_written(tmp_path: Path, times: float, words: str) -> None:
    """Milliseconds, nanoseconds and picoseconds where microseconds should stand."""
    rows = [replace(row, gpu="H100-SXM", seconds=row.seconds * times) for row in table("gemm")]
    (tmp_path / "table.csv").write_text(text(rows))
    said = trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml")
    assert said.code == 2
    assert words in said.err
    assert "is time_us in microseconds" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def mixed_up(rows: list[Measured]) -> list[Measured]:
    """As if columns stood in another order."""
    random = np.random.default_rng(2)
    return [replace(row, gpu="H100-SXM", seconds=row.seconds * float(np.exp(2 * abs(random.standard_normal())))) for row in rows]


def test_a_kind_of_kernels_that_no_constants_explain_is_named_and_the_rest_written(tmp_path: Path) -> None:
    plain = [replace(row, gpu="H100-SXM") for row in table("gemm")]
    (tmp_path / "table.csv").write_text(text([*plain, *mixed_up(table("add"))]))
    said = trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml")
    assert (said.code, said.err) == (0, "")
    (reason,) = (line for line in said.out.splitlines() if "no constants come nearer" in line)
    assert reason.startswith(f"{len(table('add'))} rows not used: rowwise: ")
    assert "not measured: rowwise" in said.out
    assert [fit.family for fit in shipped_fits.load(tmp_path / "mine.yaml")[1]] == ["gemm"]


def test_rows_that_no_constants_explain_are_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(text(mixed_up(table("gemm", "add"))))
    said = trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml")
    assert said.code == 2
    assert "gemm bf16 any: no constants come nearer than" in said.err
    assert "rowwise: no constants come nearer than" in said.err
    assert "is time_us in microseconds" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.parametrize("probe", [Probe("gemm", "bf16", 8192, 8192, 8192), Probe("copy", "bf16", 1, 2**28, variant="d2d")])
def test_one_row_that_cannot_be_is_named_and_left_out(tmp_path: Path, probe: Probe) -> None:
    kernel = kernel_of(probe)
    assert kernel is not None
    gpu = shipped_fits.gpu("h100")
    limit_s = max(
        kernel.flop / gpu.peak_flop_per_s["bf16"], (kernel.traffic_bytes - 2 * gpu.cache_bytes) / gpu.memory_bytes_per_s
    )
    rows = [replace(row, gpu="H100-SXM") for row in table("gemm")]
    rows += [Measured("H100-SXM", probe, limit_s / 1.04), Measured("H100-SXM", probe, limit_s / 1.06)]
    (tmp_path / "table.csv").write_text(text(rows))
    said = trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml")
    assert said.code == 0
    assert [line for line in said.err.splitlines() if "left out" in line and f"table.csv:{len(rows) + 1}: {probe}" in line]
    assert f"table.csv:{len(rows)}:" not in said.err


def test_a_profile_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    judged = made().fits[0]
    broken = replace(judged, fit=replace(judged.fit, constants=replace(judged.fit.constants, launch_us=-1.0)))
    with pytest.raises(UserError, match="launch_us"):
        fit_table.text(replace(made(), fits=(broken,)), "a profile")


# The command, and runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(text([replace(row, gpu="NVIDIA H100 80GB HBM3") for row in table("gemm")]))
    return path


def test_fit_writes_a_profile_that_a_run_takes(csv: Path, tmp_path: Path) -> None:
    """A path in a scenario is looked for beside it, one of --set in the current folder."""
    said = trainsim("calibrate", "fit", csv, "--out", tmp_path / "mine.yaml", "--json")
    assert said.record["gpu"] == "h100"
    assert (tmp_path / "mine.yaml").read_text() == said.record["yaml"]
    (tmp_path / "run.yaml").write_text(SMALL.replace("nodes: 2", "nodes: 2, gpu: {name: h100, profile: mine.yaml}"))
    (tmp_path / "plain.yaml").write_text(SMALL)
    mine = trainsim("run", tmp_path / "run.yaml", "--json").record["step_time_s"]
    plain = trainsim("run", tmp_path / "plain.yaml", "--json").record["step_time_s"]
    also = trainsim("run", tmp_path / "plain.yaml", "--set", f"cluster.gpu.profile={tmp_path / 'mine.yaml'}", "--json")
    assert mine > plain * 1.02, "a GPU that nobody built is slower"
    assert also.record["step_time_s"] == mine


def test_kernels_that_a_profile_says_nothing_about_keep_their_constants(csv: Path, tmp_path: Path) -> None:
    trainsim("calibrate", "fit", csv, "--out", tmp_path / "mine.yaml")
    cluster = sim.cluster("dgx-h100", gpu={"name": "h100", "profile": str(tmp_path / "mine.yaml")})
    mine, shipped = shipped_fits.fits_for(cluster.gpu), shipped_fits.shipped()
    assert [fit.source for fit in mine.fits["h100"] if (fit.family, fit.dtype) == ("gemm", "bf16")] == ["trainsim calibrate gpu"]
    assert [f for f in mine.fits["h100"] if f.family == "attention"] == []
    assert mine.fits["h100 as it ships"] == shipped.fits["h100"]
    attention = Attention(1, 8192, 32, 8, 128, True, 2)
    own, other = (Estimator(cluster.gpu, "bf16", fit_library).estimate(attention) for fit_library in (mine, shipped))
    assert own.seconds == other.seconds
    assert (own.provenance, own.model) == ("transferred", "attention: bf16 fa3 of h100 as it ships")
    assert own.sigma == pytest.approx(math.hypot(other.sigma, BORROWED_SIGMA)), "another machine of the kind was measured"
    assert shipped_fits.fits_for(sim.cluster("dgx-h100").gpu) == shipped


@pytest.mark.parametrize("whose", ["h100", "my-h100"])
def test_a_gpu_of_ones_own_takes_a_profile_too(csv: Path, tmp_path: Path, whose: str) -> None:
    """Measured, if it was fitted for it; refused, if it was fitted for another."""
    mine = tmp_path / "my-h100.yaml"
    mine.write_text((catalog.folder("gpus") / "h100.yaml").read_text())
    gpu = mine if whose == "my-h100" else whose
    said = trainsim("calibrate", "fit", csv, "--gpu", gpu, "--out", tmp_path / "profile.yaml", "--json")
    assert said.record["gpu"] == whose
    with mine.open("a") as file:
        file.write("profile: profile.yaml\n")
    found = trainsim("kernel", "gemm", "--gpu", mine, "-m", 4096, "-n", 4096, "-k", 4096, "--json")
    if whose == "h100":
        assert found.code == 2
        assert "my-h100.yaml:" in found.err
        assert "holds kernels of h100, not of my-h100" in found.err
    else:
        assert (found.record["provenance"], found.record["model"]) == ("measured", f"gemm: bf16 any of {whose}")


def test_a_table_of_several_gpus_asks_which(tmp_path: Path) -> None:
    rows = [replace(row, gpu=gpu) for gpu in ("H100-SXM", "B200") for row in table("gemm")[:6]]
    (tmp_path / "table.csv").write_text(text(rows))
    said = trainsim("calibrate", "fit", tmp_path / "table.csv")
    assert said.code == 2
    assert "--gpu takes one of h100, b200" in said.err
    assert trainsim("calibrate", "fit", tmp_path / "table.csv", "--gpu", "b200").out.count("\ngpu: b200\n") == 1


def test_a_table_of_a_gpu_that_nobody_knows_may_be_told_whose_it_is(tmp_path: Path) -> None:
    rows = [replace(row, gpu="engineering sample") for row in table("gemm")[:6]]
    (tmp_path / "table.csv").write_text(text(rows))
    assert "is not in the catalog" in trainsim("calibrate", "fit", tmp_path / "table.csv").err
    assert trainsim("calibrate", "fit", tmp_path / "table.csv", "--gpu", "h200").out.count("\ngpu: h200\n") == 1


def test_a_profile_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With whatever else is wrong in the file."""
    content = SMALL.replace("nodes: 2", "nodes: 2, gpu: {name: h100, profile: mine.yaml}").replace("pp: 2", "pp: two")
    (tmp_path / "run.yaml").write_text(content)
    said = trainsim("run", tmp_path / "run.yaml")
    assert said.code == 2
    assert "run.yaml:2:55: no file 'mine.yaml'" in said.err
    assert "run.yaml:3" in said.err


def test_what_timing_one_kernel_by_itself_takes_is_no_part_of_a_run() -> None:
    """Launches in a graph tell what a nearly empty kernel takes: what rows take beyond is that of the marks around them."""
    rows = table("gemm", "elementwise")
    marked = [replace(row, seconds=row.seconds + 3e-6) for row in rows]
    in_graph = Measured(rows[0].gpu, Probe("launch", "fp32", 512, 1, variant="graph"), 2.5e-6)
    known, on = shipped_fits.shipped(), shipped_fits.gpu(GPU)
    launches = [
        {made.fit.family: made.fit.constants.launch_us for made in profile(some, on, known).fits}
        for some in (rows, marked, [*marked, in_graph])
    ]
    assert launches[1]["rowwise"] > launches[0]["rowwise"] + 2.5
    assert launches[2]["rowwise"] == pytest.approx(2.5)
    assert launches[2]["gemm"] == pytest.approx(launches[0]["gemm"], abs=0.8)
