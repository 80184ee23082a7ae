"""Regenerates topologies/kernels, report.md and the pictures here: kernel models fitted to measured kernels, and their errors.

    python results/kernels/make.py

reads the tables of measured kernels beside the checkout (../shared/data). Where they are missing nothing is written. Only rows
whose role is `fit` are fitted, and of those none that multiplies by weights which nobody filled; no measured time is kept, only
constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import kernel_sources as sources
import model_errors
import numpy as np
import pandas as pd
import pointwise
from table_rows import ADDS, DEEP, GRAPHS, TILES_OF, Rows, attention, gemm, machine, measured, moe

from simulator.calibrate.fit_profile import profile
from simulator.calibrate.least_squares import OUTLIER, SEVERAL_LIBRARIES, Descent, Extra, fit_constants
from simulator.config import shipped_fits
from simulator.costs.kernels.attention import (
    CACHE_PASSES,
    CACHE_US,
    HEAD_MULTIPLE,
    PAGED,
    REFERENCE_WIDTH,
    SIXTEENS,
    AttentionConstants,
    scaled_both_ways,
)
from simulator.costs.kernels.attention import FAMILY as ATTENTION
from simulator.costs.kernels.deep_gemm import SPILL_START
from simulator.costs.kernels.family import ANY, WITHOUT_TENSOR_CORES, Constants, Fit, priors
from simulator.costs.kernels.fit_choice import PREFERRED_LIBRARIES, FitLibrary
from simulator.costs.kernels.gemm import CAST_START, LATER, LINEAR_US, OF_BOARD, GemmConstants
from simulator.costs.kernels.gpu_model import Machine, architecture
from simulator.costs.kernels.rowwise import RowwiseConstants
from simulator.files import atomic
from simulator.hardware.gpu import Gpu
from simulator.measurements.attention_libraries import library_of
from simulator.measurements.kernel_table import Measured, rows_of
from simulator.measurements.kernel_words import NARROWING, kernel_of

ROOT = Path(__file__).resolve().parents[2]
TABLE, MORE = (ROOT.parent / "shared" / "data" / name for name in ("kernels.csv.gz", "kernels_more.csv.gz"))
FITS = ROOT / "topologies" / "kernels"
OWN = ROOT / "results" / "calibration"
OWN_FITS = (("rowwise", ""), ("attention", "flash_attention"))
"""Families and libraries that are fitted to our own timings: nobody else timed them on these GPUs in 16 bits."""
LONG_BYTES = 2**28
"""Traffic from which a launch and the marks around it are less than a hundredth of a kernel's time."""
OWN_RATIOS = (
    "rmsnorm", "rmsnorm_backward", "layernorm", "layernorm_backward", "softmax_backward", "gelu", "gelu_backward", "dropout",
    "adam",
)  # fmt: skip
"""Operators whose ratio hardly depends on the shape. That of a softmax forward is 1.5 to 3, by its columns."""

