"""The errors that docs/limits.md states are those that the reports in results/ print."""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Callable, Iterable
from functools import cache

import pytest

import simulator as sim
from simulator.measurements import published_runs

from .source import ROOT

Row = dict[str, str]
MEMORY_BOUND = ("swiglu", "rmsnorm", "elementwise", "rope", "embedding", "layernorm")
HELD_OUT = ("Held-out values", "Other held-out values")
BROKEN, SERVERS, PAIRS, A40 = ODD = "cluster00", " server", "100 pairwise", "A40"


@cache
def tables(study: str) -> dict[str, list[Row]]:
    """The first table below each heading of a report."""
    text = (ROOT / "results" / study / "report.md").read_text(encoding="utf-8")
    found = {}
    for section in text.split("\n## ")[1:]:
        lines = [line.strip("|").split("|") for line in section.split("\n") if line.startswith("|")]
        head, _, *rows = [[cell.strip() for cell in line] for line in lines] if len(lines) > 2 else ([], [])
        found[section.partition("\n")[0]] = [dict(zip(head, row, strict=False)) for row in rows]
    return found


def number(cell: str) -> float:
    """The first number of a cell: the mean, where a percentile follows."""
    found = re.search(r"[\d.]+", cell)
    assert found, cell
    return float(found[0])


def kernels(column: str, headings: Iterable[str], wanted: Callable[[Row], bool]) -> list[float]:
    return [number(row[column]) for heading in headings for row in tables("kernels")[heading] if wanted(row)]


def collectives(heading: str, where: str, wanted: Callable[[str], bool] = lambda system: True) -> list[float]:
    """Medians of the systems."""
    rows = [row for row in tables("collectives")[heading] if row["where"] == where and not row["system"].startswith("all rows")]
    return [number(row["median"]) for row in rows if wanted(row["system"])]


def whole(*operators: str) -> list[float]:
    return [
        number(row["median"])
        for name in operators
        for row in tables("kernels")["The whole table"]
        if row["GPU + operator"] == name
    ]


def between(values: list[float]) -> str:
    low, high = round(min(values)), round(max(values))
    return f"{low} to {high}%" if low < high else f"{low}%"


def products(row: Row) -> bool:
    return row["family"] == "gemm" and row["dtype"] != "fp32"


def single(row: Row) -> bool:
    return row["family"] == "gemm" and row["dtype"] == "fp32" and row["GPU"] != "p4"


def of_p4(row: Row) -> bool:
    return row["GPU"] == "p4"


def of(family: str) -> Callable[[Row], bool]:
    return lambda row: row.get("family") == family


BORROWED, SUMS = ["One GPU left out"], ["Machines that were not fitted"]
SIZES, SYSTEMS = "Leave one size out", "Leave one system out"
STATED: dict[str, Callable[[], str]] = {
    "GEMMs of training size": lambda: between(kernels("large", HELD_OUT, products)),
    "the same, all sizes |": lambda: between(kernels("all", HELD_OUT, products)),
    "attention forward": lambda: between(kernels("large", HELD_OUT, of("attention"))),
    "attention backward": lambda: "{:.0f}% / {:.0f}%".format(*whole("A100-PCIE-80+attention_bwd", "H100-SXM+attention_bwd")),
    "experts in one": lambda: between(kernels("all", HELD_OUT, of("moe"))),
    "memory-bound": lambda: between(whole(*(f"{gpu}+{op}" for gpu in ("A100-SXM-80", "H100-SXM") for op in MEMORY_BOUND))),
    "GEMMs in fp32": lambda: between(kernels("all", HELD_OUT, single)),
    "the same on P4": lambda: " / ".join(between(kernels(sizes, HELD_OUT, of_p4)) for sizes in ("all", "large")),
    "sums over": lambda: between(kernels("layer sums", SUMS, lambda row: True)),
    "borrowed constants: GEMMs": lambda: between(kernels("median", BORROWED, of("GEMM"))),
    "borrowed constants: attention": lambda: between(kernels("median", BORROWED, of("attention"))),
    "borrowed constants: experts": lambda: between(kernels("median", BORROWED, of("experts"))),
    "borrowed constants: memory-bound": lambda: between(kernels("median", BORROWED, of("memory-bound"))),
    "collectives with curves": lambda: " / ".join(between(collectives(SIZES, where)) for where in ("inside", "across")),
    "collectives without": lambda: " / ".join(
        between(collectives(SYSTEMS, where, lambda name: not any(word in name for word in ODD))) for where in ("inside", "across")
    ),
    "PCIe servers": lambda: "; ".join(
        between(collectives(SYSTEMS, "inside", lambda system, word=word: word in system)) for word in (SERVERS, PAIRS, A40)
    ),
    "a cluster with a faulty": lambda: between(collectives(SYSTEMS, "across", lambda system: BROKEN in system)),
}  # fmt: skip
"""How a line of the table begins, and what it says first."""


