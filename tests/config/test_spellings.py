"""Words take dashes or underscores, in any case, wherever they are read, and mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import simulator as sim
from simulator.config.suggestions import meant
from simulator.errors import UserError
from simulator.fabrics.policy import policy_on
from simulator.search.search import aim_of

from ..commandline import trainsim

MIXTURE = {"layers": 4, "hidden": 512, "heads": 8, "vocab": 32000, "experts": 4, "experts_per_token": 2, "expert_ffn_hidden": 256}
TABLE = """\
gpu,gpus,nodes,gpus_per_node,inside,network,nics_per_node,nic_gbit,asked,collective,dtype,bytes,time_us
H100,16,2,8,nvlink4-nvswitch,ndr-ib,8,400,ALGORITHM,all_reduce,bf16,1048576,60
"""
JOB = {"sequence_length": 1024, "global_batch": 32}


def test_a_word_means_one_known_word_or_none() -> None:
    known = ("step_time", "nccl-plain", "nccl")
    assert [meant(word, known) for word in ("STEP-TIME", "Nccl_Plain", "nccl", "ncc", "", 5)] == [*known, None, None, None]
    assert meant("a-b", ("a_b", "a-b")) == "a-b"
    assert meant("A-B", ("a_b", "a-b")) is None


@pytest.mark.parametrize("order", ["TP-CP-EP-DP-PP", "tp_cp_ep_dp_pp", " tp-dp-PP "])
def test_rank_orders(order: str) -> None:
    given = {"model": MIXTURE, "cluster": {"name": "dgx-h100", "nodes": 2}, "job": JOB}
    found = sim.scenario({**given, "plan": {"tp": 2, "pp": 2, "rank_order": order}})
    assert found.plan.rank_order == order.strip().lower().replace("_", "-")
    in_python = sim.simulate(
        sim.model(MIXTURE), sim.cluster("dgx-h100", nodes=2), sim.Plan(tp=2, pp=2, rank_order=order), sim.Job(**JOB)
    )
    assert in_python.metrics.step_time_s == found.simulate().metrics.step_time_s


def test_routings() -> None:
    given = {"model": MIXTURE, "cluster": {"name": "dgx-h100", "nodes": 2}, "job": JOB}
    found = [
        sim.scenario({**given, "plan": {"ep": 2, "moe": {"routing": word}}}).plan.moe.routing for word in ("Balanced", "DRAWN")
    ]
    assert found == ["balanced", "drawn"]
    with pytest.raises(UserError, match=r"plan\.moe\.routing: 'Balanced' is not a routing"):
        sim.simulate(sim.model(MIXTURE), sim.cluster("dgx-h100"), sim.Plan(ep=2, moe=sim.Moe(routing="Balanced")), sim.Job(**JOB))


def test_libraries() -> None:
    cluster = sim.cluster("dgx-h100", nodes=2)
    assert policy_on(cluster, library="NCCL_plain").choices == policy_on(cluster, library="nccl-plain").choices
    words = ("collective", "all_reduce", "--cluster", "dgx-h100", "-b", "1M", "-e", "1M", "--json", "--library")
    assert trainsim(*words, "nccl_plain").record["rows"] == trainsim(*words, "nccl-plain").record["rows"]


def test_objectives_and_fronts() -> None:
    assert [aim_of(word, 1).objective for word in ("step-time", "STEP_TIME", "Cost")] == ["step_time", "step_time", "cost"]
    assert aim_of("Step-Time", 1, "Memory").against == "memory"
    with pytest.raises(UserError, match="no objective 'speed'"):
        aim_of("speed", 1)
    with pytest.raises(UserError, match="no front of step time and 'speed'"):
        aim_of("step_time", 1, "speed")


@pytest.mark.parametrize("kind", ["ALL-REDUCE", "AllReduce", "all_reduce"])
def test_collectives(kind: str) -> None:
    cluster, sizes = sim.cluster("dgx-h100", nodes=1), [2**20]
    assert sim.collective(kind, cluster, sizes).as_dict() == sim.collective("all_reduce", cluster, sizes).as_dict()
    assert trainsim("collective", kind, "--cluster", "dgx-h100", "-e", "8").code == 0


@pytest.mark.parametrize("algorithm", ["NVLSTree", "NVLS-Tree", "nvls_tree"])
def test_algorithms_are_spelled_as_by_nccl_too(algorithm: str, tmp_path: Path) -> None:
    words = ("collective", "all_reduce", "--cluster", "dgx-h100", "--nodes", "2", "-b", "1M", "-e", "1M", "--json", "--algorithm")
    (row,) = trainsim(*words, algorithm).record["rows"]
    assert row["algorithm"] == "nvls_tree"
    (tmp_path / "table.csv").write_text(TABLE.replace("ALGORITHM", algorithm))
    (found,) = trainsim("validate", "--kind", "collectives", tmp_path / "table.csv", "--json").record["rows"]
    assert found["predicted"] == pytest.approx(row["time_us"])


def test_what_ifs() -> None:
    scenario = {"model": MIXTURE, "cluster": {"name": "dgx-h100", "nodes": 2}, "job": JOB}
    typed, usual = sim.what_if(scenario, ["NIC=X2", "Gpu=x0.5"]), sim.what_if(scenario, ["nic=x2", "gpu=x0.5"])
    for one, other in zip(typed.outcomes, usual.outcomes, strict=True):
        assert (one.step_time_s, one.mfu, one.note) == (other.step_time_s, other.mfu, other.note)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["collective", "All-Redu", "--cluster", "dgx-h100"], "no collective 'All-Redu'"),
        (["collective", "all_reduce", "--cluster", "dgx-h100", "--library", "My-NCCL"], "no library 'My-NCCL'"),
        (["validate", "--kind", "My-Kernels"], "no kind 'My-Kernels'"),
        (["kernel", "gemm", "--gpu", "h100", "--dtype", "My-Float", "-m", "8", "-n", "8", "-k", "8"], "no kernels in 'My-Float'"),
        (["run", "llama3-70b-64xh100", "--set", "plan.rank_order=TP-Own-PP"], "'Own' is not an axis"),
    ],
)
def test_an_unknown_word_is_named_as_it_was_written(args: list[str], said: str) -> None:
    found = trainsim(*args)
    assert found.code == 2
    assert said in found.err


def test_sizes_are_those_of_nccl_tests() -> None:
    words = ("collective", "all_reduce", "--cluster", "dgx-h100", "--nodes", "1", "-f", "1024", "--json")
    rows = trainsim(*words, "-b", "1.5K", "-e", "1.5M").record["rows"]
    assert [row["size_bytes"] for row in rows] == [3 * 2**9, 3 * 2**19]
    for part_of_a_byte in ("1.5", "0.3K"):
        assert f"{part_of_a_byte!r} is not a size" in trainsim(*words, "-b", part_of_a_byte).err