HELD_OUT = {"gemm": (1536, 3584, 5120, 10240), "attention": (5, 12, 24, 40), "moe": (6, 10)}
"""Whole values that cross-validation holds out: of n and k, of heads, of top-k."""
COLUMNS = {"gemm": ("n", "k"), "attention": ("heads",), "moe": ("top_k",)}
DRAWN = {"gemm": 8, "attention": 4, "moe": 4}
"""One value in so many is held out by a random split."""
CACHED_START: Mapping[str, float] = {CACHE_US: 1.7, CACHE_PASSES: 1.1}
"""Where fitting of what writing the cache takes starts: microseconds, and passes over the bytes that are read and written, at the
memory's full rate."""
CACHED_SIGMA = 0.3
"""How far they may be believed to lie from there, of their logarithms: what is moved is known."""
FEW = 50
"""Held-out rows below which random splits too say how sure a fit is."""
SOME = 20
"""One row in so many at least is held out; where those values are rare, every fourth value of n is, as the table calls it."""
PACKED = ("flash_attention", "fa3", "vllm_flash_attn_fa3")
"""Libraries whose kernels pack heads that share keys: FlashInfer, and FlashAttention 3 with lengths that vary."""
LEAST_ROWS = 40
"""Rows of an attention library on a GPU from which constants are fitted."""
ATTENTION_BACKWARD = {"hopper": 2.8, "blackwell": 2.5}
"""Attention's backward over its forward on 128-wide heads where the rows to fit are missing. H100: FlashAttention 3's published
charts, 2.7 to 2.9. B200: SimuMax has 2.0 to 2.3, and 3.2 at 192; less than 2.5, the ratio of flop, is implausible."""
BACKWARD_FROM = {
    "hopper": "charts of FlashAttention 3 (arXiv 2407.08608), transcribed",
    "blackwell": "MooreThreads/SimuMax@4dcaae5",
}
"""Where these are from: rows that are not in the table, or not to be fitted."""
WIDTHS_OF = {"flash_attention": "flash", "vllm_flash_attn": "flash", "fa3": "flash3", "vllm_flash_attn_fa3": "flash3"}
"""Libraries that are compiled for FlashAttention's widths of heads; the others have every multiple of 16."""
KERNELS_OF = {"fa3": ("fa3", "flash_attention_v3")}
"""Words of a table for the same kernels: FlashAttention 3 in SGLang, over a prompt and in encoders."""
BLOCKS = {"hopper": {"narrow_rows": 192.0}, "blackwell": {"narrow_rows": 256.0, "rows": 256.0}}
"""Query rows of a block where they are not 128: those of FlashAttention 3, and two tiles of 128 to a block on Blackwell."""
SURE = 0.68
"""Of rows whose errors stay below a fit's."""
LEAST_SEQ, ODD_START = 16, 1.2
COLD_US = 0.8
"""By how much later kernels end whose operands come from memory: where fitting starts."""
GEMM_PRIOR = priors(GemmConstants)
IN_TURN_PRIOR = priors(GemmConstants, "cold_us")
WITHOUT_QUANTUM = {name: sigma for name, sigma in IN_TURN_PRIOR.items() if name != "quantum"}
"""How much of the last wave is lost differs more between libraries than between GPUs: .9 (cuBLAS on A100), .02 (on Hopper,
2025); independent products on an H100 of 2024 ask for .5. What speaks for several of them keeps that, and has no tiles of three
warpgroups, which make builds of 2025 better predicted and those products worse."""
EAGER = GemmConstants(launch_us=30.0, reread=4.0, split_loss=0.1, tiles="plain")
EAGER_PRIOR = priors(GemmConstants, "reread", "split_loss")
EAGER_START = {LINEAR_US: 20.0}
"""Products in fp32 without tensor cores, timed as an eager framework launches them: linear layers later than batches."""
WITH_CUTLASS = ("ampere", "hopper", "blackwell")
"""Generations for which cuBLAS has wide tiles of CUTLASS's there too."""
SITE_PRIOR = {name: GEMM_PRIOR[name] / 4 for name in GEMM_PRIOR if name not in OF_BOARD}
"""A few rows of a board whose sister was fitted: they move the constants little, and not those of the clock."""