def stated() -> list[str]:
    """The lines of the table of errors."""
    lines = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line.startswith("| ")][1:]


def test_docs_limits_every_line_of_the_table_is_checked() -> None:
    assert len(stated()) == len(STATED)


@pytest.mark.parametrize("line", STATED)
def test_docs_limits_states_what_the_reports_print(line: str) -> None:
    (said,) = [found for found in stated() if found.startswith(f"| {line}")]
    assert f"| {STATED[line]()}" in said


def test_docs_limits_summary_states_the_same_of_borrowed_constants() -> None:
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    gemms, attention = STATED["borrowed constants: GEMMs"](), STATED["borrowed constants: attention"]()
    assert f"(`transferred`): GEMMs {gemms} off, attention {attention}." in page


def test_docs_limits_summary_states_the_same_of_experts() -> None:
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    assert f"kernels of experts are {STATED['experts in one']()} off on average." in page


def test_docs_limits_summary_states_the_same_of_gpus_with_measurements() -> None:
    usual = {"a100-80gb": "flash_attention", "h100": "fa3", "b200": "torch_flow"}
    gemms = kernels("all", HELD_OUT, lambda row: products(row) and row["dtype"] == "bf16" and row["GPU"] in usual)
    wires = [median for where in ("inside", "across") for median in collectives(SIZES, where)]
    attention = kernels("all", HELD_OUT, lambda row: of("attention")(row) and usual.get(row["GPU"]) == row["library"])
    others = [number(STATED["memory-bound"]().partition(" to ")[2]), *attention]
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    assert f"are off by up to {max(gemms + wires):.0f}% on average, other kernels by up to {max(others):.0f}%." in page


def test_docs_limits_links_to_its_own_headings() -> None:
    """Each section is named once in the list at the top, or stands under one that is."""
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#{2,3} (.*)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    linked = re.findall(r"\]\(#([^)]*)\)", page)
    assert set(linked) <= anchors
    sections = {re.sub(r"[^\w -]", "", of.lower()).replace(" ", "-") for of in re.findall(r"^## (.*)$", page, re.MULTILINE)}
    assert sections <= set(linked)
    assert len(linked) == len(set(linked))


def test_docs_limits_states_how_far_off_single_published_numbers_are() -> None:
    errors = [float(row["error"].strip("%")) for row in tables("collectives")["Published summaries"]]
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    assert f"between {-min(errors):.0f}% below and {max(errors):.0f}% above" in page


def limits() -> str:
    """The page, with each paragraph on one line."""
    return re.sub(r"\n +", " ", (ROOT / "docs" / "limits.md").read_text(encoding="utf-8"))


def test_docs_limits_states_which_targets_of_kernels_are_missed() -> None:
    """A page that names none of a kind is right as long as no row of this kind is missed."""
    assert "missed: none of GEMMs in bf16, some of GEMMs in narrower formats on H200 and data-centre Blackwell" in limits()
    missed = [row for heading in HELD_OUT for row in tables("kernels")[heading] if "missed" in " ".join(row.values())]
    on = {(row["family"], row["dtype"] == "fp32"): set[str]() for row in missed}
    for row in missed:
        on[row["family"], row["dtype"] == "fp32"].add(row["GPU"])
    assert not [row for row in missed if row["family"] == "gemm" and row["dtype"] == "bf16"]
    blackwell = {"b200", "b300", "gb200", "gb300"}
    assert on.keys() == {("gemm", False), ("gemm", True), ("attention", False)}
    assert on["gemm", False] == blackwell | {"h200"}
    assert on["attention", False] <= blackwell


@cache
def predicted() -> list[Row]:
    """The published runs with their predictions."""
    with (ROOT / "results" / "validation" / "predictions.csv").open() as file:
        return [row for row in csv.DictReader(file) if not row["skipped"]]


def test_docs_limits_states_how_far_off_the_memory_of_published_runs_is() -> None:
    of = {
        row["id"]: float(row["memory_gb"]) / float(row["measured_memory_gb"]) for row in predicted() if row["measured_memory_gb"]
    }
    rows = {row["id"]: row for row in predicted()}
    says_what = [abs(ratio - 1) for row, ratio in of.items() if rows[row]["source"] != "mle-h200-b200"]
    assert f"half of the {len(says_what)} published peaks of which a source says what they count are within 4%" in limits()
    assert 0.035 <= statistics.median(says_what) < 0.04
    assert 0.08 <= statistics.quantiles(says_what, n=10)[-1] < 0.09
    least = min(ratio for row, ratio in of.items() if rows[row]["parallelism"] == "pipeline and FSDP")
    assert f"of pipelines with FSDP up to {1 - least:.0%} less is predicted than was published" in limits()
    torchtitan = [abs(ratio - 1) for row, ratio in of.items() if rows[row]["source"] == "torchtitan-h100"]
    off = f"{statistics.median(torchtitan):.0%}: its runs of 405B with pipelines take up to {1 / least - 1:.0%} more"
    assert f"Of torchtitan the median error of memory is {off} than is counted." in limits()


