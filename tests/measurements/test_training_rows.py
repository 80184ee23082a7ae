"""Rows of training runs as scenarios: what every column and every fact becomes, and what is refused. All rows are made up."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.config import load
from simulator.config.derived import with_usual_plan
from simulator.errors import UserError
from simulator.measurements.run_words import FACTS, VALUES
from simulator.measurements.training_rows import scenario_of

from ..made_up_runs import row

LLAMA = {
    "model_name": "Llama-3/3.1-70B", "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn_hidden": 28672,
    "gated_mlp": 1, "vocab": 128256,
}  # fmt: skip


def part(name: str, **cells: object) -> Any:
    return scenario_of(row(**cells))[0][name]


def test_a_row_is_a_scenario() -> None:
    scenario, notes = scenario_of(row())
    assert scenario == {
        "model": {
            "vocab": 51200, "positions": "learned", "bias": True, "tied_embeddings": True, "max_sequence_length": 1024,
            "layers": 16, "hidden": 2048, "heads": 16, "kv_heads": 16, "ffn_hidden": 8192, "gated_mlp": False,
        },
        "cluster": {
            "gpu": "a100-80gb", "gpus_per_node": 8, "nodes": 2, "intra_node": "NVSwitch 300 GB/s", "shape": "rail-optimized",
            "nodes_per_pod": 2, "inter_node": "8x200 Gbit/s",
        },
        "plan": {"tp": 2, "pp": 2, "cp": 1, "sequence_parallel": True, "sharding": "zero1", "recompute": "none"},
        "job": {"sequence_length": 1024, "global_batch": 64, "microbatch_size": 2, "dtype": "bf16"},
        "framework": {"name": "megatron-core-2025"},
    }  # fmt: skip
    assert notes == []


def test_what_a_row_becomes_is_read() -> None:
    scenario = load.scenario(scenario_of(row())[0])
    assert scenario.cluster.gpus == 16


@pytest.mark.parametrize(
    ("name", "file"),
    [("Llama-3/3.1-70B", "llama3-70b"), ("Llama-3.1-70B proxy (8 layers)", "llama3-70b"), ("Llama 3 of 7B", None)],
)
def test_a_model_of_the_catalog_says_what_columns_do_not(name: str, file: str | None) -> None:
    model = part("model", **{**LLAMA, "model_name": name, "layers": 8})
    assert model.get("name") == file
    assert model["layers"] == 8
    assert "bias" not in model


def test_learned_positions_are_as_many_as_tokens() -> None:
    gpt3 = {"model_name": "GPT-3 175B", "layers": 96, "hidden": 12288, "heads": 96, "kv_heads": 96, "ffn_hidden": 49152}
    assert part("model", **gpt3, seq_len=1024)["max_sequence_length"] == 2048
    assert part("model", **gpt3, seq_len=8192)["max_sequence_length"] == 8192


def test_a_name_of_the_catalog_on_another_shape_is_another_model() -> None:
    assert "name" not in part("model", **{**LLAMA, "hidden": 4096, "heads": 32})


@pytest.mark.parametrize(
    ("cells", "nodes", "gpus", "nics"),
    [
        ({"gpus": 8}, 1, 8, None),
        ({"gpus": 4, "gpus_per_node": 4, "nvlink_domain": 4}, 1, 4, None),
        ({"nic_gbit_per_node": 400, "inter_node": "4x100Gb RoCE per node"}, 2, 8, "4x100 Gbit/s"),
        ({"nic_gbit_per_node": 800, "inter_node": "Selene"}, 2, 8, "4x200 Gbit/s"),
        ({"gpu_model": "h100"}, 2, 8, "8x400 Gbit/s"),
        ({"gpu_model": "h100", "nic_gbit_per_node": 4000}, 2, 8, "8x500 Gbit/s"),
        ({"gpu_model": "gb200", "gpus": 64, "gpus_per_node": 4, "nvlink_domain": 72}, 1, 64, None),
        ({"gpu_model": "gb200", "gpus": 256, "gpus_per_node": 4, "nvlink_domain": 72}, 4, 64, "64x400 Gbit/s"),
        ({"gpu_model": "gb300", "gpus": 144, "gpus_per_node": 4, "nvlink_domain": 72}, 2, 72, "72x400 Gbit/s"),
        ({"gpu_model": "gb300", "gpus": 128, "gpus_per_node": "", "nvlink_domain": ""}, 2, 64, "64x400 Gbit/s"),
        (
            {"gpu_model": "gb200", "gpus": 96, "nvlink_domain": 72, "gpus_per_node": "", "nic_gbit_per_node": 800},
            2,
            48,
            "24x400 Gbit/s",
        ),
    ],
)
def test_nvlink_domains_are_the_nodes_of_the_cluster(cells: dict[str, object], nodes: int, gpus: int, nics: str | None) -> None:
    cluster = part("cluster", **cells)
    assert (cluster["nodes"], cluster["gpus_per_node"], cluster.get("inter_node")) == (nodes, gpus, nics)
    assert (cluster.get("fabric") == "roce") == ("RoCE" in str(cells.get("inter_node")))


@pytest.mark.parametrize(
    ("words", "gpu", "gb_per_s", "nic_gbit"),
    [("NVIDIA H20", "h20", 450, 400), ("V100-SXM2-16GB", "v100-16gb", 150, 100), ("A100-SXM4-80GB", "a100-80gb", 300, 200)],
)
def test_what_a_row_leaves_out_is_usual_for_its_gpu(words: str, gpu: str, gb_per_s: int, nic_gbit: int) -> None:
    cluster = part("cluster", gpu=words, gpu_model="", nvlink_oneway_GBps="")
    assert (cluster["gpu"], cluster["intra_node"]) == (gpu, f"NVSwitch {gb_per_s} GB/s")
    assert cluster["inter_node"] == f"8x{nic_gbit} Gbit/s"
    assert part("cluster", gpu="H100", gpu_model=gpu, nvlink_oneway_GBps="")["gpu"] == gpu


def test_links_that_nobody_knows_are_not_made_up() -> None:
    with pytest.raises(UserError, match="blank, and no usual rate of mi250x"):
        part("cluster", gpu_model="mi250x", nvlink_oneway_GBps="")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"schedule": "none", "pp": 1}, {"pp": 1}),
        ({"schedule": "interleaved", "vpp": 4}, {"schedule": "interleaved", "chunks": 4}),
        ({"schedule": "interleaved"}, {"schedule": "interleaved", "chunks": 2}),
        ({"schedule": "v-half", "vpp": 2}, {"schedule": "v-half", "chunks": 2}),
        ({"schedule": "zb-1p"}, {"schedule": "zb-auto", "memory_limit": 1.0}),
        ({"schedule": "zb-2p"}, {"schedule": "zb-auto", "memory_limit": 2.0}),
        ({"sharding": "fsdp"}, {"sharding": "fsdp"}),
        ({"sharding": "hsdp"}, {"sharding": "hsdp"}),
        ({"sharding": "hsdp", "gpus": 8}, {"sharding": "fsdp"}),
        ({"sharding": "hsdp", "gpu_model": "gb200", "gpus": 64, "nvlink_domain": 72}, {"sharding": "fsdp"}),
        ({"facts": "zero_group=4"}, {"sharding": {"kind": "zero1", "group": 4}}),
        ({"facts": "zero_group=all"}, {"sharding": {"kind": "zero1", "group": 4}}),
        ({"facts": "zero_group=all", "tp": 2, "gpus": 64}, {"sharding": {"kind": "zero1", "group": 16}}),
        ({"sharding": "fsdp", "facts": "mp_mode=PURE"}, {"sharding": {"kind": "fsdp", "reduce_dtype": "bf16"}}),
        ({"recompute": "full"}, {"recompute": "full"}),
        (
            {"recompute": "selective", "facts": "activation_checkpoint=selective_layer"},
            {"recompute": {"scope": "full", "every": 2}},
        ),
        ({"facts": "vocab_placement=vocab-1"}, {"vocabulary": "vocab-1"}),
        ({"facts": "optimizer=post_validated"}, {"optimizer": "post-validated"}),
        ({"layers": 18, "facts": "first_last_stage_layers=-3"}, {"layout": "first=9,last=9"}),
        ({"layers": 6, "pp": 4, "schedule": "interleaved"}, {"layout": "first=0,last=0"}),
        ({"facts": "overlap=dp"}, {"overlap": {"dp": True}}),
        ({"facts": "async_tp=on"}, {"overlap": {"tp": "decomposed"}}),
        ({"facts": "launch_blocking=on"}, {"overlap": {"dp": False, "tp": False, "pp": False}}),
        ({"facts": "dispatcher=a2a;routing=forced_balance"}, {"moe": {"routing": "balanced", "dispatcher": "alltoall"}}),
        ({"facts": "dispatcher=deepep;ep_overlap=1f1b"}, {"moe": {"dispatcher": "deepep"}, "overlap": {"ep": True}}),
        ({"facts": "dispatcher=deepep", "ep": 4}, {"etp": 1}),
        ({"facts": "optimizer_offload=cpu"}, {"offload": {"optimizer": True}}),
        ({"ep": 4}, {"ep": 4}),
        ({"ep": 8}, {"ep": 8, "etp": 1}),
        ({"ep": 4, "hidden": 4096, "moe_ffn_hidden": 1536}, {"ep": 4, "etp": 1}),
        ({"sp": 0.0}, {"sequence_parallel": False}),
        ({"framework_date": "2022"}, {"sequence_parallel": False}),
    ],
)
def test_columns_and_facts_become_fields_of_the_plan(cells: dict[str, object], expected: dict[str, object]) -> None:
    plan = part("plan", **cells)
    assert {name: plan[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("cells", "group"),
    [
        ({"gpu_model": "gb200", "gpus": 128, "gpus_per_node": 4, "nvlink_domain": 72, "dp": 128, "tp": 1, "pp": 1}, 64),
        ({"gpu_model": "h100", "gpus": 32, "gpus_per_node": 8, "nvlink_domain": 8, "dp": 16, "tp": 2, "pp": 1}, 4),
    ],
)
def test_groups_of_hsdp_are_the_replicas_in_a_domain(cells: dict[str, object], group: int) -> None:
    """A run on 64 of 72 GPUs of a rack has no group of 72. With tensor parallelism a domain has fewer replicas than GPUs."""
    scenario = with_usual_plan(load.scenario(scenario_of(row(**cells, sharding="hsdp", global_batch=128))[0]))
    assert scenario.plan.full_sharding.group == group


def test_blank_cells_of_sharding_and_recomputation_are_left_to_the_framework() -> None:
    assert {"sharding", "recompute"}.isdisjoint(part("plan", sharding="", recompute=""))


@pytest.mark.parametrize("scheme", ["vocab-1", "vocab-2", "interlaced"])
def test_ranks_that_divide_the_vocabulary_hold_two_tables(scheme: str) -> None:
    assert part("model", facts=f"vocab_placement={scheme}")["tied_embeddings"] is False


@pytest.mark.parametrize("facts", ["vocab_placement=baseline", "first_last_stage_layers=-1", "embedding_as_layer=on", ""])
def test_facts_that_are_defaults_change_nothing(facts: str) -> None:
    assert scenario_of(row(facts=facts)) == scenario_of(row())


@pytest.mark.parametrize(
    ("cells", "dtype"),
    [
        ({"dtype": ""}, "bf16"),
        ({"dtype": "", "framework_date": "2021-04"}, "fp16"),
        ({"dtype": "", "gpu_model": "v100-32gb"}, "fp16"),
        ({"dtype": "mxfp8"}, "mxfp8"),
        ({"dtype": "fp8", "gpu_model": "h100", "facts": "precision_label=fp8 (finer granularity: ...)"}, "fp8_block"),
        ({"dtype": "fp8", "gpu_model": "b200", "facts": "precision_label=fp8 (finer granularity: ...)"}, "mxfp8"),
    ],
)
def test_a_blank_dtype_is_that_of_its_time(cells: dict[str, object], dtype: str) -> None:
    assert part("job", **cells)["dtype"] == dtype


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ("compile=on", {"compile": True}),
        ("attention=flash3", {"attention": "fa3"}),
        ("attention=flash", {}),
        ("precision_label=fp8-cs", {"low_precision": {"scaling": "current"}}),
    ],
)
def test_facts_change_the_framework(facts: str, expected: dict[str, object]) -> None:
    assert part("framework", facts=facts) == {"name": "megatron-core-2025", **expected}


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({"framework_profile": "nemo-mlperf-2023", "framework_date": "2023-06"}, "nemo-mlperf-2023-06"),
        ({"framework_profile": "nemo-mlperf-2023", "framework_date": "2023-11"}, "nemo-mlperf-2023"),
        ({"framework_profile": "llm-foundry-2023", "framework_date": "2023-10"}, "llm-foundry-2023-10"),
        ({"framework_profile": "llm-foundry-2023", "framework_date": "2023-06"}, "llm-foundry-2023"),
        ({"framework_profile": "torchtitan-2024", "framework_date": "2024-04"}, "torchtitan-2024-04"),
        ({"framework_profile": "torchtitan-2024", "framework_date": "2024-12"}, "torchtitan-2024"),
        ({"framework_profile": "nemo-2024", "gated_mlp": "1"}, "nemo-2024"),
        ({"framework_profile": "nemo-2024", "gated_mlp": "0"}, "nemo-gpt-2024"),
        ({"framework_profile": "nemo-2024", "num_experts": "8", "moe_topk": "2", "moe_ffn_hidden": "2048"}, "nemo-moe-2024"),
        ({"num_experts": "8", "moe_topk": "2", "moe_ffn_hidden": "2048"}, "megatron-core-moe-2025"),
    ],
)
def test_a_profile_of_the_month_or_of_the_kind_of_model_goes_first(cells: dict[str, str], name: str) -> None:
    assert part("framework", **cells)["name"] == name


def test_flash_attention_replaces_unfused_attention() -> None:
    framework = part("framework", facts="attention=flash", framework_profile="megatron-lm-2021", framework_date="2021-04")
    assert framework["attention"] == ""


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ("dense_layers=3", {"dense_layers": 3}),
        ("shared_expert_hidden=2048", {"shared_experts": 2}),
        ("activation=squared_relu", {"activation": "relu2"}),
        ("parallel_block=on", {"parallel_mlp": "one_norm"}),
    ],
)
def test_facts_change_the_model(facts: str, expected: dict[str, object]) -> None:
    model = part("model", facts=facts, moe_ffn_hidden=1024)
    assert {name: model[name] for name in expected} == expected


def test_experts_are_those_of_the_columns() -> None:
    model = part("model", num_experts=8, moe_topk=2, moe_ffn_hidden=1024)
    assert (model["experts"], model["experts_per_token"], model["expert_ffn_hidden"]) == (8, 2, 1024)


def test_a_host_that_waits_for_every_kernel_is_that_of_a_framework_with_launches() -> None:
    assert part("framework", facts="launch_blocking=on")["launch_blocking"] is True
    assert "launch_blocking" not in part("framework", facts="launch_blocking=off")
    assert "launch_blocking" not in part("framework", facts="launch_blocking=on", framework_profile="none")


def test_facts_without_a_field_are_noted() -> None:
    _, notes = scenario_of(row(facts="launch_blocking=on;weather=rain"))
    assert [note.partition(":")[0] for note in notes] == ["launch_blocking", "weather"]
    values = {name: next(iter(VALUES.get(name, ("1",)))) for name in FACTS} | {
        "shared_expert_hidden": "1024",
        "overlap": "dp",
        "attention_kind": "gqa",
    }
    assert scenario_of(row(moe_ffn_hidden=1024, facts=";".join(f"{name}={value}" for name, value in values.items())))[1] == []


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"tp": ""}, "tp, pp: blank, the row has no layout"),
        ({"global_batch": ""}, "global_batch: '' is not a count"),
        ({"gpus": "many"}, "gpus: 'many' is not a count"),
        ({"gpus": 2**40}, f"gpus: {2**40} are more than one simulation takes"),
        ({"gpu_model": "abacus"}, "no GPU 'abacus'"),
        ({"nvlink_oneway_GBps": "none"}, "nvlink_oneway_GBps: 'none' is not a positive number"),
        ({"model_name": "Qwen3 Next"}, "model_name: qwen3-next: models with state-space or recurrent layers"),
        ({"schedule": "fifo"}, "schedule: 'fifo' is not known"),
        ({"facts": "attention_kind=mla"}, "facts: attention_kind=mla: no column has its sizes"),
        ({"facts": "first_last_stage_layers=-1", "layers": 17}, "facts: first_last_stage_layers=-1: 17 layers do not fill 2"),
        ({"facts": "zero_group=some"}, "facts: zero_group='some' is not a whole number"),
    ],
)
def test_a_row_that_describes_no_run_is_refused_with_its_column(cells: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError) as refused:
        scenario_of(row(**cells))
    assert refused.value.faults[0].message.startswith(reason)
