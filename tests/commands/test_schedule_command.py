"""`trainsim schedule`: what its options do, schedules beside one another, memory over time, and the pictures."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config import catalog
from simulator.errors import OutsideDomain, UserError
from simulator.figures.bars import KINDS, MOST_ROWS, chart_of_evaluation
from simulator.figures.drawing import ink_on, luminance
from simulator.figures.gantt import MOST_ROWS_IN_ALL, gantt
from simulator.figures.topology_colours import KINDS as OF_CLUSTERS
from simulator.figures.topology_colours import OTHERS
from simulator.program.layout import Layout, lay_out
from simulator.program.slot import Durations, Goal, Pair, Shape, slots_of
from simulator.study.schedule import MOST_BOXES_WITH_MEMORY, Evaluation, crossings, evaluate
from simulator.study.schedule_verbs import compare_schedules, share_of

from ..commandline import Said, trainsim

NAMES = sorted(set(catalog.files("schedules")) - {"optimal"})
EXACT = pytest.approx


def schedule(*args: object) -> Said:
    return trainsim("schedule", *args)


def of(name: str, ranks: int, microbatches: int, chunks: int = 1, **durations: Any) -> Evaluation:
    shape = Shape(ranks, microbatches, chunks, durations=Durations(**durations))
    return evaluate(lay_out(catalog.module("schedules", name), shape))


def every(ranks: int, microbatches: int, **durations: Any) -> dict[str, Evaluation]:
    """Every schedule that takes a shape with two chunks."""
    found = {}
    for name in NAMES:
        try:
            found[name] = of(name, ranks, microbatches, 2, **durations)
        except OutsideDomain:
            continue
    return found


# --- options -----------------------------------------------------------------------------------------------------------


def test_ranks_and_microbatches_are_asked_for() -> None:
    for options, missing in (((), "--ranks and --microbatches are"), (("--ranks", 4), "--microbatches is")):
        for args in (("1f1b", *options), ("--compare", "1f1b", *options)):
            said = schedule(*args)
            assert said.code == 2
            assert f"1f1b: {missing} missing" in said.err
            assert "--ranks 4 --microbatches 8" in said.err
    assert "no schedule is named" in schedule("--ranks", 4, "--microbatches", 8).err


def test_options_that_a_schedule_has_no_use_for_change_nothing() -> None:
    plain = schedule("1f1b", "--ranks", 4, "--microbatches", 8, "--json")
    idle: list[object] = ["--chunks", 3, "--group", 2, "--splits", 4, "--memory-limit", 0.5, "--objective", "span"]
    idle += ["--memory-count", "half", "--time-limit", 1, "--FB", 7]
    assert schedule("1f1b", "--ranks", 4, "--microbatches", 8, *idle, "--json").out == plain.out


def test_a_limit_of_memory_counts_halves_unless_whole_ones_are_asked_for() -> None:
    """As zb-auto does, so that both names mean one thing by the limit."""
    limited = ("--ranks", 4, "--microbatches", 8, "--memory-limit", 1.5, "--json")
    for name in ("zb-auto", "optimal"):
        found = schedule(name, *limited).record
        assert max(found["peak_half"]) <= 6 < max(found["peak"])
    assert max(schedule("optimal", *limited, "--memory-count", "fw").record["peak"]) <= 6


def test_options_reach_the_schedule(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from simulator.schedules.gpipe import order as gpipe\n"
        "def order(rank, shape):\n"
        "    raise ValueError(repr((shape.group, shape.splits, shape.memory_limit, shape.goal, shape.durations)))\n"
    )
    options: list[object] = ["--group", 3, "--splits", 5, "--memory-limit", 0.75, "--objective", "span"]
    options += ["--memory-count", "half", "--time-limit", 9, "--F", "1,2", "--I", 3, "--FB", 4, "--comm", 0.5]
    said = schedule(f"{tmp_path}/mine.py:order", "--ranks", 2, "--microbatches", 4, *options)
    assert repr((3, 5, 0.75, Goal("span", "half", 9.0), Durations((1.0, 2.0), 3.0, pair=4.0, comm=0.5))) in said.err


WRONG: dict[str, tuple[list[object], str]] = {
    "no memory": (["--memory-limit", 0], "above 0"),
    "no number of memory": (["--memory-limit", "nan"], "above 0"),
    "no objective": (["--objective", "speed"], "makespan"),
    "no count": (["--memory-count", "all"], "half"),
    "no time": (["--time-limit", "-1"], "above 0"),
    "too few durations": (["--F", "1,2,3"], "--F has 3 durations for 4 stages"),
    "an empty duration": (["--F", "1,,2,3"], "''"),
    "a negative duration": (["--W", "1,1,-2,3"], "'-2' is not a duration"),
    "a word": (["--I", "1,1,one,3"], "'one'"),
    "no table": (["--csv", "table.txt"], ".csv"),
    "several in a table": (["--compare", "gpipe", "--csv", "t.csv"], "one schedule"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_are_exit_2(case: str) -> None:
    args, message = WRONG[case]
    said = schedule("1f1b", "--ranks", 4, "--microbatches", 8, *args)
    assert said.code == 2
    assert message in said.err
    assert "hint: " in said.err


def test_all_durations_that_do_not_fit_are_told_at_once() -> None:
    said = schedule("1f1b", "--ranks", 4, "--microbatches", 8, "--F", "1,2", "--B", "1,2,3", "--json")
    assert [fault["message"] for fault in said.record["faults"]] == [
        "--F has 2 durations for 4 stages",
        "--B has 3 durations for 4 stages",
    ]


@given(st.integers(2, 6), st.integers(1, 12), st.floats(1, 4))
def test_unequal_stages(ranks: int, extra: int, slow: float) -> None:
    """A slow last stage of 1F1B is never idle once it has begun: it alone sets the pace."""
    durations = [1.0] * (ranks - 1) + [slow]
    written = ",".join(map(repr, durations))
    microbatches = ranks + extra
    args = ("1f1b", "--ranks", ranks, "--microbatches", microbatches, "--F", written, "--B", written, "--json")
    expected = 2 * (ranks - 1) + 2 * slow * microbatches
    assert schedule(*args).record["makespan"] == EXACT(expected, rel=1e-9)


def test_one_duration_for_each_stage_is_that_for_all() -> None:
    args = ("interleaved", "--ranks", 2, "--microbatches", 4, "--chunks", 2, "--comm", 0.1, "--json")
    assert schedule(*args, "--F", "2,2,2,2").record["makespan"] == schedule(*args, "--F", 2).record["makespan"]


@dataclass(frozen=True)
class Proof:
    """What a schedule that was searched for says about itself."""

    objective: str
    value: float
    lower_bound: float
    gap: float
    proven: bool
    status: str


@pytest.mark.parametrize(("proven", "words"), [(True, "proven optimal"), (False, "not proven, gap 25.00%; time limit")])
def test_a_certificate_is_shown(proven: bool, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpipe = catalog.module("schedules", "gpipe")
    proof = Proof("makespan", 20.0, 15.0, 0.25, proven, words.rpartition("; ")[2])
    searched = SimpleNamespace(order=gpipe.order, CHUNKS=1, certificate=lambda shape: proof)
    monkeypatch.setattr(catalog, "module", lambda kind, name: searched)
    said, record = (schedule("searched", "--ranks", 2, "--microbatches", 4, *json) for json in ((), ("--json",)))
    assert f"lower bound      15, and the makespan found is 20: {words}" in said.out
    assert record.record["certificate"] == asdict(proof)


def test_the_optimal_schedule_has_one() -> None:
    args = ("optimal", "--ranks", 2, "--microbatches", 4)
    assert "proven optimal" in schedule(*args).out
    record = schedule(*args, "--json").record
    assert record["certificate"]["proven"] is True
    assert record["certificate"]["value"] == record["makespan"]


# --- schedules beside one another ----------------------------------------------------------------------------------------


def test_the_table_is_that_of_the_papers() -> None:
    """P = 8, M = 32, F = I = W = 1 of a rank's share: makespan without and with a latency of 0.1, peak in microbatches."""
    expected = {
        "gpipe": (117.0, 118.4, 32),
        "1f1b": (117.0, 123.8, 8),
        "interleaved": (106.5, 109.5, 11.5),
        "zb-h1": (103.0, 105.8, 8),
        "zb-h2": (103.0, 103.7, 15),
        "dualpipe": (102.0, 105.7, 9),
        "dualpipe-v": (103.0, 110.7, 8.5),
    }
    args = ("--compare", ",".join(expected), "--ranks", 8, "--microbatches", 32, "--chunks", 2, "--comm", 0.1)
    record = schedule(*args, "--json").record
    assert not record["refused"]
    for row in record["schedules"]:
        free, late = row["at"]
        assert (free["comm"], late["comm"]) == (0.0, 0.1)
        assert free["makespan"] == EXACT(expected[row["schedule"]][0], rel=1e-9)
        assert late["makespan"] == EXACT(expected[row["schedule"]][1], rel=1e-9)
        assert row["peak_microbatches"] == expected[row["schedule"]][2]
        assert row["copies"] == (2 if row["schedule"] == "dualpipe" else 1)
    assert [row["schedule"] for row in record["schedules"]][:2] == ["zb-h2", "dualpipe"]
    assert {row["schedule"]: row["at"][0]["place"] for row in record["schedules"]}["1f1b"] == 6
    text = schedule(*args).out.splitlines()
    assert "c = 0: #" in text[0]
    assert "c = 0.1: #" in text[0]
    assert text[1].split()[:6] == ["zb-h2", "1", "2", "103", "6.80%", "1"]
    assert "(↑1)" in text[1]
    assert "dualpipe (2 copies)" in text[2]