def test_docs_limits_states_the_errors_of_broadcasts_and_reductions_over_hundreds_of_gpus() -> None:
    """A group of all ranks is stated in a plan, and one of 8 is that of the framework."""
    plan = re.compile(
        r"dp (\d+), sharding (?:zero1\b|\{'kind': 'zero1', 'group': (\d+)\}).*; (\d+) x \d+ tokens, (\d+) at a time"
    )
    of_all, of_eight = list[float](), list[float]()
    for row in predicted():
        if row["source"] != "internevo" or int(row["gpus"]) < 512 or not (found := plan.search(row["states"])):
            continue
        dp, group, sequences, together = (int(number or 8) for number in found.groups())
        few = sequences <= 2 * dp * together and int(row["gpus"]) == 1024
        if group == dp or few:
            (of_all if group == dp else of_eight).append(1 - float(row["predicted_s"]) / float(row["measured_s"]))
    assert f"in a group, steps come out {100 * min(of_all):.0f} to {max(of_all):.0%} too short." in limits()
    assert f"of one or two microbatches on 1,024 with groups of 8 ({100 * min(of_eight):.0f} to {max(of_eight):.0%})" in limits()


def test_docs_limits_states_the_errors_of_rings_of_eight() -> None:
    rings = [row for row in predicted() if row["source"] == "torchtitan-h100" and " cp 8," in row["states"]]
    short = [1 - float(row["predicted_s"]) / float(row["measured_s"]) for row in rings]
    assert f"with rings of 8 ranks come out {100 * min(short):.0f} to {max(short):.0%} too short" in limits()


def test_docs_limits_states_how_far_off_steps_of_single_gpus_are() -> None:
    off = {row["step"]: -float(row["error"].rstrip("%")) for row in tables("calibration")["Steps"]}
    large = [error for step, error in off.items() if "125m" not in step]
    assert f"predicted {min(large):.1f} to {max(large):.0f}% too fast from kernels alone" in limits()
    small = {step: error for step, error in off.items() if "125m" in step}
    graphs = [error for step, error in small.items() if step.endswith("graph")]
    eager = [error for step, error in small.items() if step.endswith("eager")]
    assert f"predicted {min(graphs):.0f} to {max(graphs):.0f}% too fast in CUDA graphs, from kernels alone" in limits()
    assert f"between {max(eager):.0f}% too fast and {-min(eager):.0f}% too slow" in limits()
    scenarios = {
        row["id"]: json.loads(row["scenario"]) for row in published_runs.rows() if row["source_key"] == "single-gpu-steps"
    }
    sizes = [sim.scenario(of).model.parameters / 1e9 for step, of in scenarios.items() if "125m" not in step]
    assert (min(sizes), max(sizes)) == (pytest.approx(1.5, abs=0.05), pytest.approx(1.9, abs=0.05))
    assert "Steps of models of 1.5 to 2 billion parameters" in limits()


def test_docs_limits_states_what_an_all_to_all_reaches_on_a_cube_mesh() -> None:
    (row,) = sim.collective("alltoall", sim.cluster("dgx1-v100", nodes=1), [1 << 34]).rows
    assert f"{row.bus_gb_per_s:.0f} GB/s of bus bandwidth on eight V100" in limits()


def test_docs_limits_states_how_far_off_the_power_of_busy_steps_is() -> None:
    """Steps of over 0.1 s; the report gives the mean power that was measured on each board."""
    text = (ROOT / "results" / "calibration" / "report.md").read_text(encoding="utf-8")
    boards = {gpu: text.split(f"## NVIDIA {gpu.upper()}")[1].partition("\n## ")[0] for gpu in ("h200", "h100")}
    watts = {
        (gpu, cells[1].partition(":")[0], "cudnn" in cells[1], "graph" in cells[1]): float(cells[-1])
        for gpu, section in boards.items()
        for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines())
        if cells[0] == "step"
    }
    over = []
    for row in published_runs.rows():
        if row["source_key"] != "single-gpu-steps" or "125m" in row["id"]:
            continue
        gpu, size, layers = row["id"].split("-")[:3]
        heads = ", all heads" if "all-heads" in row["id"] else ""
        measured_w = watts[gpu, f"{size} of {layers} layers{heads}", "cudnn" in row["id"], "graph" in row["id"]]
        energy = sim.scenario(json.loads(row["scenario"])).simulate(allow_oom=True).energy
        over.append(measured_w / energy.mean_w - 1)
    assert len(over) == 16
    said = f"{100 * min(over):.0f} to {max(over):.0%} higher than predicted"
    assert f"The mean power of sixteen busy steps on our two boards is {said}" in limits()
