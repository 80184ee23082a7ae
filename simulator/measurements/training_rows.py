"""The scenario of a row of a table of training runs, as the mapping that a YAML file would hold.

A row describes a run by columns of sizes and fixed words, and by `facts`, which are `key=value` pairs of configuration that was
known before the run. Blank cells have these meanings: a microbatch has one sequence; the dtype is bf16 from 2022 on A100 and
later GPUs, else fp16; nothing is recomputed; tensor-parallel GPUs divide tokens too in software from 2023 on; an interleaved
pipeline has two stages per rank; the NICs are the usual ones of the GPU; tensor parallelism does not divide experts that are
narrower than the model. A row without a layout or a global batch is refused.

A model of the catalog whose name `model_name` holds, and whose width and heads are those of the row, says what no column says,
such as head dimensions, latent attention or tied embeddings. Other models are GPTs (learned positions, biases, tied embeddings,
a vocabulary of 51,200), or Llamas if their MLP has a gate. Where ranks divide embedding and head these are not tied.

A framework may have a variant for a month, for models with experts, or for GPTs, which rows of that kind use.

Features that the simulator does not model are written into the scenario nevertheless, and the reader of scenarios refuses them
with the reason. A fact that no field of a scenario expresses is named in the notes. A row of the published runs that ship holds
its scenario as JSON (`published_runs`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..config import catalog, load
from ..config.catalog import gpu_named
from ..config.cluster_file import MOST_GPUS
from ..config.document import read
from ..config.framework_profiles import nearest_profile
from ..errors import UserError, shown
from ..files import parsed_json
from ..kernels import UNFUSED
from ..workload.architecture import NO_HYBRIDS, hybrid_family
from .csv_tables import Row, count, number
from .measured_cluster import word

COLUMNS = (
    "model_name", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "gated_mlp", "vocab", "seq_len", "num_experts",
    "moe_topk", "moe_ffn_hidden", "gpu", "gpu_model", "gpus", "gpus_per_node", "inter_node", "nvlink_domain",
    "nvlink_oneway_GBps", "nic_gbit_per_node", "dtype", "tp", "sp", "pp", "vpp", "schedule", "cp", "ep", "dp", "sharding",
    "micro_batch", "global_batch", "recompute", "framework_profile", "framework_date", "facts", "scenario",
)  # fmt: skip
"""Columns that describe a run."""
USUAL_VOCAB, USUAL_CHUNKS, USUAL_GPUS_PER_NODE = 51_200, 2, 8
IN_RACKS = {"gb200": (4, 72), "gb300": (4, 72)}
"""Usual numbers of GPUs of a node and of an NVLink domain, for GPUs whose domains are racks of several nodes."""
SEQUENCE_PARALLEL_SINCE, BF16_SINCE = "2023", "2022"
WITHOUT_BF16 = ("p4", "p100", "t4", "v100")
NIC_GBIT = {"v100": 100, "a100": 200, "a800": 200}
USUAL_NIC_GBIT = 400
"""Rate of the NIC that a GPU usually has."""
NVLINK_GBPS = {
    "v100": 150, "a100": 300, "a800": 200, "h100": 450, "h800": 200, "h20": 450, "h200": 450, "gh200": 450, "b200": 900,
    "b300": 900, "gb200": 900, "gb300": 900,
}  # fmt: skip
"""Rate of the NVLinks that modules of a GPU usually have, in one direction."""
SIZES = {
    **{name: name for name in ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")}, "experts": "num_experts",
    "experts_per_token": "moe_topk", "expert_ffn_hidden": "moe_ffn_hidden",
}  # fmt: skip
"""Sizes of a model, and their columns."""
GPT = {"positions": "learned", "bias": True, "tied_embeddings": True}
SCHEDULES: Mapping[str, dict[str, Any]] = {
    "none": {},
    "1f1b": {},
    "interleaved": {"schedule": "interleaved", "chunks": USUAL_CHUNKS},
    "v-half": {"schedule": "v-half", "chunks": 2},
    "zb-v": {"schedule": "zb-v", "chunks": 2},
    "zb-1p": {"schedule": "zb-auto", "memory_limit": 1.0},
    "zb-2p": {"schedule": "zb-auto", "memory_limit": 2.0},
}
"""Fields of a plan for each word of the column `schedule`."""
SHARDINGS, RECOMPUTE = ("none", "zero1", "zero2", "zero3", "fsdp", "hsdp"), ("none", "selective", "full")
CHECKPOINTS: Mapping[str, object] = {
    "selective_layer": {"scope": "full", "every": 2},
    "selective_op": {"scope": "per-op"},
}
"""Recomputation in torchtitan's words."""
ATTENTION = {"flash1": "fa1", "flash2": "flash_attention", "flash3": "fa3", "cudnn": "cudnn", "unfused": UNFUSED}
ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "squared_relu": "relu2"}
NEEDS_MODEL = {"mla": "kv_lora_rank", "sliding_window": "window"}
"""Kinds of attention, each with a size that only models of the catalog state."""
UNTIED = ("vocab-1", "vocab-2", "interlaced")
"""Placements of the vocabulary whose code asserts two tables (sail-sg/VocabularyParallelism, megatron/training/arguments.py)."""
NO_EFFECT = ("layers", "heads", "embedding_as_layer", "precision_mode")
"""Facts that repeat columns or defaults."""
FACTS = (
    "activation", "activation_checkpoint", "async_tp", "attention", "attention_kind", "compile", "dense_layers", "dispatcher",
    "ep_overlap", "first_last_stage_layers", "mp_mode", "optimizer", "optimizer_offload", "overlap", "parallel_block",
    "precision_label", "routing", "shared_expert_hidden", "vocab_placement", "zero_group", *NO_EFFECT,
)  # fmt: skip
"""Facts that a scenario expresses. Others are noted."""
PARTLY = {"launch_blocking": "every kernel waits for the host, but no collective"}
"""Facts that a scenario expresses in part, and how."""