@dataclass(frozen=True)
class Task:
    """One fit to make: rows, and the model of them."""

    family: Any
    gpu: str
    dtype: str
    library: str
    rows: pd.DataFrame
    start: Constants
    prior: Mapping[str, float]
    predict: Callable[[Any, Machine, pd.DataFrame, Any], Any]
    cast: tuple[float, ...] = ()
    beside: Mapping[str, float] = field(default_factory=dict)
    """Of what else the rows hold, where fitting starts."""
    beside_sigma: float = 1.0
    """How far that may lie from there, in logarithms."""

    @property
    def machine(self) -> Machine:
        return machine(self.gpu, self.dtype)

    def fit(self, rows: pd.DataFrame) -> tuple[Any, Any]:
        """Constants fitted to some of the rows."""
        on, time, of = self.machine, rows.seconds.to_numpy(), Rows(rows)
        start: Any = self.start
        values = (*self.cast, *self.beside.values())
        extra = Extra(np.array(values), self.beside_sigma) if values else None
        outlier = SEVERAL_LIBRARIES if self.cast and self.library == ANY and self.rows.library.nunique() > 1 else OUTLIER
        how = Descent(outlier=outlier)
        return fit_constants(start, self.prior, lambda c, x: self.predict(c, on, of, x), time, extra, how)

    def held_out(self) -> Any:
        """Which rows cross-validation holds out."""
        values, names = HELD_OUT[self.family], COLUMNS[self.family]
        held = np.logical_or.reduce([self.rows[name].isin(values) for name in names])
        if held.sum() * SOME < len(self.rows):
            size = self.rows.heads if self.family == "attention" else self.rows.row_n
            held = size.isin(sorted(size.unique())[:: len(values)]).to_numpy()
        return held

    def drawn(self, seed: int) -> Any:
        """Which rows a random split holds out: those of some values."""
        names = COLUMNS[self.family]
        values = np.unique(np.concatenate([self.rows[name].unique() for name in names]))
        chosen = np.random.default_rng(seed).choice(values, max(2, len(values) // DRAWN[self.family]), replace=False)
        return np.logical_or.reduce([self.rows[name].isin(chosen) for name in names])

    def score_of(self, held: Any) -> model_errors.Score:
        """How well a fit to the rows that are not held out predicts those that are."""
        constants, extra = self.fit(self.rows[~held])
        return model_errors.score(self.rows[held], self.predict(constants, self.machine, self.rows[held], extra))


# Fitting --------------------------------------------------------------------------------------------------------------------


def tasks(table: pd.DataFrame) -> Iterator[Task]:
    """Every fit to make."""
    fit = table[table.role == "fit"]
    graphs = fit[fit.source.str.startswith(GRAPHS)]
    for (gpu, dtype), rows in graphs[graphs.op == "gemm"].groupby(["owner", "dtype"]):
        cast = CAST_START if dtype in TILES_OF else ()
        libraries = dict.fromkeys(rows.library)
        for library in (ANY, *(libraries if len(libraries) > 1 else ())):
            own = rows if library == ANY else rows[rows.library == library]
            prior = WITHOUT_QUANTUM if library == ANY and len(libraries) > 1 else IN_TURN_PRIOR
            recent = architecture(shipped_fits.gpu(gpu)).kernels in ("hopper", "blackwell") and library != ANY
            start = GemmConstants(cold_us=COLD_US, tiles=TILES_OF.get(dtype, "warpgroups" if recent else "any"))
            beside = SPILL_START if dtype == DEEP and architecture(shipped_fits.gpu(gpu)).kernels == "hopper" else {}
            yield Task("gemm", gpu, dtype, library, own, start, prior, gemm, cast, beside)
    plain = fit[fit.op.isin(["gemm", "bmm"]) & (fit.dtype == "fp32") & fit.variant.str.startswith("torch2.1")]
    for gpu, rows in plain.groupby("owner"):
        later = architecture(shipped_fits.gpu(gpu)).kernels in WITH_CUTLASS
        start = replace(EAGER, tiles="plain_wide") if later else EAGER
        yield Task("gemm", gpu, "fp32", ANY, rows, start, EAGER_PRIOR, gemm, (), EAGER_START)
    for gpu, rows in graphs[graphs.op == "moe_ffn"].groupby("owner"):
        start = GemmConstants(launch_us=20.0, compute=0.6, odd=1.5)
        yield Task("moe", gpu, "bf16", ANY, rows, start, priors(GemmConstants, "odd"), moe)
    forward = graphs[(graphs.op == "attention_fwd") & (graphs.seq >= LEAST_SEQ)]
    named_as = {word: library for library, words in KERNELS_OF.items() for word in words}
    named = forward.variant.map(library_of).replace(named_as)
    for (gpu, dtype, library), rows in forward.groupby(["owner", "dtype", named]):
        if len(rows) < LEAST_ROWS:
            continue
        generation = architecture(shipped_fits.gpu(gpu)).kernels
        widths = WIDTHS_OF.get(str(library), SIXTEENS)
        even = rows if widths != SIXTEENS else rows[rows.head_dim % HEAD_MULTIPLE == 0]
        back = ATTENTION_BACKWARD.get(generation, 2.8)
        start = AttentionConstants(packed=library in PACKED, widths=widths, backward=back, **BLOCKS.get(generation, {}))
        timed_with = (CACHED_START, CACHED_SIGMA)
        yield Task("attention", gpu, dtype, str(library), even, start, priors(start), attention, (), *timed_with)


def made(task: Task, table: pd.DataFrame) -> tuple[Fit, model_errors.Score]:
    """A fit to all rows of a task, and how well one to some of them predicts the others."""
    score = task.score_of(task.held_out())
    sure = (
        score
        if len(score.errors) >= FEW
        else model_errors.together([score, *map(task.score_of, map(task.drawn, range(model_errors.SPLITS)))])
    )
    constants, extra = task.fit(task.rows)
    cast = (float(extra[0]), float(extra[1])) if task.cast else None
    beside = dict(zip(task.beside, map(float, extra[len(task.cast) :]), strict=True))
    source = sources.origins(task.rows)
    back = int(task.rows.variant.str.contains(ADDS).sum()) if task.family == "gemm" else 0
    if isinstance(constants, AttentionConstants):
        constants, used, paged = finished(constants, task, table)
        back = int((used.op != "attention_fwd").sum())
        source += (
            f"; backward: {sources.origins(used) if back else BACKWARD_FROM[architecture(shipped_fits.gpu(task.gpu)).kernels]}"
        )
        beside |= {PAGED: paged} if paged != 1 else {}
    names = {"gemm": ("m", "n", "k", "batch"), "moe": ("m", "n", "k"), "attention": ("seq", "lines", "head_dim")}[task.family]
    rows = task.rows.assign(lines=task.rows.batch * task.rows.heads)
    ranges = {name: (float(rows[name].min()), float(rows[name].max())) for name in names}
    about = (sure.sigma, ranges, len(rows), source, cast, back)
    return Fit(task.family, task.dtype, task.library, constants, *about, beside=beside), score


def at_clock_of_board(task: Task, own: list[Fit]) -> Task:
    """A task of tensor cores with the clock of its board: that of products in 16 bits of all libraries, which come first."""
    told = [fit.constants for fit in own if (fit.family, fit.dtype, fit.library) == ("gemm", "bf16", ANY)]
    if not told or not isinstance(task.start, GemmConstants) or task.dtype == WITHOUT_TENSOR_CORES:
        return task
    names = OF_BOARD if task.family == "gemm" and task.library == ANY else LATER
    start = replace(task.start, **{name: getattr(told[0], name) for name in names})
    return replace(task, start=start, prior={name: sigma for name, sigma in task.prior.items() if name not in names})


def finished(c: AttentionConstants, task: Task, table: pd.DataFrame) -> tuple[AttentionConstants, pd.DataFrame, float]:
    """With what the other rows tell, of odd heads and of the backward pass; those that tell of that, and how much slower the
    fitted rows are than the bare kernel, where that was timed with its backward pass."""
    fit = table[(table.role == "fit") & table.op.str.startswith("attention")]
    odd = fit[(fit.owner == task.gpu) & (fit.variant == task.library) & (fit.head_dim % HEAD_MULTIPLE != 0)]
    odd = odd[odd.seq >= LEAST_SEQ]
    if len(odd) and c.widths == SIXTEENS:
        on, start = task.machine, replace(c, odd=ODD_START)
        c, _ = fit_constants(start, {"odd": 1.0, "odd_ramp": 1.0}, lambda c, _: attention(c, on, odd), odd.seconds.to_numpy())
    both = fit[(fit.op == "attention_fwd_bwd") & (fit.owner == task.gpu)]
    sister = fit[fit.owner == task.gpu.replace("-", "-pcie-")]
    if not len(both) or task.library not in PREFERRED_LIBRARIES:
        return c, both, 1.0
    c = replace(c, backward=backward_over_forward(sister))
    paged = float(np.median(attention(c, task.machine, both) / both.seconds))
    return ATTENTION.slowed(c, 1 / paged), pd.concat([both, sister]), paged


def backward_over_forward(rows: pd.DataFrame) -> float:
    """The median over shapes that were timed in both directions, of heads of the usual width."""
    rows = rows[rows.head_dim == REFERENCE_WIDTH]
    shape = ["batch", "seq", "heads", "kv_heads", "head_dim", "causal"]
    forward, backward = (rows[rows.op == op].set_index(shape).seconds for op in ("attention_fwd", "attention_bwd"))
    return float((backward / forward).median())


def sisters(table: pd.DataFrame, fits: Mapping[str, list[Fit]]) -> Iterator[Task]:
    """Products of training on a board whose sister was fitted, weight gradients among them."""
    rows = table[(table.role == "fit") & table.op.isin(["gemm", "grouped_gemm"]) & table.source.str.startswith("MooreThreads")]
    for gpu, own in rows.groupby("owner"):
        start = chosen(fits[str(gpu).replace("-pcie", "")], "gemm", "bf16").constants
        yield Task("gemm", str(gpu), "bf16", ANY, own, start, {**SITE_PRIOR, "accumulate": 1.0}, gemm)


def sister_attention(table: pd.DataFrame, fits: Mapping[str, list[Fit]]) -> Iterator[tuple[str, Fit]]:
    """Attention in training on a board whose sister was fitted: its constants, scaled to the board's own rows."""
    rows = table[(table.role == "fit") & table.op.str.startswith("attention") & table.source.str.startswith("MooreThreads")]
    for gpu, own in rows.groupby("owner"):
        borrowed = next(
            fit for fit in fits[str(gpu).replace("-pcie", "")] if fit.family == "attention" and fit.library in PREFERRED_LIBRARIES
        )
        back = (own.op == "attention_bwd").to_numpy()
        times = attention(borrowed.constants, machine(str(gpu), "bf16"), own)  # type: ignore[arg-type]
        made, _ = scaled_both_ways(borrowed.constants, np.log(own.seconds.to_numpy() / times), back)
        errors = np.abs(attention(made, machine(str(gpu), "bf16"), own) / own.seconds - 1)  # type: ignore[arg-type]
        whose = sources.origins(own)
        about = {"rows": len(own), "source": f"{whose}; backward: {whose}", "backward_rows": int(back.sum())}
        yield str(gpu), replace(borrowed, constants=made, sigma=float(np.quantile(errors, SURE)), **about)  # type: ignore[arg-type]


def chosen(fits: list[Fit], family: str, dtype: str, library: str = ANY) -> Fit:
    return next(fit for fit in fits if (fit.family, fit.dtype, fit.library) == (family, dtype, library))


def _like_the_usual(fit: Fit, own: list[Fit]) -> Fit:
    """Attention with the backward pass of the library that training uses: of that of others nothing is known."""
    if not isinstance(fit.constants, AttentionConstants):
        return fit
    usual = min(
        (f for f in own if f.family == "attention"),
        key=lambda f: PREFERRED_LIBRARIES.index(f.library) if f.library in PREFERRED_LIBRARIES else len(PREFERRED_LIBRARIES),
    )
    return replace(fit, constants=replace(fit.constants, backward=usual.constants.backward))  # type: ignore[union-attr]


def timed_here(fits: Mapping[str, list[Fit]]) -> Iterator[tuple[str, Fit]]:
    """Fits to our own timings, each from where the fits to public tables stand. Look-ups keep what public rows say: those of
    PyTorch 2.11 are five times as quick as those of 2.1. PyTorch's own casts to eight bits stream at two thirds of the rate of
    other pointwise kernels, and are not what libraries of training run."""
    for raw in sorted(OWN.glob("*/raw.csv")):
        rows = [row for row in rows_of(raw) if row.probe.op not in NARROWING]
        on = shipped_fits.gpu(rows[0].gpu)
        public = FitLibrary(fits, {name: shipped_fits.gpu(name) for name in fits})
        for fit in (made.fit for made in profile(rows, on, public).fits if (made.fit.family, made.fit.library) in OWN_FITS):
            if isinstance(fit.constants, RowwiseConstants):
                fit = streaming(fit, rows, on)
            yield on.name, replace(fit, source=f"results/calibration/{raw.parent.name} (PyTorch 2.11)")


def streaming(fit: Fit, rows: Sequence[Measured], on: Gpu) -> Fit:
    """The fit of memory-bound kernels, whose rate is that of long additions and copies, and whose ratios are those that hold for
    every shape. Ours were launched by graphs, so that launches keep what public rows of streams say, as look-ups do."""
    kernels = [(row.seconds, kernel_of(row.probe)) for row in rows if row.probe.op in ("elementwise", "copy")]
    long = [moved / took_s for took_s, k in kernels if k and k.op in ("add", "copy") and (moved := k.traffic_bytes) >= LONG_BYTES]
    assert isinstance(fit.constants, RowwiseConstants)
    stream = float(np.median(long)) / on.memory_bytes_per_s
    faster = stream / fit.constants.stream
    kept = {op: (times * faster, error) for op, (times, error) in fit.ratios.items() if op in OWN_RATIOS}
    made = RowwiseConstants(stream=stream)
    return replace(fit, constants=made, ratios=kept, ratio_rows={op: fit.ratio_rows[op] for op in kept})


def main() -> None:
    tables = [TABLE, MORE]
    for path in tables:
        if not path.exists():
            print(f"{path.name} is not there: nothing to do")
            return
    table = measured(tables)
    fits: dict[str, list[Fit]] = {}
    scores: list[tuple[Task, model_errors.Score]] = []
    for task in tasks(table):
        task = at_clock_of_board(task, fits.get(task.gpu, []))
        fit, score = made(task, table)
        fits.setdefault(task.gpu, []).append(fit)
        scores.append((task, score))
    for task in list(sisters(table, fits)):
        fit, score = made(task, table)
        fits.setdefault(task.gpu, []).append(fit)
        scores.append((task, score))
        accumulate = fit.constants.accumulate  # type: ignore[union-attr]
        for name, own in fits.items():
            fits[name] = [
                replace(f, constants=replace(f.constants, accumulate=accumulate)) if isinstance(f.constants, GemmConstants) else f
                for f in own
            ]
    for name, own in fits.items():
        fits[name] = [_like_the_usual(f, own) for f in own]
    for gpu, fit in (*sister_attention(table, fits), *pointwise.fits(table)):
        fits.setdefault(gpu, []).append(fit)
    for gpu, fit in list(timed_here(fits)):
        fits.setdefault(gpu, []).append(fit)
    for gpu in sorted(fits):
        with atomic(FITS / f"{gpu}.yaml") as temporary:
            about = f"Kernels of {gpu}: constants fitted by results/kernels/make.py, to sources {sources.READ}"
            temporary.write_text(shipped_fits.text(gpu, fits[gpu], about), encoding="utf-8")
    shipped_fits.shipped.cache_clear()
    model_errors.report(table, scores, shipped_fits.shipped(), tables)


if __name__ == "__main__":
    main()
