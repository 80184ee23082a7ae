"""What other programs call the fields of a scenario: the table beside did-you-mean, for names that are not alike."""

from __future__ import annotations

_SIZES = {
    "tp": ("tensor_parallel", "tensor_parallelism", "tensor_model_parallel", "tensor_model_parallel_size"),
    "pp": ("pipeline_parallel", "pipeline_parallelism", "pipeline_model_parallel", "pipeline_model_parallel_size", "stages"),
    "dp": ("data_parallel", "data_parallelism", "data_parallel_replicate_degree", "replicas"),
    "cp": ("context_parallel", "context_parallelism"),
    "ep": ("expert_parallel", "expert_parallelism", "expert_model_parallel"),
}
_FIELDS = {
    "chunks": ("virtual_pipeline", "virtual_stages", "virtual_pipeline_model_parallel_size", "num_model_chunks"),
    "sharding": ("zero", "zero_stage", "fsdp"),
    "recompute": ("activation_checkpointing", "checkpoint_activations", "recompute_granularity"),
    "sequence_length": ("seq_length", "seq_len", "seq", "max_seq_len", "context_length"),
    "global_batch": ("gbs", "batch_size", "train_batch_size", "global_batch_size"),
    "microbatch_size": ("mbs", "micro_batch", "micro_batch_size", "microbatch", "train_micro_batch_size_per_gpu"),
    "dtype": ("precision", "mixed_precision", "torch_dtype"),
    "layers": ("num_layers", "n_layers", "num_hidden_layers"),
    "hidden": ("hidden_size", "d_model", "n_embd"),
    "heads": ("num_heads", "n_heads", "num_attention_heads"),
    "kv_heads": ("num_kv_heads", "n_kv_heads", "num_query_groups", "num_key_value_heads"),
    "ffn_hidden": ("ffn_hidden_size", "intermediate_size", "d_ff"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "nodes": ("num_nodes", "n_nodes"),
    "gpus_per_node": ("num_gpus_per_node", "nproc_per_node"),
}


def plain(word: str) -> str:
    """A word without what people write differently: case, hyphens, underscores."""
    return "".join(filter(str.isalnum, word.lower()))


def _all_names() -> dict[str, str]:
    parallel = {f"{name}{end}": field for field, names in _SIZES.items() for name in names for end in ("", "_size", "_degree")}
    return {plain(name): field for name, field in (*parallel.items(), *((n, f) for f, names in _FIELDS.items() for n in names))}


OTHER_NAMES = _all_names()
"""From a name, made plain, to the field of ours."""
OPTIONS = {"steps": "--steps", "engine": "--engine", "long": "--long", "allowoom": "--allow-oom", "fold": "--no-fold"}
"""What people write into a scenario that is an option of `trainsim run`, and of `simulate`."""
