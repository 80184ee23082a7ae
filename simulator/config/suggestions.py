"""Suggestions for faults: the nearest legal value, and the key that the user probably intended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from ..errors import did_you_mean, either
from ..fields import Declared, keys, once
from .document import Place, dotted

ONE_LETTER = 0.85
"""Similarity from which a key counts as a misspelling of one of its mapping (rank for ranks), whatever other mappings have."""
_DEGREES = {
    "tp": ("tensor_parallel", "tensor_parallelism", "tensor_model_parallel", "tensor_model_parallel_size"),
    "pp": ("pipeline_parallel", "pipeline_parallelism", "pipeline_model_parallel", "pipeline_model_parallel_size", "stages"),
    "dp": ("data_parallel", "data_parallelism", "data_parallel_replicate_degree", "replicas"),
    "cp": ("context_parallel", "context_parallelism"),
    "ep": ("expert_parallel", "expert_parallelism", "expert_model_parallel"),
    "etp": ("expert_tensor_parallel", "expert_tensor_parallelism"),
}
_FIELDS = {
    "chunks": ("virtual_pipeline", "virtual_stages", "virtual_pipeline_model_parallel_size", "num_model_chunks"),
    "cp_kind": ("cp_comm_type", "context_parallel_rotate_method"),
    "cp_ulysses": ("ulysses_degree", "hierarchical_context_parallel_sizes"),
    "layout": ("pipeline_model_parallel_layout", "pipeline_layout", "decoder_first_pipeline_num_layers"),
    "sharding": ("zero", "zero_stage", "fsdp"),
    "recompute": ("activation_checkpointing", "checkpoint_activations", "recompute_granularity"),
    "sequence_length": ("seq_length", "seq_len", "seq", "max_seq_len", "context_length"),
    "global_batch": (
        "gbs",
        "batch_size",
        "train_batch_size",
        "global_batch_size",
        "microbatches",
        "num_microbatches",
        "gradient_accumulation_steps",
    ),
    "microbatch_size": ("mbs", "micro_batch", "micro_batch_size", "microbatch", "train_micro_batch_size_per_gpu"),
    "total_tokens": ("train_tokens", "tokens", "training_tokens"),
    "dtype": ("precision", "mixed_precision", "torch_dtype"),
    "layers": ("num_layers", "n_layers", "num_hidden_layers"),
    "hidden": ("hidden_size", "d_model", "n_embd"),
    "heads": ("num_heads", "n_heads", "num_attention_heads"),
    "kv_heads": ("num_kv_heads", "n_kv_heads", "num_query_groups", "num_key_value_heads"),
    "ffn_hidden": ("ffn_hidden_size", "intermediate_size", "d_ff"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "num_moe_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_router_topk", "top_k"),
    "expert_ffn_hidden": ("moe_intermediate_size", "moe_ffn_hidden_size"),
    "nodes": ("num_nodes", "n_nodes"),
    "gpus_per_node": ("num_gpus_per_node", "nproc_per_node"),
}


def plain(word: str) -> str:
    """A word in lower case without hyphens and underscores, for comparing spellings."""
    return "".join(filter(str.isalnum, word.lower()))


def meant(word: object, known: Iterable[str]) -> str | None:
    """The one of the known words that a word means, which takes dashes or underscores, in any case; None if none or several."""
    found = [one for one in known if isinstance(word, str) and plain(one) == plain(word) != ""]
    return word if word in found and isinstance(word, str) else found[0] if len(found) == 1 else None


@cache
def other_names() -> Mapping[str, str]:
    """Field names of other programs (in plain spelling) and the field names of this simulator, where the two are not similar."""
    known = {name: field for field, names in _FIELDS.items() for name in names}
    known |= {name + end: field for field, names in _DEGREES.items() for name in names for end in ("", "_size", "_degree")}
    return {plain(name): field for name, field in known.items()}


OPTIONS = {"steps": "--steps", "engine": "--engine", "long": "--long", "allowoom": "--allow-oom", "fold": "--no-fold"}
"""Options of `trainsim run` and `simulate` that users write into a scenario by mistake."""
_THOUSANDS = re.compile(r"[0-9]{1,3}(,[0-9]{3})+")
_KILO = re.compile(r"([0-9]{1,6}) ?[kK]")
_TRUTH = {**dict.fromkeys(("yes", "on", "y", 1), "true"), **dict.fromkeys(("no", "off", "n", 0), "false")}


def true_or_false(value: Any) -> str:
    """The boolean to write in place of a word that means yes or no."""
    word = _TRUTH.get(value.lower() if isinstance(value, str) else value) if isinstance(value, (str, int)) else None
    return f"write {word}" if word else ""


def whole_number(value: Any) -> str:
    """The whole numbers next to the number that the user wrote."""
    if isinstance(value, str) and "," in value and not _THOUSANDS.fullmatch(value.strip()):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        return f"one value at a time: write {either(parts)}" if parts and all(map(str.isdecimal, parts)) else ""
    if isinstance(value, str) and (thousands := _KILO.fullmatch(value.strip())):
        return f"write {int(thousands[1]) * 1024}"
    text = value.replace(",", "").replace("_", "").strip() if isinstance(value, str) else ""
    if text.isdecimal() and len(text) <= 15:
        return f"write {int(text)}, without quotes" if text == value else f"write {int(text)}"
    if isinstance(value, float) and abs(value) < 2**53:
        return f"write {either(sorted({max(1, int(value)), max(1, -int(-value // 1))}))}"
    return "int(...) makes it one" if hasattr(value, "__index__") and not isinstance(value, bool) else ""


def unknown_key(root: type[Declared], owner: type[Declared], within: Place, at: Place) -> tuple[str, str]:
    """The message for an unknown key of a mapping, and the key that the user probably intended."""
    key = str(within[-1])
    if key in owner.before:
        return ": a setting cannot name the file to start from", f"write {key}: in the file of the scenario"
    if key in owner.not_yet:
        return f": {owner.not_yet[key]}", owner.instead
    if len(within) == 1 and plain(key) in OPTIONS:
        return ": unknown key", f"it is an option of the command: {OPTIONS[plain(key)]}"
    known = [*keys(owner), *owner.comments, *owner.before]
    paths, likely_key = shortest_paths(root), other_names().get(plain(key), key)
    likely_key = likely_key if likely_key in paths or likely_key in known else key
    beside = likely_key == key and get_close_matches(key, known, n=1, cutoff=ONE_LETTER)
    elsewhere = None if likely_key in known or beside else paths.get(likely_key)
    return ": unknown key", f"did you mean {dotted(elsewhere)!r}?" if elsewhere else did_you_mean(likely_key, known)


@once
def shortest_paths(root: type[Declared]) -> Mapping[str, tuple[str, ...]]:
    """The shortest path to a field of each name below a dataclass."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(_paths(root), key=len):
        found.setdefault(path[-1], path)
    return found


def _paths(root: type[Declared]) -> Iterator[tuple[str, ...]]:
    """The path of every field below a dataclass, except fields in lists."""
    for key, spec in keys(root).items():
        yield (key,)
        if spec.form.record and spec.form.record is spec.form.kind:
            yield from ((key, *path) for path in _paths(spec.form.record))
