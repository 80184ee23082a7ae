"""The costs of a run's kernels: they add up to the time that its ranks compute, and their errors to its band."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import shipped_fits
from simulator.config.step_constants import model_error
from simulator.costs.kernels.estimator import Estimator
from simulator.errors import UserError
from simulator.kernels import Attention, Gemm, Kernel, Rowwise
from simulator.simulation import result, simulate
from simulator.simulation.kernels_of_ranks import kernels_of_ranks
from simulator.simulation.op_costs import STANDARD_ERRORS, OpCost, OpCosts, provenance_lines, spans, step_interval_s
from simulator.simulation.op_costs import collective_provenance as of_collectives
from simulator.simulation.op_costs import kernel_provenance as of_kernels
from simulator.simulation.runnable import load_one as load
from simulator.units import BYTES, parse, show_s

from ..commandline import SMALL, trainsim
from ..small_scenarios import scenario, small_cluster, small_model


@pytest.mark.parametrize("plan", [sim.Plan(tp=2, pp=2, dp=1), sim.Plan(tp=1, pp=4, schedule="zb-h1"), sim.Plan(tp=4)])
def test_costs_add_up_to_the_time_at_work(plan: sim.Plan) -> None:
    run = scenario(plan=plan, cluster=small_cluster(1)).simulate()
    total_s = sum(cost.seconds for cost in run.kernel_costs) / run.program.ranks
    rows = run.timeline.to_pandas()
    computing = rows[rows.stream == "compute"]
    assert total_s == pytest.approx((computing.end_ns - computing.start_ns).sum() / 1e9 / run.gpus, rel=1e-4)
    low, high = run.step_time_interval_s
    assert low < run.metrics.step_time_s < high
    assert math.log(high / run.metrics.step_time_s) > 2 * model_error()


DRAWN = sim.Moe("drawn", concentration=0.5)


@pytest.mark.parametrize(
    ("experts", "plan"),
    [
        (0, sim.Plan(cp=4, cp_balance=False)),
        (0, sim.Plan(cp=2, pp=2, cp_balance=False)),
        (8, sim.Plan(ep=4, moe=DRAWN)),
        (8, sim.Plan(ep=2, pp=2, moe=replace(DRAWN, ranks="hottest"))),
    ],
)
def test_costs_are_means_over_ranks_with_different_work(experts: int, plan: sim.Plan) -> None:
    """And energy counts the same kernels."""
    mixture = {"experts": experts, "experts_per_token": 2, "ffn_hidden": 704} if experts else {}
    fidelity = sim.Fidelity(overlap="free", power="burst")
    run = scenario(small_model(**mixture), plan=plan, cluster=small_cluster(1), fidelity=fidelity).simulate()
    rows = run.timeline.to_pandas()
    computing = rows[rows.stream == "compute"]
    mean_s = (computing.end_ns - computing.start_ns).sum() / 1e9 / run.gpus
    assert sum(cost.seconds for cost in run.kernel_costs) / run.program.ranks == pytest.approx(mean_s, rel=1e-3)
    called_s = sum(run.prices.estimate(kernel).seconds * calls for kernel, calls, _ in kernels_of_ranks(run))
    assert called_s == pytest.approx(mean_s, rel=1e-3)


@pytest.mark.parametrize("collectives", ["fluid", "stepwise"])
def test_collectives_at_face_value_are_listed_as_they_were_simulated(collectives: Any) -> None:
    """On links without measurements, and where every message is simulated, which is another time than that of a fit."""
    cluster = small_cluster(1, fabric="ideal" if collectives == "fluid" else None)
    run = scenario(plan=sim.Plan(tp=2, dp=2), cluster=cluster, fidelity=sim.Fidelity(collectives, overlap="free")).simulate()
    rows = run.timeline.to_pandas(ranks=[0])
    found = {
        cost.name: sum(each.seconds for each in run.collective_costs if each.name == cost.name) for cost in run.collective_costs
    }
    for name, total_s in found.items():
        same = rows[(rows.stream == name.split()[0]) & (rows.kind == name.split()[1])]
        assert total_s == pytest.approx((same.arrival_ns - same.start_ns).sum() / 1e9)
    assert {(cost.provenance, cost.extrapolated) for cost in run.collective_costs} == {("theoretical", True)}
    assert {cost.axis for cost in run.collective_costs} == {"tp", "dp"}
    assert run.collective_provenance["theoretical"] == 1
    assert "collectives 100% theoretical" in dict(run.summary)["provenance"]
    of_kernels = replace(run, simulated=run.simulated)
    of_kernels.__dict__["collective_costs"] = OpCosts([])
    assert run.step_time_interval_s[1] > of_kernels.step_time_interval_s[1]


@pytest.mark.parametrize("oversubscription", [1.0, 16.0])
def test_collectives_cost_what_their_messages_need_on_slower_links_than_those_measured(oversubscription: float) -> None:
    cluster = small_cluster(4, nodes_per_pod=1, oversubscription=oversubscription)
    plan = sim.Plan(tp=4, dp=4, sharding="zero1", overlap=sim.Overlap(dp=False))
    run = scenario(plan=plan, cluster=cluster, fidelity=sim.Fidelity("closed", overlap="free")).simulate()
    rows = run.timeline.to_pandas(ranks=[0])
    dp = [cost for cost in run.collective_costs if cost.axis == "dp"]
    assert dp
    for cost in dp:
        same = rows[(rows.stream == "dp") & (rows.kind == cost.name.split()[1])]
        lasted_s = (same.arrival_ns - same.start_ns).to_numpy() / 1e9
        assert np.isclose(lasted_s, cost.seconds_each, rtol=0.01).any()
    assert oversubscription == 1 or {cost.model for cost in dp} == {"links at face value"}


def test_transfers_at_face_value_are_the_mean_of_all_edges() -> None:
    """Edges between stages differ, as some wait for others."""
    run = scenario(plan=sim.Plan(pp=4, dp=1), cluster=small_cluster(1), fidelity=sim.Fidelity(overlap="free")).simulate()
    rows = run.timeline.to_pandas()
    sends = rows[rows.kind == "send"]
    listed_s = sum(cost.seconds for cost in run.collective_costs if cost.axis == "pp")
    assert listed_s == pytest.approx((sends.arrival_ns - sends.start_ns).sum() / 1e9)


def test_costs_on_the_command_line() -> None:
    said = trainsim("run", "llama3-70b-64xh100", "--costs")
    assert "mlp_up.wgrad" in said.out
    assert "  std error\n" in said.out
    assert "measured" in said.out
    assert max(map(len, said.out.splitlines())) <= 120
    (row,) = re.findall(r"^mlp_up .* (\d+)  measured", said.out, re.MULTILINE)
    assert re.search(rf"^model +{row}  gemm: bf16 any of h100$", said.out, re.MULTILINE)
    record = trainsim("run", "llama3-70b-64xh100", "--costs", "--json").record
    assert {"name", "calls", "seconds", "model", "provenance", "sigma"} <= set(record["costs"][0])
    low, high = record["step_time_interval_s"]
    assert low < record["step_time_s"] < high


def test_every_line_of_the_list_is_told_apart_and_readable() -> None:
    """By what it is, its shape and the pipeline ranks that run it; no shape is a Python value."""
    record = trainsim("run", "llama3-70b-64xh100", "--costs", "--json").record
    lines = [(cost["name"], cost["shape"], cost["ranks"]) for cost in record["costs"]]
    assert len(lines) == len(set(lines))
    assert ("mlp_up", "8192 x 7168 x 8192", "0-7") in lines
    assert ("attention", "1 x 8192 tokens, 8 heads of 128, 1 of keys, causal", "0-7") in lines
    assert [ranks for name, _, ranks in lines if name == "adam"] == ["1-6", "7", "0"]
    assert not any("=" in shape for _, shape, _ in lines)


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        (Gemm(1, 2, 3, 2, batch=4, dtype="fp8"), "4 times 1 x 2 x 3 in fp8"),
        (Rowwise("adam", 5, 1, 4, 30), "5 x 1, 30 bytes each"),
        (Attention(1, 2, 8, 8, 64, False, 2, prefix=6), "1 x 2 tokens after 6, 8 heads of 64, full"),
    ],
)
def test_shapes_in_words(kernel: Kernel, shape: str) -> None:
    assert kernel.shape == shape


@given(st.sets(st.integers(0, 40), min_size=1))
def test_spans_hold_their_numbers_and_no_others(numbers: set[int]) -> None:
    ends = [[int(n) for n in part.split("-")] for part in spans(numbers).split(", ")]
    assert {n for span in ends for n in range(span[0], span[-1] + 1)} == numbers
    assert all(later[0] > earlier[-1] + 1 for earlier, later in pairwise(ends))


def test_jobs_side_by_side_list_the_costs_of_each_alone(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.yaml"
    model, job = "{layers: 4, hidden: 1024, heads: 16, vocab: 32000}", "{sequence_length: 1024, global_batch: 8}"
    entry = f"  - {{name: %s, model: {model}, plan: {{tp: %d}}, job: {job}, gpus: 8}}\n"
    jobs.write_text("cluster: {name: dgx-h100, nodes: 2}\njobs:\n" + entry % ("one", 2) + entry % ("two", 8))
    alone = tmp_path / "alone.yaml"
    alone.write_text(f"model: {model}\ncluster: {{name: dgx-h100, nodes: 1}}\nplan: {{tp: 8}}\njob: {job}\n")
    plain, record = (trainsim("run", jobs, *more, "--json").record for more in ((), ("--costs",)))
    assert [set(b) - set(a) for a, b in zip(plain["jobs"], record["jobs"], strict=True)] == [{"costs"}] * 2
    assert record["jobs"][1]["costs"] == trainsim("run", alone, "--costs", "--json").record["costs"]
    lines = trainsim("run", jobs, "--costs").out.splitlines()
    assert [line for line in lines if line in ("one", "two")] == ["one", "two"]


# Whose word it is -----------------------------------------------------------------------------------------------------------


def cost_of(seconds: float, provenance: str, *, extrapolated: bool = False) -> OpCost:
    return OpCost("one", "", 1, seconds, seconds, "model", provenance, 0.1, extrapolated)


def test_shares_are_of_time() -> None:
    shares = of_kernels([cost_of(6, "measured"), cost_of(3, "transferred"), cost_of(1, "roofline", extrapolated=True)])
    assert shares == {"measured": 0.6, "transferred": 0.3, "roofline": 0.1, "extrapolated": 0.1}
    assert of_collectives([cost_of(1, "interpolated"), cost_of(3, "theoretical")])["theoretical"] == 0.75
    assert sum(of_collectives([]).values()) == 0


def test_the_line_is_there_only_if_something_is_not_measured() -> None:
    all_measured, all_known = of_kernels([cost_of(1, "measured")]), of_collectives([cost_of(1, "interpolated")])
    assert provenance_lines(all_measured, all_known) == provenance_lines(of_kernels([]), of_collectives([])) == []
    ((_, said),) = provenance_lines(of_kernels([cost_of(1, "measured", extrapolated=True), cost_of(999, "measured")]), all_known)
    assert said == "kernels 100% measured (<1% extrapolated)"
    ((_, said),) = provenance_lines(all_measured, of_collectives([cost_of(999, "interpolated"), cost_of(1, "theoretical")]))
    assert said == "collectives >99% interpolated, <1% theoretical"


def test_a_run_says_whose_word_it_is() -> None:
    said, record = trainsim("run", "llama3-70b-64xh100"), trainsim("run", "llama3-70b-64xh100", "--json").record
    shares = record["cost_provenance"]
    assert list(shares) == ["measured", "transferred", "roofline", "extrapolated"]
    assert shares["measured"] + shares["transferred"] + shares["roofline"] == pytest.approx(1)
    assert sum(record["collective_provenance"].values()) == pytest.approx(1)
    of_kernels = f"kernels {shares['measured']:.0%} measured, {shares['transferred']:.0%} transferred"
    beyond = rf"( \({shares['extrapolated']:.0%} extrapolated\))?"
    assert re.search(rf"^provenance +{of_kernels}{beyond}; coll", said.out, re.MULTILINE)
    lent = trainsim("run", "llama3-70b-64xh100", "--set", "cluster.gpu=gh200-96gb", "--json").record["cost_provenance"]
    assert lent["transferred"] == pytest.approx(1)


# What belongs to one machine ------------------------------------------------------------------------------------------------


def profile_of(gpu: str, path: Path) -> Path:
    path.write_text(shipped_fits.text(gpu, shipped_fits.shipped().fits["h100"], "mine"))
    return path


def test_a_profile_is_on_record(tmp_path: Path) -> None:
    """Its path and what stood in it; nothing without one."""
    (tmp_path / "plain.yaml").write_text(SMALL)
    mine = profile_of("h100", tmp_path / "mine.yaml")
    setting = ("--set", f"cluster.gpu.profile={mine}")
    plain = trainsim("run", tmp_path / "plain.yaml", "--json").record["scenario"]["cluster"]
    first = trainsim("run", tmp_path / "plain.yaml", *setting, "--json").record["scenario"]["cluster"]
    profiled = f"profile {mine} ({first['profile_hash']}) for the kernels of h100"
    assert profiled in " ".join(trainsim("run", tmp_path / "plain.yaml", *setting).out.split()), "wrapped where it is long"
    mine.write_text(mine.read_text() + "# again\n")
    second = trainsim("run", tmp_path / "plain.yaml", *setting, "--json").record["scenario"]["cluster"]
    assert not {"profile", "profile_hash", "site_scalar"} & set(plain)
    assert first["profile"] == str(mine)
    assert first["profile_hash"] != second["profile_hash"]
    assert {**first, "profile_hash": ""} == {**second, "profile_hash": ""}


@pytest.mark.parametrize("gpu", ["h200", "a100-80gb"])
def test_a_profile_of_another_gpu_is_refused_where_it_stands(tmp_path: Path, gpu: str) -> None:
    mine = profile_of("h100", tmp_path / "mine.yaml")
    file = tmp_path / "run.yaml"
    file.write_text(SMALL.replace("nodes: 2", f"nodes: 2, gpu: {{name: {gpu}, profile: mine.yaml}}").replace("pp: 2", "pp: two"))
    said = trainsim("run", file)
    assert said.code == 2
    assert "run.yaml:2:" in said.err
    assert "run.yaml:3:" in said.err, "with whatever else is wrong"
    assert f"holds kernels of h100, not of {gpu}" in said.err
    assert f"--gpu {gpu}" in said.err
    inline = file.read_text().replace(
        "{name: dgx-h100, nodes: 2, gpu: {", "{gpus_per_node: 8, intra_node: NVSwitch 450 GB/s, gpu: {"
    )
    file.write_text(inline.replace(f"name: {gpu}, ", "").replace("pp: two", "pp: 2"))
    assert "not of a GPU without a name" in trainsim("run", file).err
    with pytest.raises(UserError, match="not of"):
        sim.cluster("dgx-h100", gpu={"name": gpu, "profile": str(mine)})


def test_the_scalar_of_a_site_is_on_record_and_multiplies_the_kernels(tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text(SMALL)
    setting, alone = ("--set", "cluster.gpu.site_scalar=1.25"), ("--set", "fidelity.overlap=free")
    runs = [trainsim("run", tmp_path / "plain.yaml", *more, *alone, "--json", "--costs").record for more in ((), setting)]
    assert runs[1]["scenario"]["cluster"]["site_scalar"] == 1.25
    assert runs[1]["busy_s"] == pytest.approx(1.25 * runs[0]["busy_s"], rel=1e-4)
    each = [[cost["seconds_each"] for cost in run["costs"] if not cost["axis"]] for run in runs]
    assert each[1] == pytest.approx([1.25 * one for one in each[0]])
    lines = [trainsim("run", tmp_path / "plain.yaml", *more).out for more in ((), setting)]
    assert ["every kernel takes 1.25 times as long" in out for out in lines] == [False, True]


@pytest.mark.parametrize("value", ["0", "-1", ".nan", ".inf", "fast", "1 us"])
def test_a_scalar_is_a_number_above_nothing(tmp_path: Path, value: str) -> None:
    (tmp_path / "plain.yaml").write_text(SMALL)
    said = trainsim("run", tmp_path / "plain.yaml", "--set", f"cluster.gpu.site_scalar={value}")
    assert said.code == 2
    assert "site_scalar" in said.err


def test_collectives_take_alone_what_the_list_says() -> None:
    run = load("llama3-70b-64xh100", ["fidelity.collectives=closed", "job.global_batch=8"]).simulate()
    rows = run.timeline.to_pandas([0])
    gathers = rows[(rows.stream == "tp") & (rows.kind == "all_gather")]
    (cost,) = (cost for cost in run.collective_costs if cost.name == "tp all_gather")
    assert ((gathers.end_ns - gathers.start_ns) / 1e9).tolist() == pytest.approx([cost.seconds_each] * len(gathers), abs=1.001e-9)
    assert cost.provenance == "interpolated"


def test_collectives_of_groups_that_nodes_divide_in_different_ways_are_listed_by_their_mean() -> None:
    """Of three groups of four in two nodes of six, the one in the middle is in both nodes."""
    cluster = small_cluster(2, gpus_per_node=6, inter_node="6x400 Gbit/s", fabric=None)
    run = scenario(plan=sim.Plan(tp=4, dp=3), cluster=cluster, job=sim.Job(sequence_length=256, global_batch=12)).simulate()
    gathers = [cost for cost in run.collective_costs if cost.name == "tp all_gather"]
    assert gathers
    for cost in gathers:
        size, algorithm = cost.shape.partition(" over ")[0], cost.shape.rpartition(", ")[2]
        assert cost.shape == f"{size} over 4 ranks on 1 to 2 nodes, {algorithm}"
        size_bytes = int(parse(size, BYTES))
        inside_s, across_s = (
            sim.collective("all_gather", cluster, [size_bytes], gpus=gpus).rows[0].time_s for gpus in ([0, 1, 2, 3], [4, 5, 6, 7])
        )
        assert cost.seconds_each == pytest.approx((2 * inside_s + across_s) / 3, rel=0.01)
        assert cost.model != "links at face value"


def test_the_band_holds_what_is_waited_for_and_nothing_else() -> None:
    def cost(sigma: float, axis: str = "") -> OpCost:
        return OpCost("one", "", 1, 1.0, 1.0, "model", "measured", sigma, False, axis)

    def width_s(sigma: float, exposed_s: float, bubble: float = 0.0, axis: str = "tp") -> float:
        low, high = step_interval_s(10.0, [cost(0.1)], [cost(sigma, axis)], {axis: exposed_s}, 1, bubble)
        assert (low + high) / 2 == pytest.approx(10.0)
        return high - low

    assert width_s(0.3, 0.0) == pytest.approx(2 * STANDARD_ERRORS * 0.1)
    assert width_s(0.3, 2.0) == pytest.approx(2 * STANDARD_ERRORS * (0.1**2 + 0.6**2) ** 0.5)
    assert width_s(0.1, 2.0) < width_s(0.3, 2.0)
    assert width_s(0.3, 2.0, 0.75) == pytest.approx(4 * width_s(0.3, 2.0))
    assert width_s(0.3, 2.0, 0.75, "dp") == pytest.approx(2 * STANDARD_ERRORS * (0.4**2 + 0.6**2) ** 0.5)


def test_t3_5_the_interval_of_a_step_is_two_standard_errors_to_each_side() -> None:
    """Of one GPU, which waits for nobody: those of one model's kernels added up, models and the error of the whole independent;
    and the summary says so."""
    run = scenario(cluster=small_cluster(1, gpus_per_node=1)).simulate()
    assert not run.collective_costs
    models = {cost.model for cost in run.kernel_costs}
    each_s = [sum(cost.seconds * cost.sigma for cost in run.kernel_costs if cost.model == model) for model in models]
    assert len(each_s) > 1
    step_s, (low, high) = run.metrics.step_time_s, run.step_time_interval_s
    of_kernels = math.log1p(2 * math.hypot(*each_s) / step_s) / 2
    assert math.log(high / step_s) == pytest.approx(2 * math.hypot(of_kernels, model_error()))
    assert step_s / low == pytest.approx(high / step_s)
    assert dict(run.summary)["step time"].endswith(f"90% interval {show_s(low)} to {show_s(high)}")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("batch", [8, 32, 256])
def test_kernels_that_are_slower_move_the_step_as_the_band_says(batch: int) -> None:
    """One error for all kernels, and nothing else, with much of a bubble or little. Nearly: the last stage has the head, for
    whose kernels alone the others wait."""
    run, slower = (
        load("llama3-70b-64xh100", [f"job.global_batch={batch}", *more]).simulate()
        for more in ((), ("cluster.gpu.site_scalar=1.1",))
    )
    costs = [replace(cost, model="one", sigma=0.05) for cost in run.kernel_costs]
    low, high = step_interval_s(run.metrics.step_time_s, costs, [], {}, run.program.ranks, run.metrics.bubble_fraction)
    assert (high - low) / 2 == pytest.approx(slower.metrics.step_time_s - run.metrics.step_time_s, rel=0.2)


def test_whatever_is_asked_of_a_run_it_is_bound_once_and_each_kernel_is_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, priced = Counter[str](), Counter[Kernel]()
    estimates = Estimator.estimate

    def counted(binds: Callable[..., Any]) -> Callable[..., Any]:
        def bind(*args: Any, **options: Any) -> Any:
            bound["programs"] += 1
            return binds(*args, **options)

        return bind

    def estimate(self: Estimator, kernel: Kernel) -> Any:
        priced[kernel] += 1
        return estimates(self, kernel)

    monkeypatch.setattr(simulate, "bind_first", counted(simulate.bind_first))
    monkeypatch.setattr(result, "bind", counted(result.bind))
    monkeypatch.setattr(Estimator, "estimate", estimate)
    run = scenario(plan=sim.Plan(tp=2, pp=2, dp=2)).simulate()
    assert run.as_dict()
    assert run.summary
    assert run.network.classes
    assert run.network.waits is not None
    assert run.kernel_costs
    assert run.memory_over_time(0)
    assert bound["programs"] == 1
    assert set(priced.values()) == {1}