def scenario_of(row: Row) -> tuple[dict[str, Any], list[str]]:
    """The scenario of a row, and notes on what the scenario leaves out. Raises `UserError` for a row that describes no run."""
    if row.get("scenario"):
        return _whole(row), []
    if not (row["tp"].strip() and row["pp"].strip()):
        raise UserError("tp, pp: blank, the row has no layout")
    facts = facts_of(row)
    profile, note = nearest_profile(row["framework_profile"], row["framework_date"])
    batch = {"global_batch": count(row, "global_batch"), "microbatch_size": _count(row, "micro_batch", _usual_microbatch(row))}
    dtype = dtype_of(row)
    job = {"sequence_length": count(row, "seq_len"), **batch, "dtype": dtype}
    host = host_of(row) if "offload" in (plan := _plan(row, facts)) else {}
    scenario = {
        "model": (model := model_of(row)),
        "cluster": {**cluster_of(row), **host},
        "plan": plan,
        "job": job,
        "framework": {
            "name": profile_of_kind(profile_of_month(profile, row["framework_date"]), model),
            **_framework(facts, profile),
        },
    }
    left_out = [f"{name}: {PARTLY.get(name, 'not modelled, it has no effect')}" for name in facts if name not in FACTS]
    return scenario, [text for text in (note, *left_out) if text]


def profile_of_month(profile: str, date: str) -> str:
    """The framework of a month, such as nemo-mlperf-2023-06, if one is shipped; else that of the year."""
    of_month = f"{profile}-{date[5:7]}"
    return of_month if of_month in catalog.files("frameworks") else profile


def profile_of_kind(profile: str, model: Mapping[str, Any]) -> str:
    """The framework as it sets up models with experts (nemo-moe-2024) or GPTs (nemo-gpt-2024), if one is shipped."""
    known = {**read(catalog.files("models")[model["name"]]).data, **model} if "name" in model else model
    kind = "moe" if known.get("experts") else "gpt" if known.get("positions") == "learned" else ""
    of_kind = f"-{kind}-".join(profile.rsplit("-", 1))
    return of_kind if of_kind in catalog.files("frameworks") else profile


def _whole(row: Row) -> dict[str, Any]:
    """The scenario that a row holds as JSON."""
    found = parsed_json(row["scenario"], "scenario")
    if not isinstance(found, dict):
        raise UserError(f"scenario: {shown(row['scenario'])} is not a mapping")
    return found


