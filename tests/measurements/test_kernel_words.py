"""What a table calls a kernel: a fit takes every row that `validate` predicts, and takes it for the same kernels."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.calibrate.fit_profile import groups, profile
from simulator.config import shipped_fits
from simulator.costs.kernels.estimator import Estimator, Options
from simulator.costs.kernels.experts import moe_s
from simulator.costs.kernels.gemm import GemmConstants
from simulator.costs.kernels.gpu_model import machine
from simulator.errors import UserError
from simulator.kernels import Attention, Experts, Gemm, Part
from simulator.measurements.kernel_table import Measured, probe_of, text
from simulator.measurements.kernel_words import Probe, kernels_of
from simulator.validate import kernels, report

from ..commandline import trainsim

SHARED = Path(__file__).parents[3] / "shared" / "data" / "kernels.csv.gz"
PRODUCT = {"m": "512", "n": "1024", "k": "2048"}
ATTENTION = {"batch": "2", "seq": "2048", "heads": "16", "kv_heads": "4", "head_dim": "128"}
ROWS = {"m": "4096", "n": "4096"}
TABLE: list[dict[str, str]] = [
    {"op": "gemm", **PRODUCT}, {"op": "gemm_bwd", **PRODUCT}, {"op": "gemm-wgrad", **PRODUCT},
    {"op": "bmm_bwd", **PRODUCT, "batch": "8"}, {"op": "grouped_gemm", **PRODUCT, "batch": "8"},
    *({"op": "attention_fwd_bwd", **ATTENTION, "causal": causal} for causal in ("1", "True", "no")),
    {"op": "attention_backward", **ATTENTION, "causal": "0", "kv_heads": ""},
    {"op": "attention_fwd", **ATTENTION, "causal": "1", "head_dim": "192", "variant": "te v_head_dim=128 contig=True"},
    {"op": "moe_ffn", "m": "1024", "n": "1536", "k": "4096", "batch": "64", "variant": "topk6 balanced"},
    *({"op": "elementwise", **ROWS, "variant": word} for word in ("", "torch2.1 addu", "torch2.1 tanh", "truediv fwd", "gelu")),
    {"op": "embedding", **ROWS, "variant": "vocab-parallel"}, {"op": "swiglu", **ROWS}, {"op": "rmsnorm", **ROWS},
    {"op": "memcpy", **ROWS, "variant": "DtoD"}, {"op": "silu", **ROWS}, {"op": "softmax_backward", **ROWS},
]  # fmt: skip


def row(**cells: str) -> dict[str, str]:
    return dict.fromkeys(kernels.READS, "") | {"gpu": "H100-SXM", "dtype": "bf16"} | cells


def took_us(probe: Probe) -> float:
    """What the kernels of a row take that were timed together, the library left to chance."""
    by = Estimator(shipped_fits.gpu("h100"), probe.dtype, shipped_fits.shipped(), Options("", eager=True))
    return 1e6 * sum(by.estimate(kernel).seconds for kernel in kernels_of(probe))  # TOLERANCE: microseconds


@pytest.mark.parametrize("cells", TABLE, ids=lambda cells: f"{cells['op']} {cells.get('variant', '')}")
def test_a_row_is_of_the_kernels_that_validate_predicts(cells: dict[str, str]) -> None:
    (judged,) = report.compare_rows(kernels, [row(**cells)], "table").rows
    assert took_us(probe_of(row(**cells))) == pytest.approx(judged.predicted)


@pytest.mark.slow
def test_every_row_of_the_shared_table_is_a_kernel() -> None:
    if not SHARED.exists():
        pytest.skip("no ../shared/data here")
    with gzip.open(SHARED, "rt", encoding="utf-8") as file:
        probes = {probe_of(one) for one in csv.DictReader(file)}
    strange = {(probe.op, probe.variant.partition(" ")[0]) for probe in probes if not kernels_of(probe)}
    assert not strange


def test_gradients_of_groups_carry_the_sizes_of_the_forward_pass() -> None:
    """The gradient of weights is n by k over m tokens, and is added up in fp32."""
    found = {
        variant: kernels_of(Probe("grouped_gemm", "bf16", 616, 3072, 5120, 40, variant=variant))
        for variant in ("fwd", "bwd_grad_act", "bwd_grad_w")
    }
    shapes = {name: [(g.m, g.n, g.k, g.batch) for g in gemms if isinstance(g, Gemm)] for name, gemms in found.items()}
    assert shapes == {
        "fwd": [(616, 3072, 5120, 40)],
        "bwd_grad_act": [(616, 5120, 3072, 40)],
        "bwd_grad_w": [(3072, 5120, 616, 40)],
    }
    assert [gemm.part for gemm in found["bwd_grad_w"] if isinstance(gemm, Gemm)] == [Part.WEIGHT_GRADIENT]


@pytest.mark.parametrize(
    "probe",
    [
        Probe("gemm", "bf16", 64, 64), Probe("moe_ffn", "bf16", 64, 64, 64, 8, variant="topk9"),
        Probe("moe_ffn", "bf16", 64, 64, 64, 8), Probe("attention_fwd", "bf16", 0, 0, 0, 1, 64, 4, 4, 64),
        Probe("adam_bwd", "fp32", 1, 64), Probe("copy", "bf16", 1, 64, variant="h2d"), Probe("frobnicate", "bf16", 64, 64),
        Probe("gemm", "int4", 64, 64, 64),
    ],
)  # fmt: skip
def test_a_row_that_says_too_little_is_no_kernel(probe: Probe) -> None:
    assert kernels_of(probe) == ()


# What was timed together -----------------------------------------------------------------------------------------------------


def measured(probes: Iterable[Probe]) -> list[Measured]:
    return [Measured("H100-SXM", probe, 1e-3) for probe in probes]


def test_columns_add_up_what_was_timed_together() -> None:
    """The same as one by one."""
    gpu, unused = shipped_fits.gpu("h100"), Counter[str]()
    probes = [Probe("gemm_bwd", "bf16", 512, 1024, 2048), Probe("gemm", "bf16", 512, 1024, 2048)]
    probes += [Probe(f"attention_{way}", "bf16", 0, 0, 0, 2, 2048, 16, 4, 128, True) for way in ("fwd", "bwd", "fwd_bwd")]
    for group in groups(measured(probes), gpu, unused):
        family = group.family.name
        (fit,) = [f for f in shipped_fits.shipped().fits["h100"] if (f.family, f.dtype, f.library) in (
            ("gemm", "bf16", "any"), ("attention", "bf16", "fa3")) and f.family == family]  # fmt: skip
        by = Estimator(gpu, "bf16", shipped_fits.shipped(), Options("fa3" if family == "attention" else ""))
        whole: list[Any] = [kernels_of(one.probe) for one in group.rows]
        alone = [sum(by.estimate(replace(k, element_bytes=2)).seconds for k in ks) for ks in whole]
        assert group.family.seconds(fit.constants, group.timed, np.array([])).tolist() == pytest.approx(alone)
    assert not unused
    assert [len(kernels_of(probe)) for probe in probes] == [2, 1, 1, 1, 2]
    assert isinstance(kernels_of(probes[0])[0], Gemm)
    assert isinstance(kernels_of(probes[-1])[1], Attention)


EXPERTS = replace(GemmConstants(), compute=0.7, memory=0.6, ramp=400.0, odd=1.5)


def test_experts_of_a_table_are_fitted_and_a_profile_speaks_for_them(tmp_path: Path) -> None:
    """Within the error that the fit claims, at sizes between the measured ones."""
    gpu = shipped_fits.gpu("h200")
    sizes = [(m, n, k, 64, 6) for m in (64, 256, 1024, 4096) for n in (768, 1536, 2048, 1400) for k in (2048, 4096, 7168)]

    def true_s(m: int, n: int, k: int, experts: int, top_k: int) -> float:
        return float(moe_s(EXPERTS, machine(gpu, "bf16"), m, k, n, (experts, top_k)))

    rows = [
        Measured("H200", Probe("moe_ffn", "bf16", m, n, k, e, variant=f"topk{t}"), true_s(m, n, k, e, t))
        for m, n, k, e, t in sizes
    ]
    (judged,) = profile(rows, gpu, shipped_fits.shipped()).fits
    assert (judged.fit.family, judged.fit.rows) == ("moe", len(rows))
    assert judged.held_out
    (tmp_path / "table.csv").write_text(text(rows))
    trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml")
    own = shipped_fits.gpu("h200", str(tmp_path / "mine.yaml"))
    made = Estimator(own, "bf16", shipped_fits.fits_for(own)).estimate(Experts(2048, 1024, 5120, 64, 6, 2))
    assert made.seconds == pytest.approx(true_s(2048, 1024, 5120, 64, 6), rel=3 * judged.fit.sigma)
    assert (made.provenance, made.extrapolated) == ("measured", False)


# Constants -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [
        ("rowwise", "stream", 0), ("attention", "rows", 0), ("attention", "backward", 0), ("gemm", "compute", 0),
        ("gemm", "memory", 0), ("gemm", "norm", 0.5), ("attention", "overlap", 0), ("gemm", "odd", 0),
    ],
)  # fmt: skip
def test_constants_that_no_kernel_can_have_are_refused_with_their_line(
    tmp_path: Path, family: str, name: str, value: float
) -> None:
    fit = next(f for f in shipped_fits.shipped().fits["a100-pcie-80gb"] if f.family == family) if family == "rowwise" else next(
        f for f in shipped_fits.shipped().fits["h100"] if f.family == family
    )  # fmt: skip
    made: Any = replace(fit.constants, **{name: value})
    file = tmp_path / "mine.yaml"
    file.write_text(shipped_fits.text("h100", [replace(fit, constants=made)], "a profile"))
    with pytest.raises(UserError, match=rf"mine\.yaml:\d+.*{name}"):
        shipped_fits.load(file)
