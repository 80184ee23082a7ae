"""The report: what its timeline holds is what was simulated, and a browser draws it without asking anything of anyone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.errors import UserError
from simulator.report import timeline_data as packing
from simulator.report.page import page, report
from simulator.report.timeline_data import timeline_data
from simulator.simulation.run import Run
from simulator.study.idle_causes import idle_time
from simulator.units import show_bytes, show_count

from ..commandline import trainsim
from ..small_scenarios import scenario, small_cluster, small_model

PLANS = {
    "interleaved": sim.Plan(tp=2, pp=4, dp=2, chunks=2, schedule="interleaved", sharding="zero1"),
    "pairs": sim.Plan(tp=2, pp=4, dp=2, schedule="dualpipe"),
    "split": sim.Plan(tp=2, pp=4, dp=2, chunks=2, schedule="zb-v", optimizer="post-validated"),
    "fsdp": sim.Plan(dp=16, sharding="fsdp"),
}
FOLDER = Path(packing.__file__).parent
HOSTILE = "<script>alert(1)</script><!--"


def simulated(name: str) -> Run:
    return scenario(cluster=small_cluster(4), plan=PLANS[name]).simulate(allow_oom=True)


def unpacked(packed: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[tuple[str, int, int, int, str]]]]:
    """Every rank with its operations, as the script of the page finds them: stream, start, end, microbatch, label."""
    for rank in packed["ranks"]:
        rows = []
        for lane in rank["lanes"]:
            now, runs = 0, lane["runs"]
            for word, gap, step in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
                now += gap
                for entry in packed["words"][word]:
                    pause, lasts, label, other = packed["entries"][4 * entry : 4 * entry + 4]
                    at = rank["steps"][step][7] if other else step
                    now += pause + lasts
                    rows.append((lane["name"], now - lasts, now, rank["steps"][at][2], packed["labels"][label]))
        yield rank, rows


@pytest.mark.parametrize("name", PLANS)
def test_the_packed_timeline_is_the_timeline(name: str) -> None:
    run = simulated(name)
    shown = timeline_data(run)
    assert shown.bars == sum(len(rows) for _, rows in unpacked(shown.packed))
    for rank, (_, rows) in zip(shown.ranks, unpacked(shown.packed), strict=True):
        table = run.timeline.to_pandas(ranks=[rank])
        table = table[table.end_ns > table.start_ns]
        expected = Counter(zip(table.stream, table.start_ns, table.end_ns, table.microbatch, strict=True))
        assert Counter(row[:4] for row in rows) == expected
        words = Counter(row[4].partition(",")[0].partition(" (")[0] for row in rows)
        assert words == Counter(block.partition(" (")[0] for block in table.block)


@pytest.mark.parametrize("name", PLANS)
def test_slots_span_their_kernels_and_lie_in_the_step(name: str) -> None:
    run = simulated(name)
    packed = timeline_data(run).packed
    for rank, rows in unpacked(packed):
        slots = [step for step in rank["steps"] if step[6] > step[5]]
        kernels = [row for row in rows if row[0] == "compute"]
        assert min(step[5] for step in slots) == min(row[1] for row in kernels)
        assert max(step[6] for step in slots) == max(row[2] for row in kernels)
        assert all(0 <= row[1] <= row[2] <= packed["lastsNs"] or run.observation.window.begin_ns.any() for row in rows)


def test_curves_of_memory_are_those_of_the_run_or_keep_their_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulated("interleaved")

    def curves() -> Iterator[tuple[Any, Any, Any, Any]]:
        shown = timeline_data(run)
        for rank, one in zip(shown.ranks, shown.packed["ranks"], strict=True):
            yield (*(np.cumsum(column) for column in one["memory"]), *run.role_memory_over_time(run.coordinate(rank)))

    for times, held, whole_s, whole in curves():
        assert np.abs(times - whole_s * 1e9).max() < 1
        assert (held == whole).all()
    monkeypatch.setattr(packing, "MOST_POINTS", 0)
    monkeypatch.setattr(packing, "SPANS", 10)
    for times, held, whole_s, whole in curves():
        assert len(times) <= 21
        assert (np.diff(times) >= 0).all()
        assert times[-1] == round(whole_s[-1] * 1e9)
        assert (held.max(), held.min(), held[-1]) == (whole.max(), whole.min(), whole[-1])


def test_a_large_run_shows_fewer_ranks_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulated("interleaved")
    rows = len(run.labels[0].step)
    monkeypatch.setattr(packing, "MOST_BARS", 2 * rows + rows // 2)
    shown = timeline_data(run)
    assert (shown.ranks, shown.left_out) == ((0, 12), "2 of 4 pipeline ranks")
    assert "2 of 4 pipeline ranks are shown" in page(run, shown)
    assert "2 of 4 pipeline ranks are shown; the mean is of all" in page(run, shown)
    monkeypatch.setattr(packing, "MOST_BARS", 1)
    assert len(timeline_data(run).ranks) == 1
    assert len(timeline_data(run, ranks=[0, 1, 5]).ranks) == 3


def test_a_slow_rank_is_shown_and_ranks_have_one_name_throughout() -> None:
    run = scenario(
        cluster=small_cluster(4), plan=sim.Plan(tp=2, pp=2, dp=4), perturb=(sim.Perturb(rank=13, speed=0.6),)
    ).simulate()
    shown = timeline_data(run)
    packed = {one["rank"]: one for one in shown.packed["ranks"]}
    assert packed[13]["name"] == "pipeline rank 1 (rank 13)"
    assert packed[13]["about"] == "stage 1, perturbed"
    text = page(run, shown)
    assert text.count("pipeline rank 1 (rank 13)</span>") == 1, "in the bars of time"
    assert text.count("pipeline rank 1 (rank 8)") == 5, "twice each for time and memory, and in the data of the timeline"
    assert timeline_data(simulated("fsdp")).packed["ranks"][0]["name"] == "rank 0"


class Tags(HTMLParser):
    """The tags of a page, those that stay open, what it would load, and its text outside scripts."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing() -> None:
    run = simulated("pairs")
    text = page(run, timeline_data(run), sim.explain(run))
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    assert not tags.loads
    assert "http" not in re.sub(r'http-equiv="[^"]*"', "", text)
    assert tags.seen.count("script") == 2
    for expected in (
        f"{run.metrics.mfu:.1%}",
        "Why a step takes as long as it does",
        "What would make it shorter",
        "Memory by class",
    ):
        assert expected in text
    assert "What ranks wait for" in page(run, timeline_data(run))


