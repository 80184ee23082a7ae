"""Where a survey of a GPU writes, and what it says of rows; without anything to measure on."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest

import simulator as sim
from simulator.calibrate import fit_table, survey_folder
from simulator.calibrate.bench import run_queue
from simulator.calibrate.bench.training_step import HOST_STEP, KERNELS_OF_HOST_STEP
from simulator.config import shipped_fits
from simulator.costs.kernels.estimator import Estimator, Options
from simulator.measurements.kernel_table import Measured, text
from simulator.measurements.kernel_words import Probe, kernel_of

from ..project.source import modules
from ..project.test_layers import dotted, imports, module_of

H100 = "NVIDIA H100 80GB HBM3"


def measured(where: Path, *rows: Measured) -> Path:
    where.mkdir(parents=True)
    (where / survey_folder.RAW).write_text(text(rows))
    return where


def row(probe: Probe, seconds: float, gpu: str = H100, alone_s: float | None = None) -> Measured:
    return Measured(gpu, probe, seconds, seconds, seconds, 5, "trainsim calibrate gpu", alone_s=alone_s, cold=True)


LAUNCH = row(Probe("launch", "fp32", 512, 1, variant="eager"), 4.25e-6)
BESIDE = row(Probe("overlap", "bf16", 64, 64, 64, variant="gemm beside copy d2d"), 3e-5, alone_s=2e-5)


def began(root: Path, day: str, left: int | None, gpu: str = H100) -> Path:
    """A survey of a day, as it was left."""
    where = survey_folder.folder(None, gpu, day, root)
    if not where.exists():
        measured(where, row(LAUNCH.probe, LAUNCH.seconds, gpu))
    run_queue.begin(where, gpu, {"gpu": gpu}, day)
    if left is not None:
        fit_table.fit_survey(where, left)
    return where


@pytest.mark.parametrize(("left", "next_day"), [(3, "2026-03-01"), (None, "2026-03-01"), (0, "2026-03-02")])
def test_a_survey_that_is_not_complete_goes_on_the_day_after(tmp_path: Path, left: int | None, next_day: str) -> None:
    """As told by machine.json; one that was killed is not complete."""
    first = began(tmp_path, "2026-03-01", left)
    assert first == tmp_path / "h100-2026-03-01"
    assert survey_folder.folder(None, H100, "2026-03-02", tmp_path) == tmp_path / f"h100-{next_day}"


def test_only_the_newest_folder_of_the_same_gpu_counts(tmp_path: Path) -> None:
    began(tmp_path, "2026-03-01", 3)
    (tmp_path / "h100-2026-03-01").rename(tmp_path / "h100-2026-02-01")
    began(tmp_path, "2026-03-01", 3, "NVIDIA B200")
    (tmp_path / "h100-pcie-80gb-2026-03-05").mkdir()
    (tmp_path / "h100-notes").mkdir()
    (tmp_path / "h100-2026-02-02").mkdir()
    assert survey_folder.folder(None, H100, "2026-03-07", tmp_path).name == "h100-2026-02-02"
    assert survey_folder.folder("mine", H100, "2026-03-07", tmp_path) == Path("mine")


def test_the_days_of_a_survey_are_added_up(tmp_path: Path) -> None:
    for day in ("2026-03-01", "2026-03-02"):
        where = began(tmp_path, day, 3)
    assert json.loads((where / survey_folder.MACHINE).read_text())["measured"] == ["2026-03-01", "2026-03-02"]


def test_launches_suggest_a_host_time_and_copies_tell_what_they_cost(tmp_path: Path) -> None:
    written = fit_table.fit_survey(measured(tmp_path / "there", LAUNCH, BESIDE), 0)
    assert written.suggested == ("--set framework.host.kernel=4.25us",)
    assert written.slowdowns == {"gemm beside copy d2d m=64 n=64 k=64": pytest.approx(1.5)}
    assert json.loads((tmp_path / "there" / survey_folder.MACHINE).read_text()) == {
        "left": 0,
        "suggested": list(written.suggested),
    }
    lines = (tmp_path / "there" / survey_folder.FIT).read_text().splitlines()
    assert any(line.startswith("slowdown,bf16,,gemm beside copy d2d m=64 n=64 k=64,1.5,") for line in lines)


def test_a_step_that_waits_for_its_host_tells_more_than_a_chain_of_launches(tmp_path: Path) -> None:
    step = Probe("launch", "bf16", KERNELS_OF_HOST_STEP, 1, variant="step")
    written = fit_table.fit_survey(measured(tmp_path / "there", LAUNCH, row(step, 30e-6), BESIDE), 0)
    assert written.suggested == ("--set framework.host.kernel=30us",)


def test_a_step_has_as_many_kernels_as_are_simulated_for_it() -> None:
    """With launches of a second each, a step takes as many seconds as it has kernels."""
    sizes = HOST_STEP
    model = {"layers": sizes.layers, "hidden": sizes.hidden, "heads": sizes.heads, "ffn_hidden": sizes.ffn_hidden}
    model |= {"vocab": sizes.vocab, "gated_mlp": True, "tied_embeddings": False}
    job = {"sequence_length": sizes.seq, "global_batch": 1, "microbatch_size": 1, "optimizer": "adam-bf16"}
    slow = {"name": "pytorch-bf16-2026", "host": dict.fromkeys(("kernel", "collective"), "1 s")}
    given = {"model": model, "cluster": {"gpu": "h100", "gpus_per_node": 1}, "framework": slow}
    run = sim.scenario({**given, "job": {**job, "gradient_clipping": False}}).simulate()
    assert round(run.metrics.step_time_s) == KERNELS_OF_HOST_STEP


def test_what_is_written_out_is_compared_with_what_is_predicted_of_that(tmp_path: Path) -> None:
    """And one kernel with one kernel: rows that take what is predicted have ratios of 1."""
    gpu = replace(shipped_fits.gpu("h100"), cache_bytes=0.0)
    probes = [Probe(op, "bf16", 4096 * i, 4096) for op in ("layernorm", "softmax") for i in range(1, 5)]
    probes += [Probe("elementwise", "bf16", 4096 * i, 4096, variant="add") for i in range(1, 5)]
    probes += [Probe(op, "bf16", 4096 * i, 4096, variant="eager") for op in ("rope", "cross_entropy") for i in range(1, 5)]
    rows = []
    for probe in probes:
        kernel = kernel_of(probe)
        assert kernel is not None
        by = Estimator(gpu, "bf16", shipped_fits.shipped(), Options(eager=probe.variant == "eager"))
        rows.append(row(probe, by.estimate(kernel).seconds))
    written = fit_table.fit_survey(measured(tmp_path / "there", *rows))
    assert written.profile
    assert set(written.profile.fits[0].fit.ratios) == {"layernorm", "softmax"}
    with (tmp_path / "there" / survey_folder.FIT).open() as file:
        lines = [line for line in csv.DictReader(file) if line["what"] == "measured over predicted"]
    assert {line["constant"]: float(line["value"]) for line in lines} == {
        name: pytest.approx(1, abs=0.06)
        for name in ("layernorm bf16", "softmax bf16", "elementwise add bf16", "rope eager bf16", "cross_entropy eager bf16")
    }


def test_a_cpu_launches_nothing(tmp_path: Path) -> None:
    assert not fit_table.fit_survey(measured(tmp_path / "there", row(LAUNCH.probe, 1e-6, "cpu"))).suggested


def test_a_suggestion_stands_in_the_profile_too_and_it_can_be_read(tmp_path: Path) -> None:
    pointwise = [
        row(Probe("elementwise", "bf16", 2**i, 4096, variant="add"), 2e-6 + 2**i * 4096 * 6 / 2.7e12) for i in range(6, 15)
    ]
    where = measured(tmp_path / "there", LAUNCH, *pointwise)
    assert fit_table.fit_survey(where).profile
    first, *_ = (where / survey_folder.PROFILE).read_text().split("gpu: h100")
    assert "# The launches beside them suggest --set framework.host.kernel=4.25us\n" in first
    assert shipped_fits.load(where / survey_folder.PROFILE)[0] == "h100"


def test_of_a_gpu_outside_the_catalog_the_next_command_is_told(tmp_path: Path) -> None:
    where = measured(tmp_path / "there", row(LAUNCH.probe, 1e-6, "NVIDIA Z900"))
    written = fit_table.fit_survey(where)
    assert "'NVIDIA Z900', is not in the catalog" in str(written.why_no_profile)
    assert written.hint is not None
    assert written.hint.startswith("--gpu names one that is, or a file of yours; then: ")
    assert f"trainsim calibrate fit {where / survey_folder.RAW} --gpu FILE.yaml" in written.hint


def test_measuring_and_fitting_do_not_know_each_other() -> None:
    """Directly or through others: what both need stands below them."""
    folder, bench = "simulator.calibrate.", "simulator.calibrate.bench."
    own = {dotted(module): module for module in modules() if dotted(module).startswith(folder)}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_edges_from((name, module_of(found.name, own) or "") for name, module in own.items() for found in imports(module))
    measure = {name for name in own if name.startswith(bench)}
    fit = {folder + name for name in ("fit_table", "fit_profile")}
    assert measure
    for these, those in ((measure, fit), (fit, measure)):
        for name in these & graph.nodes:
            assert not nx.descendants(graph, name) & those, name
