"""The errors that docs/limits.md states are those that the reports in results/ print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

import pytest

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
