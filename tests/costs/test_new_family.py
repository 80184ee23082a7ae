"""A new family of kernels is one file: dropped into the folder it is fitted, written, read, borrowed, predicted and validated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator.costs.kernels
from simulator.calibrate import fit_profile
from simulator.calibrate.fit_profile import profile
from simulator.config import shipped_fits
from simulator.costs.kernels.estimator import Estimator
from simulator.costs.kernels.family import Fit, families
from simulator.errors import UserError
from simulator.measurements import kernel_words
from simulator.measurements.kernel_table import Measured
from simulator.measurements.kernel_words import Probe

GPU = "h100"
SHAPES = [(m, n, k, 8) for m, n, k in product((512, 4096, 32768), (1024, 2048, 4096, 8192), (512, 2048, 6144))]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the new family, in the package as long as a test lasts; a row calls its kernels by their name."""
    monkeypatch.setattr(
        simulator.costs.kernels, "__path__", [*simulator.costs.kernels.__path__, str(Path(__file__).parent / "throwaway")]
    )
    families.cache_clear()
    module = __import__("simulator.costs.kernels.grouped_gemm", fromlist=["GroupedGemm"])

    def kernels_of(probe: Probe) -> Any:
        grouped = module.GroupedGemm(probe.m, probe.n, probe.k, probe.batch)
        return (grouped,) if probe.op == "toy_grouped_gemm" else kernel_words.kernels_of(probe)

    monkeypatch.setattr(fit_profile, "kernels_of", kernels_of)
    yield module
    families.cache_clear()


def rows(module: Any, compute: float, noise: float = 0.02) -> list[Measured]:
    """What a machine would measure whose grouped GEMMs reach a share of the peak."""
    by, random = Estimator(shipped_fits.gpu(GPU), "bf16", shipped_fits.shipped()), np.random.default_rng(1)
    true = module.GroupedConstants(launch_us=9.0, compute=compute)
    fits = shipped_fits.overlaid(by.gpu, [fit(true)])
    probes = [Probe("toy_grouped_gemm", "bf16", *shape) for shape in SHAPES]
    return [
        Measured(GPU, one, replace(by, fits=fits).estimate(module.GroupedGemm(*shape)).seconds * float(np.exp(noise * drawn)))
        for one, shape, drawn in zip(probes, SHAPES, random.standard_normal(len(SHAPES)), strict=True)
    ]


def fit(constants: Any) -> Any:
    return Fit("grouped_gemm", "bf16", "any", constants, 0.01, {})


def test_a_family_that_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert "grouped_gemm" not in families()
    (tmp_path / "mine.yaml").write_text(f"gpu: {GPU}\nfits: [{{family: grouped_gem, sigma: 0.1, constants: {{}}}}]\n")
    with pytest.raises(UserError, match="'grouped_gem' is not a family of kernels"):
        shipped_fits.load(tmp_path / "mine.yaml")


def test_one_file_is_a_family(added: Any, tmp_path: Path) -> None:
    gpu, ships = shipped_fits.gpu(GPU), shipped_fits.shipped()
    table = rows(added, 0.55)
    (judged,) = profile(table, gpu, ships).fits
    assert judged.held_out >= 6
    assert judged.fit.constants.compute == pytest.approx(0.55, rel=0.05)
    assert judged.fit.constants.launch_us == pytest.approx(9.0, rel=0.1)

    (tmp_path / "mine.yaml").write_text(shipped_fits.text(GPU, [judged.fit], "mine"))
    name, read = shipped_fits.load(tmp_path / "mine.yaml")
    assert (name, [one.family for one in read]) == (GPU, ["grouped_gemm"])
    (tmp_path / "bad.yaml").write_text(shipped_fits.text(GPU, [judged.fit], "mine").replace("compute:", "computes:"))
    with pytest.raises(UserError, match="compute is missing"):
        shipped_fits.load(tmp_path / "bad.yaml")

    mine = Estimator(gpu, "bf16", shipped_fits.overlaid(gpu, read))
    errors = [
        mine.estimate(added.GroupedGemm(*shape)).seconds / row.seconds - 1 for shape, row in zip(SHAPES, table, strict=True)
    ]
    assert np.median(np.abs(errors)) < 3 * judged.fit.sigma
    said = mine.estimate(added.GroupedGemm(4096, 4096, 2048, 8))
    assert (said.provenance, said.extrapolated, said.model) == ("measured", False, "grouped_gemm: bf16 any of h100")
    assert mine.estimate(added.GroupedGemm(4096, 2**16, 2048, 8)).extrapolated


def test_it_is_borrowed_and_scaled_as_others_are(added: Any) -> None:
    """By a GPU of the same kernels, by one of a few rows, and by nobody the usual constants."""
    kernel, h200 = added.GroupedGemm(32768, 8192, 6144, 8), shipped_fits.gpu("h200")
    usual = Estimator(h200, "bf16", shipped_fits.shipped()).estimate(kernel)
    assert (usual.provenance, usual.extrapolated) == ("roofline", True)
    owner = shipped_fits.gpu(GPU)
    fits = shipped_fits.overlaid(owner, [fit(added.GroupedConstants(compute=0.5))])
    borrowed = Estimator(h200, "bf16", fits).estimate(kernel)
    assert borrowed.provenance == "transferred"
    assert borrowed.seconds > usual.seconds
    (judged,) = profile(rows(added, 0.35, noise=0.0)[-1:], owner, fits).fits
    assert judged.scaled
    assert judged.scaled.times == pytest.approx(0.5 / 0.35, rel=0.05)