def test_the_shares_of_a_bar_are_those_of_the_step() -> None:
    run = simulated("interleaved")
    text = page(run, timeline_data(run))
    first = text[text.index("mean of all ranks") :]
    widths = [float(width) for width in re.findall(r"width:([0-9.]+)%", first[: first.index("</div></div>")])]
    assert sum(widths) == pytest.approx(100, abs=0.5)
    assert widths[0] == pytest.approx(100 * run.metrics.busy_s / run.metrics.step_time_s, abs=0.01)


def test_the_table_of_the_network_says_what_its_shares_are_of() -> None:
    run = simulated("interleaved")
    text = page(run, timeline_data(run))
    rows = re.findall("<tr>(.*?)</tr>", text[text.index("<h2>Network</h2>") : text.index("<h2>What costs most</h2>")])
    cells = [re.findall("<t[hd][^>]*>(.*?)</t", row) for row in rows]
    assert cells[0][-2:] == ["mean wait, of the step", "at full links, of the step"]
    used = [of for of in run.network.classes if of["bytes"]]
    for row, of in zip(cells[1:], used, strict=True):
        assert row[2] == show_bytes(of["bytes"])
        assert row[-2:] == [f"{of[key] / run.metrics.step_time_s:.1%}" for key in ("waited_s", "full_s")]


def test_a_run_of_every_message_has_a_page_that_does_not_divide_the_bubble() -> None:
    """To divide it would take another simulation with other durations."""
    plan, fidelity = sim.Plan(tp=2, pp=2, dp=2), sim.Fidelity(collectives="stepwise")
    run = scenario(cluster=small_cluster(2), plan=plan, fidelity=fidelity).simulate()
    step_s = run.metrics.step_time_s
    (table,) = re.findall(r"<h2>What ranks wait for</h2>(.*?)</section>", page(run, timeline_data(run)), re.DOTALL)
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in table.split("<tr")[2:]]
    told = {row[0]: row[1] for row in rows}
    assert told["pipeline bubble"] == f"{run.metrics.bubble_fraction:.1%}"
    assert idle_time(run).mean_s("bubble") == pytest.approx(run.metrics.bubble_fraction * step_s, rel=1e-12)


def test_names_from_outside_are_text() -> None:
    run = scenario(model=small_model(name=HOSTILE), plan=sim.Plan(tp=2)).simulate(allow_oom=True)
    text = page(run, timeline_data(run))
    assert HOSTILE not in text
    assert "<!--" not in text
    assert "&lt;script&gt;alert(1)" in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert HOSTILE in data["title"]


