"""The config.json of a Hugging Face model: refused with an error that gives its sizes in the keys of a model file, and names
what these keys leave out and the shipped models of these sizes.

Reference: `PretrainedConfig` of transformers; the keys are those of Llama, Mistral and similar models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ...errors import UserError, shown
from ...files import read_bounded
from ...workload.architecture import NO_HYBRIDS, hybrid_family
from .. import catalog

MARKS = ("architectures", "model_type", "num_hidden_layers")
"""Keys of a Hugging Face config.json; a mapping with two of them is recognised."""
KEYS = {
    "num_hidden_layers": "layers",
    "n_layer": "layers",
    "n_layers": "layers",
    "hidden_size": "hidden",
    "n_embd": "hidden",
    "d_model": "hidden",
    "num_attention_heads": "heads",
    "n_head": "heads",
    "n_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "num_kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "ffn_hidden",
    "ffn_dim": "ffn_hidden",
    "n_inner": "ffn_hidden",
    "vocab_size": "vocab",
    "num_local_experts": "experts",
    "num_experts": "experts",
    "n_routed_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_ffn_hidden",
    "n_shared_experts": "shared_experts",
    "first_k_dense_replace": "dense_layers",
    "kv_lora_rank": "kv_lora_rank",
    "q_lora_rank": "q_lora_rank",
    "qk_rope_head_dim": "rope_head_dim",
    "v_head_dim": "value_head_dim",
}
GATED = ("silu", "swiglu")
WHOLE = ("llama", "mistral", "mixtral")
"""Values of `model_type` whose models these keys describe. Other models have biases, norms, gates or ties that no key states."""
LEFT_OUT = (
    "hidden_activation", "activation_function", "sliding_window", "layer_types", "attention_bias", "mlp_bias", "qkv_bias", "bias",
    "multi_query", "new_decoder_architecture", "parallel_attn", "use_parallel_residual", "alibi", "attn_logit_softcapping",
    "final_logit_softcapping", "query_pre_attn_scalar", "partial_rotary_factor", "rotary_pct", "clip_qkv", "word_embed_proj_dim",
    "num_nextn_predict_layers", "shared_expert_intermediate_size",
    "intermediate_size_mlp", "interleave_moe_layer_step", "no_rope_layers", "expansion_ratio",
    "attn_config", "ffn_config", "decoder_sparse_step", "moe_layer_freq", "quantization_config",
)  # fmt: skip
"""Keys that describe a model and are not among `KEYS`."""
OF_TEXT = "text_config"
"""Key of the language model in the configuration of one that also sees or hears."""
DECODERS = re.compile(r"CausalLM|LMHead|ConditionalGeneration")
"""Parts of the names of architectures that predict the next token of a text."""
NO_DECODER = "encoders, and models of images or of sounds alone, cannot be simulated, and are not taken for decoders"
ALL_LAYERS = ("decoder_sparse_step", "moe_layer_freq", "partial_rotary_factor", "rotary_pct")
"""Keys among these whose value 1 is that of every model: all layers have experts, all channels of a head are rotated."""
SIZES = re.compile(r"^(layers|hidden|heads|kv_heads|ffn_hidden|vocab|experts): *(\d+)", re.M)
MOST_NAMED = 3
PADDED = 1.05
"""Largest ratio of two vocabularies that are assumed to differ only in padding."""


def recognises(data: Mapping[str, Any]) -> bool:
    return sum(key in data for key in MARKS) > 1


def imported(data: Mapping[str, Any], kind: str, file: str) -> NoReturn:
    """Raises `UserError` with the keys to write instead, since a model is not read from such a file yet."""
    called = data.get("architectures") or [data.get("model_type")]
    name = called[0] if isinstance(called, list) and called else called
    if isinstance(text := data.get(OF_TEXT), dict):
        data = {"model_type": data.get("model_type"), **text}
    message = f"this is the configuration of a Hugging Face model, {shown(name)}, not a file of this simulator"
    if any(hybrid_family(str(named)) for named in (data.get("model_type"), name)):
        hint = "take a dense model: `trainsim catalog models` lists those that ship"
        raise UserError(f"{message}; {NO_HYBRIDS}", where=f"{file}:1", hint=hint)
    is_decoder = "architectures" not in data or DECODERS.search(str(name)) is not None
    if data.get("is_encoder_decoder") is True or not (is_decoder or isinstance(text, dict)):
        raise UserError(f"{message}; {NO_DECODER}", where=f"{file}:1", hint="take a decoder: `trainsim catalog models`")
    latent = [data.get(f"qk_{channels}_head_dim") for channels in ("nope", "rope")]
    if all(type(channels) is int for channels in latent):
        data = {**data, "head_dim": sum(latent)}
    sizes = {ours: data[theirs] for theirs, ours in KEYS.items() if type(data.get(theirs)) is int}
    fields = [f"{ours}: {size}" for ours, size in sizes.items()]
    fields += ["gated_mlp: true"] if data.get("hidden_act") in GATED else []
    fields += ["tied_embeddings: true"] if data.get("tie_word_embeddings") is True else []
    raise UserError(
        message,
        where=f"{file}:1",
        hint=_hint(data, f"model: {{{', '.join(fields)}}}", _of_these_sizes(sizes, str(data.get("model_type")))),
    )


def _hint(data: Mapping[str, Any], written: str, alike: Sequence[str]) -> str:
    """What to write in place of a configuration; `alike` are shipped models of its sizes."""
    ships = f"{' or '.join(alike)}, which {'has' if len(alike) == 1 else 'have'} these sizes" if alike else ""
    kind, left_out = str(data.get("model_type", "")), _left_out(data)
    if kind in WHOLE and not left_out:
        return f"write the model as {written}" + (f", or take {ships}" if ships else "")
    besides = f"what a {shown(kind)} has besides these sizes" if kind not in WHOLE else "what else it has"
    named = f" (in this file: {', '.join(left_out)})" if left_out else ""
    begin = f"begin with {written} and add {besides}{named}"
    return f"take {ships}; or {begin}" if ships else begin


def _left_out(data: Mapping[str, Any]) -> list[str]:
    """The keys that describe a model and that no size states, without those that have the value of every model."""
    plain = [name for name in ALL_LAYERS if data.get(name) == 1]
    plain += ["sliding_window"] if data.get("use_sliding_window") is False else []
    return [name for name in LEFT_OUT if name not in plain and data.get(name) not in (None, False, 0)]


def _of_these_sizes(sizes: Mapping[str, int], kind: str) -> list[str]:
    """The shipped models with these numbers of layers and heads and this width: those of the family `kind`, if there are any."""
    if not {"layers", "hidden", "heads"} <= sizes.keys():
        return []

    def is_alike(text: str) -> bool:
        theirs = {key: int(size) for key, size in SIZES.findall(text)}
        experts = {sizes.get("experts", 0), theirs.get("experts", 0)}
        vocabularies = sorted((sizes.get("vocab", 1), theirs.get("vocab", 1) if "vocab" in sizes else 1))
        others = [key for key in sizes.keys() & theirs.keys() if key != "vocab"]
        return (
            len(experts) == 1 and vocabularies[1] <= PADDED * vocabularies[0] and all(sizes[key] == theirs[key] for key in others)
        )

    models = catalog.files("models").items()
    found = [name for name, path in models if is_alike(read_bounded(path, catalog.MOST_BYTES, "a model").decode("utf-8"))]
    family = "".join(re.findall(r"^[a-z]+", kind.lower()))
    return ([name for name in found if family and name.startswith(family)] or found)[:MOST_NAMED]