def test_without_latency_there_is_one_group_of_columns() -> None:
    args = ("1f1b", "--compare", "gpipe, 1f1b", "--ranks", 4, "--microbatches", 8)
    said, record = schedule(*args), schedule(*args, "--json").record
    assert said.out.count("makespan") == 1
    assert [row["schedule"] for row in record["schedules"]] == ["1f1b", "gpipe"]
    assert [row["at"][0]["place"] for row in record["schedules"]] == [1, 1]


def test_sequences_are_split_into_as_much_work() -> None:
    """M(F + B) + (P - 1)(F + B)/k, with M whole microbatches."""
    for splits in (1, 2, 4):
        args = ("--compare", "seq-1f1b", "--ranks", 8, "--microbatches", 16, "--splits", splits, "--json")
        (row,) = schedule(*args).record["schedules"]
        assert row["at"][0]["makespan"] == EXACT(16 * 3 + 7 * 3 / splits, rel=1e-9)
        assert row["splits"] == splits
        assert row["peak_microbatches"] == (8 + splits - 1) / splits
    assert "seq-1f1b (4 splits)" in schedule(*args[:-1]).out


def test_refused_ones_are_listed_with_the_reason() -> None:
    args = ("--compare", "1f1b,dualpipe", "--ranks", 4, "--microbatches", 7)
    said, record = schedule(*args), schedule(*args, "--json").record
    assert said.code == 0
    assert "dualpipe does not apply: dualpipe needs" in said.out
    assert "(nearest legal: ranks 4, microbatches 8)" in said.out
    assert [row["schedule"] for row in record["refused"]] == ["dualpipe"]
    assert record["refused"][0]["nearest"] == {"ranks": 4, "microbatches": 8}