def facts_of(row: Row) -> dict[str, str]:
    """The facts of a row, by name."""
    pairs = (one.partition("=") for one in row["facts"].split(";") if one.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def model_of(row: Row) -> dict[str, Any]:
    """The model of a row: its sizes, over those of the model of the catalog that has its name."""
    if row.get("scenario"):
        model = _whole(row).get("model")
        return model if isinstance(model, dict) else {"name": str(model)}
    facts, sizes = facts_of(row), {key: count(row, column) for key, column in SIZES.items() if row[column].strip()}
    gate = {"gated_mlp": number(row["gated_mlp"]) == 1} if row["gated_mlp"].strip() else {}
    if family := hybrid_family(row["model_name"].replace(" ", "-")):
        raise UserError(f"model_name: {family}: {NO_HYBRIDS}")
    known = _named(row["model_name"], sizes)
    kind = facts.get("attention_kind", "")
    if kind in NEEDS_MODEL and NEEDS_MODEL[kind] not in known:
        raise UserError(f"facts: attention_kind={kind}: no column has its sizes, and the catalog has no such model")
    model = {"name": known["name"]} if known else {"vocab": USUAL_VOCAB, **({} if gate.get("gated_mlp") else GPT)}
    if {**known, **model}.get("positions") == "learned":
        model["max_sequence_length"] = max(count(row, "seq_len"), known.get("max_sequence_length", 0))
    if facts.get("vocab_placement") in UNTIED:
        model["tied_embeddings"] = False
    if "dense_layers" in facts:
        model["dense_layers"] = _fact(facts, "dense_layers")
    if "shared_expert_hidden" in facts:
        model["shared_experts"] = _fact(facts, "shared_expert_hidden") // count(row, "moe_ffn_hidden")
    if "activation" in facts:
        model["activation"] = ACTIVATIONS.get(facts["activation"], facts["activation"])
    if facts.get("parallel_block", "off") not in ("off", "none"):
        model["parallel_mlp"] = "one_norm"
    return {**model, **sizes, **gate}


def _named(name: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The file and the sizes of the model of the catalog with a name such as "Llama-3/3.1-70B"; empty if there is none."""
    words = _words(name)
    for stem, file in sorted(catalog.files("models").items(), key=lambda one: (-len(_words(one[0])), one[0])):
        if _words(stem) <= words:
            data = read(file).data
            if all(data.get(key) == sizes.get(key) for key in ("hidden", "heads", "experts")):
                return {**data, "name": stem}
    return {}


def _words(name: str) -> set[str]:
    """Words and numbers of a name; a version such as 3.1 also counts as 3."""
    found = re.findall(r"\d+(?:\.\d+)?[bmt]?|[a-z]+", name.lower())
    return {*found, *(word.partition(".")[0] for word in found if word.replace(".", "").isdecimal())}


def gpu_of(row: Row) -> str:
    """The name of the GPU of a row in the catalog: the model, or else what the source calls it."""
    name = catalog.plain(row["gpu_model"].strip() or row.get("gpu", ""))
    return name if name in catalog.files("gpus") else gpu_named(name)


def cluster_of(row: Row) -> dict[str, Any]:
    """The cluster of a row: NVLink domains of equal size, joined by the NICs of their nodes."""
    gpus, gpu = count(row, "gpus"), gpu_of(row)
    if gpus > MOST_GPUS:
        raise UserError(f"gpus: {gpus} are more than one simulation takes")
    (per_node, domain), rate = _node_and_domain(row), _nvlink_gbps(row, gpu)
    domains = next(n for n in range(-(-gpus // domain), gpus + 1) if gpus % n == 0)
    cluster = {"gpu": gpu, "gpus_per_node": gpus // domains, "nodes": domains, "intra_node": f"NVSwitch {rate:g} GB/s"}
    if domains == 1:
        return cluster
    return {**cluster, "shape": "rail-optimized", "nodes_per_pod": domains, **_network(row, gpus // domains, per_node)}


def _nvlink_gbps(row: Row, gpu: str) -> float:
    """The rate of the NVLinks of a GPU in one direction; that of its modules where the row says nothing."""
    said, chip = row["nvlink_oneway_GBps"], gpu.partition("-")[0]
    if not said.strip() and (chip not in NVLINK_GBPS or "pcie" in gpu):
        raise UserError(f"nvlink_oneway_GBps: blank, and no usual rate of {gpu} is known")
    rate = number(said) if said.strip() else float(NVLINK_GBPS[chip])
    if not rate > 0:
        raise UserError(f"nvlink_oneway_GBps: {shown(said)} is not a positive number")
    return rate


def _node_and_domain(row: Row) -> tuple[int, int]:
    """The numbers of GPUs of a node and of an NVLink domain."""
    in_rack, rack = IN_RACKS.get(gpu_of(row), (USUAL_GPUS_PER_NODE, 0))
    per_node = _count(row, "gpus_per_node", min(count(row, "gpus"), in_rack))
    return per_node, _count(row, "nvlink_domain", rack or per_node)


def host_of(row: Row) -> dict[str, Any]:
    """The memory of the CPUs of a node, which no column describes: that of a DGX with such GPUs, if the catalog has one."""
    dgx = catalog.files("clusters").get(f"dgx-{gpu_of(row).partition('-')[0]}")
    found = read(dgx).data.get("host") if dgx else None
    return {"host": found} if found else {}


def _network(row: Row, gpus: int, per_node: int) -> dict[str, Any]:
    """The fields of a cluster for the NICs of `gpus` GPUs, of which `per_node` share a node's NICs."""
    usual_gbit = NIC_GBIT.get(gpu_of(row).partition("-")[0], USUAL_NIC_GBIT)
    gbit = number(row["nic_gbit_per_node"]) if row["nic_gbit_per_node"].strip() else per_node * usual_gbit
    if not gbit > 0:
        raise UserError(f"nic_gbit_per_node: {shown(row['nic_gbit_per_node'])} is not a positive number")
    said = re.match(r"([1-9]\d?)\s*x", row["inter_node"])
    nics = int(said[1]) if said else min(per_node, max(1, round(gbit / usual_gbit)))
    fabric = {"fabric": "roce"} if "roce" in row["inter_node"].lower() else {}
    return {"inter_node": f"{max(1, nics * gpus // per_node)}x{gbit / nics:g} Gbit/s", **fabric}


def _plan(row: Row, facts: Mapping[str, str]) -> dict[str, Any]:
    tp, pp, ep = count(row, "tp"), count(row, "pp"), _count(row, "ep", 1)
    plan = {"tp": tp, "pp": pp, **SCHEDULES[word(row, "schedule", SCHEDULES, "none")]}
    degrees = {"chunks": "vpp", "cp": "cp", "ep": "ep", "dp": "dp"}
    plan |= {key: count(row, column) for key, column in degrees.items() if row[column].strip()}
    if tp > 1:
        has_it = row["framework_date"] >= SEQUENCE_PARALLEL_SINCE
        plan["sequence_parallel"] = number(row["sp"]) == 1 if row["sp"].strip() else has_it
    narrow = 0 < _count(row, "moe_ffn_hidden", 0) < count(row, "hidden")
    if ep > 1 and tp > 1 and (narrow or count(row, "gpus") % (tp * ep * pp) or facts.get("dispatcher") == "deepep"):
        plan["etp"] = 1
    for name, value in (("sharding", _sharding(row, facts)), ("recompute", _recompute(row, facts)), ("overlap", _overlap(facts))):
        if value:
            plan[name] = value
    return {**plan, **_layout(row, facts, pp * plan.get("chunks", 1)), **_of_facts(facts)}


def _layout(row: Row, facts: Mapping[str, str], stages: int) -> dict[str, str]:
    """The layout of the layers where it is not the default. By default embedding and head count as a layer each where layers
    divide only so; a layout must say that the first and the last stage hold no layer at all."""
    layers = count(row, "layers")
    fewer = -_fact(facts, "first_last_stage_layers") if "first_last_stage_layers" in facts else 1
    usual, rest = divmod(layers + 2 * fewer, stages)
    if rest and "first_last_stage_layers" in facts:
        raise UserError(f"facts: first_last_stage_layers={-fewer}: {layers} layers do not fill {stages} stages so")
    is_default = fewer == 1 and (rest or layers >= stages)
    return {} if is_default else {"layout": f"first={usual - fewer},last={usual - fewer}"}


def _of_facts(facts: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a plan for which there are only facts."""
    plan: dict[str, Any] = {}
    if facts.get("optimizer") == "post_validated":
        plan["optimizer"] = "post-validated"
    if facts.get("vocab_placement", "baseline") != "baseline":
        plan["vocabulary"] = facts["vocab_placement"]
    moe = {"routing": "balanced"} if "balance" in facts.get("routing", "") else {}
    if "dispatcher" in facts:
        moe["dispatcher"] = "alltoall" if facts["dispatcher"] == "a2a" else facts["dispatcher"]
    offload = {"offload": {"optimizer": True}} if facts.get("optimizer_offload", "none") != "none" else {}
    return {**plan, **({"moe": moe} if moe else {}), **offload}


def _sharding(row: Row, facts: Mapping[str, str]) -> object:
    """The sharding of a row; empty (the framework's default) for a blank cell. HSDP divides state among the replicas of a domain,
    which is FSDP where there is one domain only."""
    kind = word(row, "sharding", SHARDINGS) if row["sharding"].strip() else ""
    more = dict[str, object]()
    if kind == "hsdp" and count(row, "gpus") <= _node_and_domain(row)[1]:
        kind = "fsdp"
    if facts.get("zero_group", "all") != "all":
        more["group"] = _fact(facts, "zero_group")
    if facts.get("mp_mode") == "PURE":
        more["reduce_dtype"] = "bf16"
    return {"kind": kind, **more} if more else kind


def _recompute(row: Row, facts: Mapping[str, str]) -> object:
    """The recomputation of a row; empty (the framework's default) for a blank cell."""
    if facts.get("activation_checkpoint") in CHECKPOINTS:
        return CHECKPOINTS[facts["activation_checkpoint"]]
    return word(row, "recompute", RECOMPUTE) if row["recompute"].strip() else ""


def _overlap(facts: Mapping[str, str]) -> dict[str, bool | str]:
    """The overlaps that facts state. If the host waits for every launch, nothing overlaps compute."""
    if facts.get("launch_blocking") == "on":
        return dict.fromkeys(("dp", "tp", "pp"), False)
    overlap: dict[str, bool | str] = dict.fromkeys(re.findall(r"\b(?:dp|tp|pp|cp|ep)\b", facts.get("overlap", "")), True)
    overlap |= {"tp": "decomposed"} if facts.get("async_tp") == "on" else {}
    return overlap | ({"ep": True} if facts.get("ep_overlap", "off") != "off" else {})


def _framework(facts: Mapping[str, str], profile: str) -> dict[str, Any]:
    """The fields of a framework that facts change."""
    found: dict[str, Any] = {"compile": facts["compile"] == "on"} if "compile" in facts else {}
    if facts.get("launch_blocking") == "on" and load.framework(profile).kernel_s:
        found["launch_blocking"] = True
    if facts.get("precision_label") == "fp8-cs":
        found["low_precision"] = {"scaling": "current"}
    attention = facts.get("attention", "")
    if attention in ATTENTION:
        found["attention"] = ATTENTION[attention]
    elif attention and load.framework(profile).attention == UNFUSED:
        found["attention"] = ""
    return found


def dtype_of(row: Row) -> str:
    """The number format of a row."""
    if "finer granularity" in facts_of(row).get("precision_label", ""):
        return "fp8_block" if gpu_of(row).startswith("h") else "mxfp8"
    has_bf16 = row["framework_date"] >= BF16_SINCE and gpu_of(row).partition("-")[0] not in WITHOUT_BF16
    return row["dtype"].strip().lower() or ("bf16" if has_bf16 else "fp16")


def _count(row: Row, column: str, usual: int) -> int:
    """The whole number in a cell, or the usual one for a blank cell."""
    return count(row, column) if row[column].strip() else usual


def _usual_microbatch(row: Row) -> int:
    """Sequences of a microbatch where a row states none. torchtitan makes as many microbatches as there are pipeline ranks
    (`pipeline_parallel_microbatches` in torchtitan/config_manager.py, 2024).
    """
    pp, is_torchtitan = count(row, "pp"), row["framework_profile"].startswith("torchtitan")
    return max(1, count(row, "global_batch") // (_count(row, "dp", 1) * pp)) if pp > 1 and is_torchtitan else 1


def _fact(facts: Mapping[str, str], name: str) -> int:
    """The whole number of a fact."""
    try:
        return int(facts[name])
    except ValueError:
        raise UserError(f"facts: {name}={shown(facts[name])} is not a whole number") from None
