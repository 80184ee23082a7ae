"""Reasons on a page and in a terminal: one name has one number, nothing is left out, and what adds up to a bar does."""

from __future__ import annotations

import re
from functools import cache
from html import unescape

import pytest

import simulator as sim
from simulator.advise.shown_parts import idle_rows, path_sentences, waterfall_rows
from simulator.metrics.idle import BUBBLE, BUSY, OPTIMIZER
from simulator.report.page import page
from simulator.report.timeline_data import timeline_data
from simulator.simulation.run import Run
from simulator.study.idle_causes import idle_time

from ..small_scenarios import scenario, small_cluster, small_model

LARGE = {"hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336}


@cache
def crowded() -> Run:
    """A run whose axes wait for full links some of the time, and alone the rest of it."""
    cluster = small_cluster(4, shape="leaf-spine", oversubscription=16, inter_node="4x100 Gbit/s")
    job = sim.Job(sequence_length=2048, global_batch=32)
    return scenario(small_model(**LARGE), cluster, sim.Plan(tp=2, pp=2, dp=4, rank_order="tp-dp-pp"), job).simulate()


def rows_of(text: str, title: str) -> list[list[str]]:
    """The rows of the table of a section, with a dash before those that are parts of others."""
    section = text[text.index(f"<h2>{title}</h2>") :].partition("</section>")[0]
    found = re.findall("<tr( class=.part.)?>(.*?)</tr>", section.partition("<tbody>")[2])
    return [["- " * bool(part) + unescape(cell) for cell in re.findall("<td[^>]*>(.*?)</td>", row)] for part, row in found]


def test_an_axis_has_one_number_with_its_full_links_below_it() -> None:
    run = crowded()
    text = page(run, timeline_data(run))
    bars = dict(re.findall(r"<i style=[^>]*></i>([^<]*?) ([\d.]+%)</span>", text))
    rows = rows_of(text, "What ranks wait for")
    shown = {row[0]: row[1] for row in rows}
    assert len(shown) == len(rows)
    assert {name: shown[name] for name in bars if name.startswith("exposed")} == {
        name: share for name, share in bars.items() if name.startswith("exposed")
    }
    at = [row[0] for row in rows].index("exposed dp")
    assert rows[at + 1][0] == "- of it at full links nic > leaf and leaf > nic"


@pytest.mark.parametrize(("most", "least_s"), [(12, 0.0), (2, 0.0), (12, 0.001)])
def test_rows_of_idle_time_add_up_to_the_bars(most: int, least_s: float) -> None:
    run = crowded()
    found, observed = run.time_by_cause, run.observation
    rows = idle_rows(idle_time(run), most, least_s, without=(OPTIMIZER,))
    bars = {cause: observed.mean_s(found.of(cause)) for cause in found.causes if cause not in (BUSY, OPTIMIZER)}
    whole = [row for row in rows if not row.part]
    assert sum(row.seconds for row in whole) == pytest.approx(sum(bars.values()))
    for row in whole:
        assert not row.axis or row.seconds == pytest.approx(bars[row.cause])
    if not least_s and most > len(whole):
        of_bubble = [row for row in whole if not row.axis and row.cause]
        assert sum(row.seconds for row in of_bubble) == pytest.approx(bars[BUBBLE])
    else:
        alone = least_s > 0 and whole[-1].cause and whole[-1].seconds < least_s  # a single one is named
        assert alone or re.fullmatch(r"\d+ shorter causes", whole[-1].text)


def test_a_page_has_all_parts_of_an_explanation() -> None:
    run = crowded()
    found = sim.explain(run)
    text = unescape(page(run, timeline_data(run), found))
    assert len(path_sentences(found.path)) == 3, "with stages and full links"
    assert all(sentence in text for sentence in path_sentences(found.path))
    assert found.splits
    assert found.splits.text(run.metrics.step_time_s) in text
    assert rows_of(text, "Why a step takes as long as it does") == waterfall_rows(found.waterfall)
    rows = {row[0] for row in rows_of(text, "What ranks wait for")}
    assert {OPTIMIZER, "exposed dp", "warm-up"} <= rows
    assert "trainsim explain --report" not in text