def test_what_deadlocks_is_listed_too(tmp_path: Path) -> None:
    file = tmp_path / "stuck.csv"
    file.write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    said = schedule("--compare", f"1f1b,{file}")
    assert said.code == 0
    assert "does not apply: deadlock: 7 of 8 tasks can never start" in said.out


def test_unknown_ones_are_named_together() -> None:
    said = schedule("--compare", "1f1x,gpipe,gpip", "--ranks", 4, "--microbatches", 8)
    assert said.code == 2
    assert "'1f1x'" in said.err
    assert "'gpip'" in said.err


@given(st.integers(1, 4), st.integers(1, 3), st.floats(0.1, 5), st.one_of(st.none(), st.floats(0.1, 5)))
def test_a_share_is_cut_into_equal_parts(chunks: int, splits: int, forward: float, pair: float | None) -> None:
    whole = Durations(forward, (1.0, 2.0, 3.0), 0.5, None, pair, 0.2)
    split = SimpleNamespace(OPTIONS=("splits",))
    parts = share_of(split, Shape(3, 4, chunks, splits=splits, durations=whole)).durations
    assert isinstance(parts.forward, float)
    assert isinstance(parts.input_gradient, tuple)
    assert parts.forward * chunks * splits == EXACT(forward)
    assert [sum(parts.input_gradient[i * chunks : (i + 1) * chunks]) * splits for i in range(3)] == EXACT([1.0, 2.0, 3.0])
    assert parts.comm == 0.2
    assert parts.pair is None if pair is None else parts.pair * chunks * splits == EXACT(pair)


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_does_the_same_work(name: str) -> None:
    shape = Shape(4, 8, 2, splits=2, durations=Durations((1.0, 1.0, 2.0, 1.5), 0.7, 1.1, comm=0.1))
    options: Any = {field: getattr(shape.durations, field) for field in ("forward", "input_gradient", "weight_gradient", "comm")}
    found = compare_schedules([name], ranks=4, microbatches=8, chunks=2, splits=2, **options)
    assert not found.refused
    for result in found.entries[0].results:
        assert sum(result.busy) == EXACT(8 * (5.5 + 4 * 1.8), rel=1e-9)
    assert share_of(catalog.module("schedules", name), shape).stages == result.layout.stages
    assert found.places == [[1, 1]]


