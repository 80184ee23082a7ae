"""The scenario of a row of a table of training runs, as the mapping that a YAML file would hold.

A row describes a run by columns of sizes and words, and by `facts`, which are `key=value` pairs of configuration that was
known before the run. Blank cells have these meanings: a microbatch has one sequence; the dtype is bf16 from 2022 on A100 and
later GPUs, else fp16; nothing is recomputed; tensor-parallel GPUs divide tokens too in software from 2023 on; an interleaved
pipeline has two stages per rank, and one of several stages per rank is interleaved; the software is that of the column
`framework`, as old as its name says; the NICs are the usual ones of the GPU; `tp` or `pp` is what the other degrees leave of the
GPUs. A row without a layout or a global batch is refused.
`run_words` and `run_cluster` read words, and the columns of the cluster.

A model of the catalog whose name `model_name` holds, and whose width, heads and experts are those of the row where it states
them, says what no cell says, such as head dimensions, latent attention or tied embeddings. Other models are GPTs (learned
positions, biases, tied embeddings, a vocabulary of 51,200), or Llamas if their MLP has a gate. Where ranks divide embedding and
head these are not tied.

A framework may have a variant for a month, for models with experts, or for GPTs, which rows of that kind use.

Features that the simulator does not model are written into the scenario nevertheless, and the reader of scenarios refuses them
with the reason. A fact that no field of a scenario expresses is named in the notes. A row of the published runs that ship holds
its scenario as JSON (`published_runs`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from ..config import catalog, load
from ..config.document import read
from ..config.framework_profiles import nearest_profile
from ..errors import UserError, shown
from ..files import parsed_json
from ..kernels import UNFUSED
from ..workload.architecture import NO_HYBRIDS, hybrid_family
from .csv_tables import Row, count, number
from .kernel_words import WIDTH
from .run_cluster import cluster_of, count_or, gpu_of, host_of, machine_of, notes_on_cluster
from .run_words import (
    ACTIVATIONS,
    ATTENTION,
    AXES,
    CHECKPOINTS,
    CURRENT_SCALES,
    DATE,
    FORMATS,
    NEEDS_MODEL,
    OPTIMIZERS,
    OTHER_RECOMPUTE,
    OTHER_SHARDINGS,
    RECOMPUTE,
    SHARDINGS,
    UNTIED,
    VALUES,
    choice,
    date_of,
    facts_of,
    flag,
    notes_on,
    schedule_of,
    switched,
)

COLUMNS = (
    "model_name", "arch", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "gated_mlp", "vocab", "seq_len", "num_experts",
    "moe_topk", "moe_ffn_hidden", "gpu", "gpu_model", "gpus", "gpus_per_node", "intra_node", "inter_node", "nvlink_domain",
    "nvlink_oneway_GBps", "nic_gbit_per_node", "dtype", "tp", "sp", "pp", "vpp", "schedule", "cp", "ep", "dp", "sharding",
    "micro_batch", "global_batch", "recompute", "framework", "framework_profile", "framework_date", "facts", "scenario",
)  # fmt: skip
"""Columns that describe a run."""
USUAL_VOCAB = 51_200
SEQUENCE_PARALLEL_SINCE, BF16_SINCE = "2023", "2022"
WITHOUT_BF16 = ("p4", "p100", "t4", "v100")
SIZES = {
    **{name: name for name in ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")}, "experts": "num_experts",
    "experts_per_token": "moe_topk", "expert_ffn_hidden": "moe_ffn_hidden",
}  # fmt: skip
"""Sizes of a model, and their columns."""
OF_EXPERTS, NAMED_BY = ("num_experts", "moe_topk", "moe_ffn_hidden"), ("layers", "hidden", "heads")
"""Columns of experts, and of the sizes that every model has."""
GPT = {"positions": "learned", "bias": True, "tied_embeddings": True}


def scenario_of(row: Row) -> tuple[dict[str, Any], list[str]]:
    """The scenario of a row, and notes on what the scenario leaves out or takes for granted. Raises `UserError` for a row that
    describes no run."""
    if row.get("scenario"):
        return _whole(row), []
    row = _with_layout(row)
    facts, (profile, date, note) = facts_of(row), _software(row)
    model = model_of(row)
    plan = _plan(row, facts, model, date)
    batch = {"global_batch": count(row, "global_batch"), "microbatch_size": count_or(row, "micro_batch", _usual_microbatch(row))}
    job: dict[str, Any] = {"sequence_length": count(row, "seq_len"), **batch, "dtype": dtype_of(row)}
    if (rule := OPTIMIZERS.get(facts.get("optimizer", ""), "adam")) != "adam":
        job["optimizer"] = rule
    scenario = {
        "model": model,
        "cluster": {**cluster_of(row), **(host_of(row) if "offload" in plan else {})},
        "plan": plan,
        "job": job,
        "framework": {"name": profile_of_kind(profile_of_month(profile, date), model), **_framework(row, facts, profile)},
    }
    notes = (note, *_notes_on_columns(row, model), *notes_on_cluster(row), *notes_on(facts))
    return scenario, [text for text in notes if text]


def _with_layout(row: Row) -> Row:
    """The row with its degrees of tensor and pipeline parallelism. Where one of them is blank the number of GPUs over the others
    says it; where both are, they are 1 if data and context parallelism take all GPUs."""
    blank = [column for column in ("tp", "pp") if not row[column].strip()]
    if not blank:
        return row
    if not row["dp"].strip():
        raise UserError("tp, pp: blank, the row has no layout")
    degrees = [count(row, column) for column in ("tp", "pp", "cp", "dp") if row[column].strip()]
    each, left = divmod(count(row, "gpus"), prod(degrees))
    if left or not each or (len(blank) > 1 and each > 1):
        raise UserError(f"{', '.join(blank)}: blank, and {row['gpus'].strip()} GPUs do not determine it")
    return {**row, **dict.fromkeys(blank, str(each))}


def _software(row: Row) -> tuple[str, str, str]:
    """The framework of a row, its date, and a note if the framework is another one. Software without a date is as old as the
    framework that is taken for it."""
    date = date_of(row)
    profile, note = nearest_profile(row["framework_profile"].strip() or row["framework"].strip(), date)
    if not date:
        date = next(iter(re.findall(r"20\d\d", profile)), BF16_SINCE)
    return profile, date, note


def _notes_on_columns(row: Row, model: Mapping[str, Any]) -> Iterator[str]:
    if row["framework_date"].strip() and not DATE.search(row["framework_date"]):
        yield f"framework_date: {shown(row['framework_date'])} is no date such as 2024-06, and has no effect"
    if blank := [column for column in NAMED_BY if "name" in model and column not in model]:
        yield f"{', '.join(blank)}: blank, as of {model['name']}"
    if count(row, "pp") == 1 and number(row["vpp"]) > 1:
        yield "vpp: no pipeline, it has no effect"


def profile_of_month(profile: str, date: str) -> str:
    """The framework of a month, such as nemo-mlperf-2023-06, if one is shipped; else that of the year."""
    of_month = f"{profile}-{date[5:7]}"
    return of_month if of_month in catalog.files("frameworks") else profile


def profile_of_kind(profile: str, model: Mapping[str, Any]) -> str:
    """The framework as it sets up models with experts (nemo-moe-2024) or GPTs (nemo-gpt-2024), if one is shipped."""
    known = _with_catalog(model)
    kind = "moe" if known.get("experts") else "gpt" if known.get("positions") == "learned" else ""
    of_kind = f"-{kind}-".join(profile.rsplit("-", 1))
    return of_kind if of_kind in catalog.files("frameworks") else profile


def _whole(row: Row) -> dict[str, Any]:
    """The scenario that a row holds as JSON."""
    found = parsed_json(row["scenario"], "scenario")
    if not isinstance(found, dict):
        raise UserError(f"scenario: {shown(row['scenario'])} is not a mapping")
    return found


def model_of(row: Row) -> dict[str, Any]:
    """The model of a row: its sizes, over those of the model of the catalog that has its name."""
    if row.get("scenario"):
        model = _whole(row).get("model")
        return model if isinstance(model, dict) else {"name": str(model)}
    facts, sizes = facts_of(row), _sizes(row)
    gate = {"gated_mlp": flag(row, "gated_mlp")} if row["gated_mlp"].strip() else {}
    if family := hybrid_family(row["model_name"].replace(" ", "-")):
        raise UserError(f"model_name: {family}: {NO_HYBRIDS}")
    known = _named(row, sizes)
    kind = facts.get("attention_kind", "")
    if kind in NEEDS_MODEL and NEEDS_MODEL[kind] not in known:
        raise UserError(f"facts: attention_kind={kind}: no column has its sizes, and the catalog has no such model")
    if catalog.plain(row["arch"]) == "moe" and not {**known, **sizes}.get("experts"):
        raise UserError("num_experts: blank, although the column arch says moe, and the catalog has no such model")
    model = {"name": known["name"]} if known else {"vocab": USUAL_VOCAB, **({} if gate.get("gated_mlp") else GPT)}
    if {**known, **model}.get("positions") == "learned":
        model["max_sequence_length"] = max(count(row, "seq_len"), known.get("max_sequence_length", 0))
    if facts.get("vocab_placement") in UNTIED:
        model["tied_embeddings"] = False
    if "dense_layers" in facts:
        model["dense_layers"] = _fact(facts, "dense_layers")
    if "shared_expert_hidden" in facts:
        model["shared_experts"] = _shared_experts(facts, {**known, **sizes})
    if "activation" in facts:
        model["activation"] = ACTIVATIONS.get(facts["activation"], facts["activation"])
    if switched(facts.get("parallel_block", "off")) is not False:
        model["parallel_mlp"] = "one_norm"
    return {**model, **sizes, **gate}


def _sizes(row: Row) -> dict[str, int]:
    """The sizes that a row states. A model without experts may have 0 in their columns."""
    sizes = {key: column for key, column in SIZES.items() if row[column].strip()}
    if number(row["num_experts"]) == 0:
        sizes = {key: column for key, column in sizes.items() if not (column in OF_EXPERTS and number(row[column]) == 0)}
    return {key: count(row, column) for key, column in sizes.items()}


def _shared_experts(facts: Mapping[str, str], model: Mapping[str, Any]) -> int:
    """The number of shared experts, which are as wide as the others."""
    width, each = _fact(facts, "shared_expert_hidden"), model.get("expert_ffn_hidden")
    if not each or width % each:
        stated = f"experts have {each}" if each else "moe_ffn_hidden is blank"
        raise UserError(f"facts: shared_expert_hidden={width}: shared experts are as wide as others, and {stated}")
    return width // int(each)


def _named(row: Row, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The file and the sizes of the model of the catalog with a name such as "Llama-3/3.1-70B"; empty if there is none. A blank
    cell may have any size."""
    words = _words(row["model_name"])
    may_have_experts = not row["num_experts"].strip() and catalog.plain(row["arch"]) in ("", "moe")
    for stem, file in sorted(catalog.files("models").items(), key=lambda one: (-len(_words(one[0])), one[0])):
        if _words(stem) <= words:
            data = read(file).data
            has_experts = data.get("experts") == sizes.get("experts") or may_have_experts
            if has_experts and all(data.get(key) == sizes.get(key, data.get(key)) for key in ("hidden", "heads")):
                return {**data, "name": stem}
    return {}


