"""The words of a table of training runs: dates, number formats, schedules, sharding, recomputation and facts.

Every program has its own words for the same thing. A word is read if it can mean only one thing, in any case, with spaces, dashes
or underscores; others are refused with the words that are known. A fact with a value that no field expresses has no effect, and a
note says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args

from ..errors import UserError, did_you_mean, shown
from ..kernels import UNFUSED
from ..workload import optimizer
from .csv_tables import Row, number
from .kernel_words import FORMAT_NAMES, WIDTH

YES, NO = ("true", "yes", "on", "enabled"), ("false", "no", "off", "disabled", "none")
DATE = re.compile(r"(?<!\d)(20\d\d)(?:[-/. ](0?[1-9]|1[0-2])(?!\d))?")
USUAL_CHUNKS = 2
SCHEDULES: Mapping[str, dict[str, Any]] = {
    "none": {},
    "1f1b": {},
    "gpipe": {"schedule": "gpipe"},
    "interleaved": {"schedule": "interleaved", "chunks": USUAL_CHUNKS},
    "looped-bfs": {"schedule": "looped-bfs", "chunks": USUAL_CHUNKS},
    "interleaved-zb": {"schedule": "interleaved-zb", "chunks": USUAL_CHUNKS},
    **{name: {"schedule": name, "chunks": 2} for name in ("v-half", "v-min", "zb-v", "dualpipe-v")},
    **{name: {"schedule": name} for name in ("zb-h1", "zb-h2", "dualpipe")},
    "zb-1p": {"schedule": "zb-auto", "memory_limit": 1.0},
    "zb-2p": {"schedule": "zb-auto", "memory_limit": 2.0},
}
"""Fields of a plan for each word of the column `schedule`."""
ONE_CHUNK = ("none", "1f1b")
"""Words for schedules that several chunks per rank make interleaved, as in Megatron, where no other word says so."""
OTHER_SCHEDULES = {
    "interleaved-1f1b": "interleaved", "1f1b-interleaved": "interleaved", "interleaved1f1b": "interleaved", "vpp": "interleaved",
    "afab": "gpipe", "zbh1": "zb-h1", "zbh2": "zb-h2", "zbv": "zb-v", "zbvzerobubble": "zb-v", "dualpipev": "dualpipe-v",
    "interleavedzerobubble": "interleaved-zb", "loopedbfs": "looped-bfs",
}  # fmt: skip
"""Other words for schedules: of papers, of Megatron, and the classes of torch.distributed.pipelining."""
SHARDINGS, RECOMPUTE = ("none", "zero1", "zero2", "zero3", "fsdp", "hsdp"), ("none", "selective", "full")
OTHER_SHARDINGS = {
    **{f"zero-{stage}": f"zero{stage}" for stage in (1, 2, 3)}, "zero0": "none", "zero-0": "none", "ddp": "none",
    "distributed-optimizer": "zero1", "distopt": "zero1", "shard-grad-op": "zero2", "full-shard": "fsdp", "hybrid-shard": "hsdp",
    "fsdp1": "fsdp", "fsdp2": "fsdp", "fsdp-2": "fsdp",
}  # fmt: skip
"""Other words for sharding: of DeepSpeed, Megatron and PyTorch."""
OTHER_RECOMPUTE = {**dict.fromkeys((*NO, "0"), "none"), **dict.fromkeys((*YES, "1"), "full")}
"""Words of a flag of activation checkpointing, which in every framework means all layers."""
CHECKPOINTS: Mapping[str, object] = {
    "selective_layer": {"scope": "full", "every": 2},
    "selective_op": {"scope": "per-op"},
}
"""Recomputation in torchtitan's words."""
FORMATS = {
    **{name: known for name, known in FORMAT_NAMES.items() if known in WIDTH}, "fp8-e4m3": "fp8", "fp8-hybrid": "fp8",
    "fp8-delayed": "fp8", "fp8-cs": "fp8", "fp8-current": "fp8", "fp8-blockwise": "fp8_block", "fp8-sc": "fp8_block",
    "fp8-mx": "mxfp8", **{f"amp-{name}": name for name in ("bf16", "fp16", "fp8")},
    **{f"{name}-{kind}": name for name in ("bf16", "fp16") for kind in ("mixed", "true")},
}  # fmt: skip
"""Other words for number formats: of PyTorch, Composer, Lightning, NeMo and Megatron Bridge. An 8-bit run that only says `bf16`
beside is not among them."""
CURRENT_SCALES = ("fp8-cs", "fp8-current")
"""Words for FP8 with scales of the tensor at hand."""
ATTENTION = {
    "flash1": "fa1", "flash2": "flash_attention", "fa2": "flash_attention", "flash3": "fa3", "fa3": "fa3", "cudnn": "cudnn",
    "unfused": UNFUSED,
}  # fmt: skip
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
SWITCHES = ("async_tp", "compile", "launch_blocking")
"""Facts that are on or off. `ep_overlap`, `optimizer_offload` and `parallel_block` are on with any other word."""
OPTIMIZERS = {"adamw": "adam", "post_validated": "adam", **{name: name for name in get_args(optimizer.Kind)}}
"""Rules of optimizers by the fact `optimizer`."""
VALUES: Mapping[str, Collection[str]] = {
    "activation_checkpoint": (*CHECKPOINTS, *RECOMPUTE),
    "attention": (*ATTENTION, "flash"),
    "attention_kind": (*NEEDS_MODEL, "mha", "mqa", "gqa", "full", "causal"),
    "mp_mode": ("pure", "default"),
    "optimizer": tuple(OPTIMIZERS),
    "routing": ("balanced", "balance", "forced_balance", "force_balance", "aux_loss_balance"),
}
"""Values that facts with words can have. The reader of scenarios checks those of `activation`, `dispatcher` and
`vocab_placement`."""
AXES = re.compile(r"\b(?:dp|tp|pp|cp|ep)\b")