def test_equals_share_a_place() -> None:
    found = compare_schedules(["gpipe", "1f1b", "interleaved"], ranks=4, microbatches=4)
    assert found.places == [[1], [1], [1]]


# --- memory over time, transfers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comm", [0.0, 0.3])
def test_the_memory_curve_has_the_peak_and_ends_empty(comm: float) -> None:
    for name, result in every(4, 8, comm=comm).items():
        for rank, peak in enumerate(result.peaks["peak"]):
            times, held = result.memory_curve(rank)
            assert all(a < b for a, b in pairwise(times)), name
            assert (max(held), held[-1], times[-1]) == (peak, 0, result.ends[rank][-1]), name


def test_the_memory_curve_counts_what_is_between_f_and_w() -> None:
    """At every time, by brute force."""
    for name, result in every(4, 8, comm=0.3, weight_gradient=0.7).items():
        for rank, order in enumerate(result.layout.orders):
            begin, end = {}, {}
            for box, start, stop in zip(order, result.starts[rank], result.ends[rank], strict=True):
                for slot in slots_of(box):
                    of_slot = slot.stage, slot.microbatch
                    if slot.kind == "F":
                        begin[of_slot] = start
                    elif slot.kind in "BW":
                        end[of_slot] = stop
            for time, held in zip(*result.memory_curve(rank), strict=True):
                assert held == sum(begin[key] <= time < end[key] for key in begin), (name, rank, time)


