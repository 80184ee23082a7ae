"""The verbs of `import simulator as sim`: what each gives is what its command prints, and shows itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
import simulator.memory.account  # which makes Python store a subpackage where a verb stands
import simulator.validate.report
from simulator.schedules import gpipe
from simulator.simulation.runnable import RunnableScenario
from simulator.study.flows import Case, Flow

from ..commandline import SMALL, trainsim

DGX = sim.cluster("dgx-h100", nodes=1)
SCENARIO = yaml.safe_load(SMALL)


def plain(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(record, default=lambda array: array.tolist()))
    return found


@pytest.mark.parametrize(
    ("command", "verb"),
    [
        ("kernel gemm --gpu h100 -m 4096 -n 4096 -k 4096", lambda: sim.kernel("gemm", "h100", m=4096, n=4096, k=4096)),
        (
            "collective all_reduce --cluster dgx-h100 --gpus 8 -b 1M -e 2M",
            lambda: sim.collective("all_reduce", sim.cluster("dgx-h100"), [2**20, 2**21], gpus=8),
        ),
        ("topology dgx-h100 --nodes 2", lambda: sim.topology(sim.cluster("dgx-h100", nodes=2))),
        ("schedule zb-h1 --ranks 4 --microbatches 8", lambda: sim.schedule("zb-h1", ranks=4, microbatches=8)),
        (
            "schedule --compare 1f1b,zb-h1 --ranks 4 --microbatches 8 --comm 0.5",
            lambda: sim.compare_schedules(["1f1b", "zb-h1"], ranks=4, microbatches=8, comm=0.5),
        ),
    ],
)
def test_a_verb_gives_what_its_command_prints(command: str, verb: Any) -> None:
    found = verb()
    assert plain(found.as_dict()) == trainsim(*command.split(), "--json").record
    lines = repr(found).splitlines()
    assert lines[0] == type(found).__name__
    assert all(name in repr(found) and name in found._repr_html_() for name, _ in found.summary)


def test_memory_and_network_take_a_scenario_or_its_file(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL, encoding="utf-8")
    held = sim.memory(file)
    assert plain(held.as_dict()) == trainsim("memory", str(file), "--json").record
    assert "capacity" in repr(held)
    one = sim.load(file)
    assert isinstance(one, RunnableScenario)
    assert sim.network(one).step_s == pytest.approx(sim.network(file).step_s)


def test_durations_may_be_lists() -> None:
    one, other = (sim.schedule("1f1b", ranks=2, microbatches=4, forward=times) for times in ([1, 2], (1, 2)))  # type: ignore[arg-type]
    assert one.makespan == other.makespan


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"F": 5}, ["a schedule has no option F", "in Python F is called forward"]),
        ({"FB": 5}, ["in Python FB is called pair"]),
        ({"chunk": 2, "groups": 8}, ["did you mean 'chunks'?", "did you mean 'group'?"]),
        (
            {"weight_gradient": -0.5, "comm": float("nan")},
            ["weight_gradient: -0.5 is not a duration", "comm: .nan is not a duration"],
        ),
        ({"forward": [1.0, float("inf")]}, ["forward: .inf is not a duration"]),
        ({"splits": 0, "chunks": 2.5, "group": True}, ["splits: 0 is not a count", "chunks: 2.5 is", "group: true is"]),
        ({"memory_limit": 0, "objective": "length"}, ["memory_limit: 0 is not above 0", "makespan or span"]),
        ({"ranks": -2, "microbatches": 0}, ["ranks: -2 is not a count", "microbatches: 0 is not a count"]),
    ],
)
def test_options_of_schedules_are_checked_in_python_too(options: dict[str, Any], said: list[str]) -> None:
    """All at once."""
    sizes = {"ranks": 4, "microbatches": 8}
    for verb, what in ((sim.schedule, "1f1b"), (sim.compare_schedules, ["1f1b"])):
        with pytest.raises(sim.UserError) as caught:
            verb(what, **{**sizes, **options})  # type: ignore[operator]
        assert all(each in str(caught.value) for each in said)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: sim.kernel("gemm", "h100", m=-4, n="a", k=1, z=3),
            ["m: -4 is not a count", "n: 'a' is not a count", "no option z"],
        ),
        (lambda: sim.kernel("gemm", "h100", m=4, n=4, k=4, library=1, causal=2), ["library: 1 is not", "causal: 2 is neither"]),
        (lambda: sim.collective("all_reduce", "dgx-h100", [8]), ["cluster is 'dgx-h100', not a cluster"]),
        (lambda: sim.collective("all_reduce", sim.cluster("dgx-h100"), 8), ["sizes_bytes is 8, not sizes"]),
        (lambda: sim.collective("all_reduce", sim.cluster("dgx-h100"), ["1M"]), ["sizes_bytes: '1M' is not a count"]),
        (lambda: sim.collective("all_reduce", sim.cluster("dgx-h100"), [8], gpus="a", nodes=0), ["gpus: 'a' is", "nodes: 0 is"]),
        (lambda: sim.collective("all_reduce", DGX, [8], gpus=[0, 99]), ["gpus: 99 is not a GPU of dgx-h100", "GPUs 0 to 7"]),
        (lambda: sim.collective("all_reduce", DGX, [8], gpus=[-1, 0]), ["gpus: -1 is not a GPU"]),
        (lambda: sim.collective("all_reduce", DGX, [8], gpus=np.array([0.0, 1.0])), ["gpus: 0.0 is not a GPU"]),
        (lambda: sim.collective("all_reduce", DGX, [8], gpus=[True]), ["gpus: true is not a GPU"]),
        (lambda: sim.collective("all_reduce", DGX, [8], gpus=np.array([[0, 1]])), ["gpus: an array of 2 dimensions"]),
        (lambda: sim.collective("all_reduce", DGX, [8], gpus=[]), ["gpus: no GPU is named"]),
        (lambda: sim.collective("all_reduce", DGX, [8], gpus=[0, 1, 0]), ["gpus: 0 is named twice"]),
        (lambda: sim.collective("all_reduce", DGX, [8], gpus=[0, 1], nodes=1), ["nodes: 1, and a list of GPUs"]),
        (lambda: sim.collective("all_reduce", DGX, [8], gpus=16), ["16 GPUs over 2 nodes, and dgx-h100 has 1"]),
        (lambda: sim.topology("dgx-h100"), ["cluster is 'dgx-h100', not a cluster"]),
        (lambda: sim.explain("llama3-70b-64xh100"), ["run is 'llama3-70b-64xh100', not a run"]),
        (lambda: sim.memory(3), ["scenario is 3, not a scenario"]),
        (lambda: sim.advise(3), ["scenario is 3, not a scenario"]),
        (lambda: sim.advise_serving("llama3-70b", 3), ["model is 'llama3-70b', not a model"]),
        (lambda: sim.flows(3), ["cases is 3, not cases of flows"]),
        (lambda: sim.flows([3]), ["a case is 3, not a case of flows"]),
        (lambda: sim.validate("kernels", 3), ["path is 3, not the name of a table"]),
        (lambda: sim.validate(3), ["no kind 3"]),
        (lambda: sim.validate("kernels", own=3), ["own is 3, not a GPU"]),
        (lambda: sim.validate("kernels"), ["no measured kernels ship"]),
        (lambda: sim.kernel(5, None, None), ["op: 5 is not a name", "gpu: null is not a name", "dtype: null is not a name"]),
        (lambda: sim.collective("all_reduce", DGX, algorithm=None, library=None), ["algorithm: null", "library: null"]),
        (
            lambda: sim.collective("all_reduce", DGX, fidelity="exact", pieces="a"),
            ["fidelity: 'exact'", "pieces: 'a' is not a count"],
        ),
        (lambda: sim.goodput(SCENARIO, 5), ["mtbf should be a mapping, not 5"]),
        (
            lambda: sim.goodput(SCENARIO, "5 h", checkpoint="x", recovery=[1], stragglers=0),
            ["checkpoint should be a mapping, not 'x'", "recovery should be a mapping", "stragglers should be a mapping"],
        ),
        (lambda: sim.what_if(SCENARIO, None), ["changes is null, not changes"]),
        (lambda: sim.what_if(SCENARIO, [5]), ["a change is 5, not a change"]),
        (lambda: sim.what_if(SCENARIO, ["nic=x2"], "plan.tp=4"), ["settings is 'plan.tp=4', not a list"]),
        (lambda: sim.what_if(SCENARIO, ["nic=x2"], run=5), ["run is 5, not a run"]),
        (lambda: sim.compare_schedules("1f1b", ranks=2, microbatches=4), ["names is '1f1b', not a list of schedules"]),
        (lambda: sim.search(SCENARIO, gpus=5), ["gpus is 5, not numbers of GPUs"]),
        (lambda: sim.search(SCENARIO, gpus=["8"]), ["a number of GPUs is '8', not a whole number"]),
        (lambda: sim.search(SCENARIO, space=5), ["space is 5, not a file or a mapping"]),
        (lambda: sim.advise_serving(sim.model("llama3-8b"), DGX, batch="a", context=0), ["batch: 'a' is", "context: 0 is no"]),
        (lambda: sim.scenario(SCENARIO).simulate(session=5), ["session is 5, not a session"]),
    ],
)
def test_wrong_arguments_of_verbs_are_user_errors(call: Any, said: list[str]) -> None:
    with pytest.raises(sim.UserError) as caught:
        call()
    assert all(each in str(caught.value) for each in said), str(caught.value)
    assert all(fault.hint for fault in caught.value.faults)


def test_options_of_schedules_may_be_numbers_of_numpy() -> None:
    found = sim.schedule("1f1b", ranks=np.int64(4), microbatches=np.int64(8), forward=np.float64(1.0))  # type: ignore[arg-type]
    assert found.makespan == sim.schedule("1f1b", ranks=4, microbatches=8).makespan


def test_schedules_of_the_same_name_are_numbered() -> None:
    def written(*, turned: bool) -> Any:
        def order(rank: int, shape: Any) -> Any:
            microbatches = range(shape.microbatches)
            yield from (("F", rank, m) for m in microbatches)
            yield from (("B", rank, m) for m in (reversed(microbatches) if turned else microbatches))

        return order

    names = [written(turned=True), "gpipe", written(turned=False), "gpipe", gpipe]
    found = sim.compare_schedules(names, ranks=4, microbatches=8)
    assert sorted(entry.name for entry in found.entries) == ["gpipe", "gpipe (2)", "order", "order (2)"]
    spans = {entry.name: entry.results[-1].layout.orders[0][8].microbatch for entry in found.entries}
    assert (spans["order"], spans["order (2)"]) == (7, 0)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(0, 2**40))
def test_a_latency_that_nothing_takes_changes_nothing(forward: float, backward: float, comm: float) -> None:
    alone = sim.schedule("1f1b", ranks=1, microbatches=4, forward=forward, backward=backward, comm=comm)
    assert alone.makespan == pytest.approx(4 * (forward + backward), rel=1e-9)
    assert alone.bubble_ratio == pytest.approx(0, abs=1e-9)


def test_a_collective_takes_gpus_as_a_list_and_sizes_as_they_come() -> None:
    sizes, by_number = [2**20, 2**30], sim.collective("all_reduce", DGX, [2**20, 2**30], gpus=4)
    for gpus in ([0, 1, 2, 3], (3, 2, 1, 0), range(4), np.arange(4), [np.int64(gpu) for gpu in range(4)]):
        assert sim.collective("all_reduce", DGX, (size for size in sizes), gpus=gpus).as_dict() == by_number.as_dict()


def test_flows_are_solved_from_a_file_or_from_cases(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    flow = {"start_s": 0, "size_B": 10, "route": [0]}
    file.write_text(json.dumps({"cases": [{"name": "one", "links": [{"capacity_Bps": 5}], "flows": [flow]}]}), encoding="utf-8")
    (ends,) = sim.flows(file)
    assert (ends.name, ends.end_s) == ("one", (2.0,))


TEN_BYTES = Flow(0.0, 10.0, (0,))


def case_of(flow: Any = TEN_BYTES, capacity: Any = (5.0,), latency_s: Any = (0.0,)) -> Case:
    return Case("one", capacity, latency_s, (flow,))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (case_of(Flow(0.0, 10.0, (3,))), "cases[0] ('one').flows[0]: route: 3 is not a link of the 1"),
        (case_of(Flow(0.0, 10.0, (-1,))), "route: -1 is not a link"),
        (case_of(Flow(0.0, 10.0, 0)), "route is 0, no list of links"),  # type: ignore[arg-type]
        (case_of(Flow(0.0, -10.0, (0,))), "size_bytes should be a number that is not negative, not -10.0"),
        (case_of(Flow(0.0, float("nan"), (0,))), "size_bytes should be a number that is not negative, not .nan"),
        (case_of(Flow(-1.0, 10.0, (0,))), "start_s should be a number that is not negative, not -1.0"),
        (case_of(capacity=(0.0,)), "links[0]: capacity_bytes_per_s should be a positive number, not 0.0"),
        (case_of(capacity=(-5.0,)), "capacity_bytes_per_s should be a positive number, not -5.0"),
        (case_of(capacity=(float("nan"),)), "capacity_bytes_per_s should be a positive number, not .nan"),
        (case_of(capacity=(float("inf"),)), "capacity_bytes_per_s should be a positive number, not .inf"),
        (case_of(capacity=(5.0, 5.0)), "latency_s has 1 values for 2 links"),
        (case_of(capacity=(1.0, 1e40), latency_s=(0.0, 0.0)), "capacity_bytes_per_s: 1e+40 is more than 2^96 times"),
        (case_of(latency_s=(-1.0,)), "latency_s should be a number that is not negative, not -1.0"),
        (case_of(capacity=5.0), "capacity_bytes_per_s is 5.0, not a tuple"),
        (case_of(3), "a flow is 3, not a flow"),
    ],
)
def test_cases_of_python_are_checked_as_those_of_files_are(case: Case, said: str) -> None:
    with pytest.raises(sim.UserError) as caught:
        sim.flows([case])
    assert said in str(caught.value)
    assert all(fault.hint for fault in caught.value.faults)


def test_cases_may_hold_numbers_of_numpy_and_come_from_a_generator() -> None:
    case = Case("numpy", np.array([5.0]), [np.int64(0)], [Flow(np.int64(0), np.float32(10), np.array([0]))])  # type: ignore[arg-type]
    (ends,) = sim.flows(case for _ in range(1))
    assert ends.end_s == (2.0,)


def test_a_verb_wins_over_the_subpackage_of_its_name() -> None:
    assert callable(sim.memory)
    assert callable(sim.validate)