def facts_of(row: Row) -> dict[str, str]:
    """The facts of a row by name, in lower case."""
    pairs = (one.partition("=") for one in row["facts"].lower().split(";") if one.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def notes_on(facts: Mapping[str, str]) -> Iterator[str]:
    """Notes on facts that a scenario leaves out, by their names or by their values."""
    for name, value in facts.items():
        if name in PARTLY and switched(value):
            yield f"{name}: {PARTLY[name]}"
        elif name not in FACTS and name not in PARTLY:
            yield f"{name}: not modelled, it has no effect"
        elif (
            (name in SWITCHES and switched(value) is None)
            or (name in VALUES and value not in VALUES[name])
            or (name == "overlap" and not AXES.search(value) and switched(value) is not False)
        ):
            yield f"{name}={value}: not modelled, it has no effect"


def switched(words: str) -> bool | None:
    """Whether words say yes or no; None for words that say neither."""
    plain, value = words.strip().lower(), number(words)
    if plain in YES or value == 1:
        return True
    return False if plain in NO or value == 0 else None


def flag(row: Row, column: str) -> bool:
    """Whether a cell says yes. Raises `UserError` for a cell that says neither yes nor no."""
    found = switched(row[column])
    if found is None:
        raise UserError(f"{column}: {shown(row[column])} is neither 0 nor 1")
    return found


def choice(row: Row, column: str, known: Collection[str], others: Mapping[str, str], usual: str = "") -> str:
    """The known word that a cell means; `usual` for a blank cell."""
    written = re.sub(r"[\s_]+", "-", row[column].strip().lower())
    found = others.get(written, others.get(written.replace("-", "_"), written)) or usual
    as_known = {name.replace("_", "-"): name for name in known}
    if found.replace("_", "-") not in as_known:
        raise UserError(f"{column}: {shown(row[column])} is not known; {did_you_mean(found, known)}")
    return as_known[found.replace("_", "-")]


def date_of(row: Row) -> str:
    """The date of the software of a row as a year, or as a year and a month such as 2024-06: that of its name if the row has no
    date, and empty if neither says a year."""
    for cell in (row["framework_date"], row["framework_profile"] or row["framework"]):
        if found := DATE.search(cell):
            return f"{found[1]}-{int(found[2]):02}" if found[2] else found[1]
    return ""


def schedule_of(row: Row, pp: int) -> dict[str, Any]:
    """The schedule of a row and its chunks per rank, as fields of a plan. Several chunks make a pipeline interleaved if no word
    says another schedule; without a pipeline there are no chunks."""
    name = choice(row, "schedule", SCHEDULES, OTHER_SCHEDULES, "none")
    stated = number(row["vpp"]) if row["vpp"].strip() else 0
    chunks = int(stated) if stated == stated and stated == int(stated) else -1
    if chunks < 0:
        raise UserError(f"vpp: {shown(row['vpp'])} is not a count")
    if name in ONE_CHUNK and (pp == 1 or chunks < 2):
        return {}
    name = "interleaved" if name in ONE_CHUNK else name
    return {**SCHEDULES[name], **({"chunks": chunks} if chunks else {})}