def test_the_record_holds_memory_and_transfers() -> None:
    record = schedule("1f1b", "--ranks", 3, "--microbatches", 2, "--json").record
    assert record["memory"][2] == [[0.0, 0], [2.0, 1], [5.0, 1], [8.0, 0]]
    assert record["transfers"] == 2 * 2 * 2
    assert of("1f1b", 1, MOST_BOXES_WITH_MEMORY // 2 + 1).as_dict()["memory"] is None


def counted(layout: Layout) -> int:
    """Slots whose input comes from another rank, one by one."""
    total = 0
    for rank, order in enumerate(layout.orders):
        for slot in (slot for box in order for slot in slots_of(box)):
            source = slot.stage + {"F": -1, "B": 1, "I": 1}.get(slot.kind, 0)
            if 0 <= source < layout.stages:
                total += layout.placement[layout.instance(source, slot.microbatch)] != rank
    return total


def test_transfers_are_counted_once_each() -> None:
    for name, result in every(4, 8).items():
        assert crossings(result.layout) == counted(result.layout), name


# --- pictures ----------------------------------------------------------------------------------------------------------


def test_the_slots_of_a_pair_share_its_row() -> None:
    result = of("dualpipe-v", 4, 8)
    pairs = sum(isinstance(box, Pair) for order in result.layout.orders for box in order)
    bars = [bar for row in chart_of_evaluation(result, "").rows for bar in row.bars]
    assert Counter(bar.half for bar in bars if bar.half) == {"upper": pairs, "lower": pairs}
    assert all(bar.kind == ("F" if bar.half == "upper" else "B") for bar in bars if bar.half)
    assert all(bar.text.isdecimal() for bar in bars)


def test_the_panel_of_memory_is_that_of_the_curves() -> None:
    result = of("1f1b", 4, 8, comm=0.1)
    held = chart_of_evaluation(result, "").held
    assert held
    assert max(held.most) == 4
    assert max(held.fewest) == 1
    assert held.most[-1] == held.fewest[-1] == 0
    assert list(held.times) == sorted({time for rank in range(4) for time in result.memory_curve(rank)[0]})


def test_several_schedules_have_one_time_axis() -> None:
    results = {"fast": of("zb-h1", 4, 8), "slow": of("naive", 4, 8)}
    figure = gantt(results)
    assert [axes.get_title(loc="left").partition(":")[0] for axes in figure.axes] == ["fast", "slow"]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert figure.axes[0].get_xlim()[1] >= 96


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_pictures_are_written_the_same_each_time(suffix: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        args = ("--compare", "1f1b,dualpipe", "--ranks", 4, "--microbatches", 8)
        assert schedule(*args, "--plot", tmp_path / f"{name}{suffix}").code == 0
        assert schedule("zb-h1", "--ranks", 4, "--microbatches", 8, "--plot", tmp_path / f"one-{name}{suffix}").code == 0
    for prefix in ("", "one-"):
        first, second = (tmp_path / f"{prefix}{name}{suffix}" for name in "ab")
        assert first.stat().st_size > 5000
        if suffix == ".png":
            assert first.read_bytes() == second.read_bytes()


def test_pictures_of_too_many_rows_are_refused(tmp_path: Path) -> None:
    said = schedule("gpipe", "--ranks", MOST_ROWS + 1, "--microbatches", 1, "--plot", tmp_path / "a.png")
    assert said.code == 2
    assert f"at most {MOST_ROWS} ranks" in said.err
    result = of("gpipe", MOST_ROWS, 1)
    with pytest.raises(UserError, match="rows"):
        gantt({str(n): result for n in range(MOST_ROWS_IN_ALL // MOST_ROWS + 1)})


def test_slots_without_length_are_refused_beside_transfers_that_take_time() -> None:
    said = schedule("1f1b", "--ranks", 2, "--microbatches", 2, "--F", 0, "--I", 0, "--W", 0, "--comm", 1)
    assert (said.code, "no slot has a length" in said.err) == (2, True)


def test_numbers_can_be_read_on_every_colour() -> None:
    """White on dark and black on light, with a distance that the eye sees."""
    for colour in (*(colour for kind in KINDS.values() for colour in kind.colours), *OF_CLUSTERS.values(), *OTHERS):
        assert abs(luminance(colour) - luminance(ink_on(colour))) > 0.35