def _with_catalog(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sizes of a model, with those that only the catalog states."""
    return {**read(catalog.files("models")[model["name"]]).data, **model} if "name" in model else model


def _words(name: str) -> set[str]:
    """Words and numbers of a name; a version such as 3.1 also counts as 3."""
    found = re.findall(r"\d+(?:\.\d+)?[bmt]?|[a-z]+", name.lower())
    return {*found, *(word.partition(".")[0] for word in found if word.replace(".", "").isdecimal())}


def _plan(row: Row, facts: Mapping[str, str], model: Mapping[str, Any], date: str) -> dict[str, Any]:
    tp, pp, ep, known = count(row, "tp"), count(row, "pp"), count_or(row, "ep", 1), _with_catalog(model)
    plan = {"tp": tp, "pp": pp, **schedule_of(row, pp)}
    plan |= {key: count(row, key) for key in ("cp", "ep", "dp") if row[key].strip()}
    if tp > 1:
        plan["sequence_parallel"] = flag(row, "sp") if row["sp"].strip() else date >= SEQUENCE_PARALLEL_SINCE
    narrow = 0 < known.get("expert_ffn_hidden", 0) < known.get("hidden", 0)
    if ep > 1 and tp > 1 and (narrow or count(row, "gpus") % (tp * ep * pp) or facts.get("dispatcher") == "deepep"):
        plan["etp"] = 1
    for name, value in (("sharding", _sharding(row, facts)), ("recompute", recomputation_of(row)), ("overlap", _overlap(facts))):
        if value:
            plan[name] = value
    return {**plan, **_layout(known, facts, pp * plan.get("chunks", 1)), **_of_facts(facts)}


def _layout(model: Mapping[str, Any], facts: Mapping[str, str], stages: int) -> dict[str, str]:
    """The layout of the layers where it is not the default. By default embedding and head count as a layer each where layers
    divide only so; a layout must say that the first and the last stage hold no layer at all."""
    layers = model.get("layers")
    if not layers:
        raise UserError("layers: blank, and the catalog has no such model")
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
    moe = {"routing": "balanced"} if facts.get("routing") in VALUES["routing"] else {}
    if "dispatcher" in facts:
        moe["dispatcher"] = "alltoall" if facts["dispatcher"] == "a2a" else facts["dispatcher"]
    offload = {"offload": {"optimizer": True}} if switched(facts.get("optimizer_offload", "none")) is not False else {}
    return {**plan, **({"moe": moe} if moe else {}), **offload}


def _sharding(row: Row, facts: Mapping[str, str]) -> object:
    """The sharding of a row; empty (the framework's default) for a blank cell. HSDP divides state among the replicas of a domain,
    which is FSDP where there is one domain only."""
    kind = choice(row, "sharding", SHARDINGS, OTHER_SHARDINGS) if row["sharding"].strip() else ""
    more = dict[str, object]()
    if kind == "hsdp" and count(row, "gpus") <= machine_of(row).domain:
        kind = "fsdp"
    if "zero_group" in facts:
        all_ranks = count(row, "gpus") // prod(count_or(row, axis, 1) for axis in ("tp", "pp", "cp"))
        more["group"] = all_ranks if facts["zero_group"] == "all" else _fact(facts, "zero_group")
    if facts.get("mp_mode") == "pure":
        more["reduce_dtype"] = "bf16"
    return {"kind": kind, **more} if more else kind


def recomputation_of(row: Row) -> object:
    """The recomputation of a row; empty (the framework's default) for a blank cell."""
    stated = facts_of(row).get("activation_checkpoint", "")
    if (found := CHECKPOINTS.get(stated) or CHECKPOINTS.get(catalog.plain(row["recompute"]).replace("-", "_"))) is not None:
        return found
    if row["recompute"].strip():
        return choice(row, "recompute", RECOMPUTE, OTHER_RECOMPUTE)
    return stated if stated in RECOMPUTE else ""


def _overlap(facts: Mapping[str, str]) -> dict[str, bool | str]:
    """The overlaps that facts state. If the host waits for every launch, nothing overlaps compute."""
    if switched(facts.get("launch_blocking", "")):
        return dict.fromkeys(("dp", "tp", "pp"), False)
    overlap: dict[str, bool | str] = dict.fromkeys(AXES.findall(facts.get("overlap", "")), True)
    overlap |= {"tp": "decomposed"} if switched(facts.get("async_tp", "")) else {}
    return overlap | ({"ep": True} if switched(facts.get("ep_overlap", "off")) is not False else {})


def _framework(row: Row, facts: Mapping[str, str], profile: str) -> dict[str, Any]:
    """The fields of a framework that facts change."""
    compiled = switched(facts.get("compile", ""))
    found: dict[str, Any] = {} if compiled is None else {"compile": compiled}
    if switched(facts.get("launch_blocking", "")) and load.framework(profile).kernel_s:
        found["launch_blocking"] = True
    if {facts.get("precision_label", ""), catalog.plain(row["dtype"])} & {*CURRENT_SCALES}:
        found["low_precision"] = {"scaling": "current"}
    attention = facts.get("attention", "")
    if attention in ATTENTION:
        found["attention"] = ATTENTION[attention]
    elif attention and load.framework(profile).attention == UNFUSED:
        found["attention"] = ""
    return found


def dtype_of(row: Row) -> str:
    """The number format of a row."""
    label = facts_of(row).get("precision_label", "")
    if "finer granularity" in label:
        return "fp8_block" if gpu_of(row).startswith("h") else "mxfp8"
    if not row["dtype"].strip() and label not in (*WIDTH, *FORMATS):
        has_bf16 = _software(row)[1] >= BF16_SINCE and gpu_of(row).partition("-")[0] not in WITHOUT_BF16
        return "bf16" if has_bf16 else "fp16"
    return choice({"dtype": row["dtype"].strip() or label}, "dtype", WIDTH, FORMATS)


def _usual_microbatch(row: Row) -> int:
    """Sequences of a microbatch where a row states none. torchtitan makes as many microbatches as there are pipeline ranks
    (`pipeline_parallel_microbatches` in torchtitan/config_manager.py, 2024).
    """
    pp, is_torchtitan = count(row, "pp"), (row["framework_profile"] or row["framework"]).lower().startswith("torchtitan")
    return max(1, count(row, "global_batch") // (count_or(row, "dp", 1) * pp)) if pp > 1 and is_torchtitan else 1


def _fact(facts: Mapping[str, str], name: str) -> int:
    """The whole number of a fact."""
    try:
        return int(facts[name])
    except ValueError:
        raise UserError(f"facts: {name}={shown(facts[name])} is not a whole number") from None