def test_equal_runs_give_equal_pages(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        report(simulated("split"), tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_nothing_is_written_where_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        report(simulated("fsdp"), tmp_path / "nowhere" / "a.html")
    with pytest.raises(UserError, match="no rank 99"):
        report(simulated("fsdp"), tmp_path / "a.html", ranks=[99])
    assert not list(tmp_path.iterdir())


def test_commands_write_it(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    done = trainsim("run", "three-axes-64xh100", "--report", file)
    assert done.code == 0
    assert f"{file}, " in done.out.replace("\n" + " " * 17, "")
    assert "What ranks wait for" in file.read_text(encoding="utf-8")
    assert trainsim("run", "three-axes-64xh100", "--report", tmp_path / "report.txt").code == 2


def in_browser(file: Path, *options: str) -> str:
    """What Chromium makes of a page, with what it says on its console."""
    browser = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium here")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", *options, f"file://{file}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not said, said
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_browser_draws_every_operation(name: str, tmp_path: Path) -> None:
    run, file = simulated(name), tmp_path / "report.html"
    shown = report(run, file)
    drawn = in_browser(file, "--dump-dom")
    assert f"<title>{run.scenario.model.name} on " in drawn
    assert f'data-bars="{shown.bars}"' in drawn
    ends: dict[tuple[int, str], int] = {}
    for rank, rows in unpacked(shown.packed):
        for stream, _, end, *_ in rows:
            ends[rank["rank"], stream] = end
    assert f'data-ends="{" ".join(map(str, ends.values()))}"' in drawn
    assert 'data-state="ready"' in drawn


@pytest.mark.slow
def test_curves_of_memory_are_named_from_the_first_to_the_last_and_each_once(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    plan = sim.Plan(tp=2, pp=2, dp=4)
    report(scenario(cluster=small_cluster(4), plan=plan, perturb=(sim.Perturb(rank=13, speed=0.6),)).simulate(), file)
    drawn = in_browser(file, "--dump-dom")
    assert 'data-curves="pipeline rank 0 (rank 0); pipeline rank 1 (rank 8)"' in drawn
    legend = re.search('<div class="legend" id="curves">(.*?)</div>', drawn)
    assert legend
    assert re.findall("</i>([^<]*)", legend[1]) == ["pipeline rank 0 (rank 0)", "pipeline rank 1 (rank 8)"]
    assert "</i>faint: no kernel of the slot runs<" in drawn
    report(scenario(small_model(16), small_cluster(4), sim.Plan(pp=16), sim.Job(256, 32, 1)).simulate(), file)
    found = re.search('data-curves="([^"]*)"', in_browser(file, "--dump-dom"))
    named = found[1].split("; ") if found else []
    assert len(named) == 8
    assert (named[0], named[-1]) == ("pipeline rank 0 (rank 0)", "pipeline rank 15 (rank 15)")


@pytest.mark.slow
def test_a_browser_sees_a_picture_that_changes_with_the_span(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report(sim.load("llama3-70b-64xh100").simulate(), file)
    pictures = []
    for span in ("", "#1200-1260"):
        picture = tmp_path / f"picture{len(pictures)}.png"
        in_browser(Path(f"{file}{span}"), f"--screenshot={picture}", "--window-size=1300,1800")
        pictures.append(picture.read_bytes())
    assert all(len(picture) > 50_000 for picture in pictures)
    assert pictures[0] != pictures[1]
    assert file.stat().st_size < 2_000_000


def test_on_a_narrow_page_tables_scroll_by_themselves_and_words_stay_whole() -> None:
    run = simulated("interleaved")
    text = page(run, timeline_data(run))
    assert text.count("<table>") == text.count('<div class="wide"><table>') >= 3
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert ".wide { overflow-x: auto; }" in style
    of_cells = re.findall(r"^(?:td|th|\.wide)[^{]*\{[^}]*\}", style, re.MULTILINE)
    assert of_cells
    assert not any("anywhere" in rule or "break-all" in rule for rule in of_cells)


def test_a_dark_page_has_a_colour_for_all_that_is_drawn() -> None:
    style, script = ((FOLDER / f"page.{ending}").read_text(encoding="utf-8") for ending in ("css", "js"))
    usual, _, dark = style.partition("@media screen and (prefers-color-scheme: dark)")
    named = {*re.findall(r"var\((--\w+)\)", style), *re.findall(r'styled\("(--\w+)"\)', script)}
    assert named
    for part in (usual, dark):
        assert named == set(re.findall(r"(--\w+):", part))
    assert not re.findall('(?:fill|stroke)Style = "#', script)


def test_a_page_says_how_far_its_times_are_measured() -> None:
    run = simulated("interleaved")
    known = dict(run.summary)
    assert f"Provenance: {known['provenance']}." in page(run, timeline_data(run))


def test_a_page_has_the_days_and_the_cost_of_a_whole_run() -> None:
    job = sim.Job(sequence_length=256, global_batch=32, total_tokens=10**12, price_per_gpu_hour=3.0)
    run = scenario(job=job).simulate()
    assert run.whole_run
    text = page(run, timeline_data(run))
    assert f"<b>{run.whole_run.days:,.1f} days</b>" in text
    assert f"at a cost of {show_count(run.whole_run.cost or 0.0)}</span>" in text
    assert "days</b>" not in page(simulated("fsdp"), timeline_data(simulated("fsdp")))


def test_the_scenario_of_a_report_is_called_a_record_and_not_a_file_to_run() -> None:
    run = simulated("fsdp")
    text = page(run, timeline_data(run))
    assert "<summary>The scenario as it was simulated, with all its defaults</summary>" in text
    assert "A record in seconds and bytes" in text
