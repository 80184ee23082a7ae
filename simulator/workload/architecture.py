"""Architecture of a decoder model as written in model files: number, size and kind of the parts of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from ..fields import Contradiction, Declared, Limits, Name, Size, Usual

Count = Annotated[int, Limits(ge=0, le=2**24)]

HYBRIDS = (
    "mamba", "jamba", "zamba", "bamba", "samba", "hymba", "nemotron-h", "falcon-h1", "rwkv", "griffin", "recurrentgemma", "hawk",
    "retnet", "xlstm", "hyena", "stripedhyena", "qwen3-next", "kimi-linear",
)  # fmt: skip
"""Families of models with layers that are not attention: state spaces, recurrences, long convolutions, linear attention."""
NO_HYBRIDS = "models with state-space or recurrent layers cannot be simulated yet, and are not taken for dense decoders"


def hybrid_family(name: str) -> str:
    """The family of `HYBRIDS` to which a model of this name belongs; empty for any other name."""
    plain = "-" + name.strip().lower().replace("_", "-")
    return next((family for family in HYBRIDS if f"-{family}" in plain), "")


def nearest_divisor(whole: int, wanted: int) -> int:
    """The divisor of `whole` that is nearest to `wanted`; the smaller divisor if two are equally near."""
    below = next(n for n in range(min(wanted, whole), 0, -1) if whole % n == 0)
    above = next((n for n in range(wanted, min(whole, 2 * wanted) + 1) if whole % n == 0), below)
    return min(below, above, key=lambda n: (abs(n - wanted), n))


@dataclass(frozen=True)
class Architecture(Declared):
    """Architecture of a decoder-only transformer. Sizes are counts. No field depends on how the model is trained."""

    name: Annotated[Name, Usual(lambda given: "inline"), "name of the model in results"]
    layers: Annotated[int, Limits(ge=1, le=10_000), "number of decoder layers, such as 32"]
    hidden: Annotated[Size, "width of the residual stream, such as 4096"]
    heads: Annotated[Size, "number of attention heads, such as 32"]
    kv_heads: Annotated[Size, Usual(lambda given: given["heads"]), "number of key and value heads; left out, heads"]
    head_dim: Annotated[Size, Usual(lambda given: given["hidden"] // given["heads"]), "width of a head; left out, hidden / heads"]
    ffn_hidden: Annotated[Size, Usual(lambda given: 4 * given["hidden"]), "inner width of the MLP; left out, 4 x hidden"]
    vocab: Annotated[Size, "number of tokens in the vocabulary, such as 128256"]
    gated_mlp: Annotated[bool, "whether the MLP has a gate, as in SwiGLU"] = False
    tied_embeddings: Annotated[bool, "whether the output projection and the embedding are one matrix"] = False
    norm: Annotated[
        Literal["rmsnorm", "layernorm"],
        Usual(lambda given: "rmsnorm" if given.get("gated_mlp") else "layernorm"),
        "kind of norm; left out, rmsnorm with a gated MLP and layernorm otherwise",
    ] = "rmsnorm"
    activation: Annotated[
        Literal["silu", "gelu", "relu", "relu2"],
        Usual(lambda given: "silu" if given.get("gated_mlp") else "gelu"),
        "activation of the MLP; left out, silu in a gated MLP and gelu otherwise; relu2 is the square of relu",
    ] = "silu"
    positions: Annotated[Literal["rope", "learned", "alibi", "none"], "encoding of token positions"] = "rope"
    bias: Annotated[
        bool | Literal["qkv", "attention", "mlp"],
        "linear layers that have biases: all, none, that of queries, keys and values, those of attention, or those of the MLP",
    ] = False
    max_sequence_length: Annotated[
        Size, Usual(lambda given: 0), "longest sequence that learned positions allow, in tokens; 0 for other positions"
    ] = 0
    norm_parameters: Annotated[
        Literal["all", "weight", "none"], "parameters of a norm: the usual ones, the weight without a bias, or none"
    ] = "all"
    norms: Annotated[
        Literal["before", "after", "both"], "where attention and MLP have norms: at their input, at their output, or at both"
    ] = "before"
    qk_norm: Annotated[Literal["none", "head", "full"], "norms of queries and keys: of each head, or of all heads together"] = (
        "none"
    )
    embedding_norm: Annotated[bool, "whether a norm follows the embedding"] = False
    parallel_mlp: Annotated[
        Literal["none", "one_norm", "two_norms"], "whether the MLP is parallel to attention, with the same norm or its own"
    ] = "none"
    window: Annotated[
        int, Limits(ge=0, le=2**27), "tokens that a token attends to, itself included, such as 4096; 0: all earlier ones"
    ] = 0
    window_kind: Annotated[
        Literal["sliding", "chunked"], "sliding: the latest tokens; chunked: those of the token's own chunk of `window` tokens"
    ] = "sliding"
    full_attention_every: Annotated[
        int, Limits(ge=0, le=10_000), "one in this many layers attends to all earlier tokens: 6 for Gemma 3; 0: none"
    ] = 0
    experts: Annotated[Count, "number of experts of a layer (mixture of experts), such as 8; 0 for a dense model"] = 0
    experts_per_token: Annotated[Count, "number of experts that the router chooses for each token, such as 2"] = 0
    expert_ffn_hidden: Annotated[
        Count, Usual(lambda given: given["ffn_hidden"] if given.get("experts") else 0), "width of an expert; left out, ffn_hidden"
    ] = 0
    shared_experts: Annotated[
        Count, "number of experts of a layer that process every token, beside those that the router chooses"
    ] = 0
    dense_layers: Annotated[Count, "number of first layers with a dense MLP in place of experts"] = 0
    expert_interval: Annotated[int, Limits(ge=1, le=10_000), "only every n-th layer has experts; 2: every other layer"] = 1
    kv_lora_rank: Annotated[
        Count, "width of the latent of keys and values (multi-head latent attention), such as 512; 0: there is none"
    ] = 0
    q_lora_rank: Annotated[Count, "width of the latent of queries; 0: queries have none"] = 0
    rope_head_dim: Annotated[
        Count, "number of the head_dim channels of a latent head that are rotated by position, such as 64"
    ] = 0
    value_head_dim: Annotated[Count, "width of a head of values, of latent attention; 0: as head_dim"] = 0

    mtp_layers: Annotated[
        int, Limits(ge=0, le=16), "modules after the last layer that each predict one more token (multi-token prediction)"
    ] = 0

    comments: ClassVar[Mapping[str, Any]] = {"published_parameters": str, "source": str}
    not_yet: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("mamba", "ssm_state", "ssm_state_size", "state_size", "conv_kernel", "ssm_cfg", "attn_layer_period", "lru_width",
             "hybrid_override_pattern", "rwkv"),
            NO_HYBRIDS,
        ),
        **dict.fromkeys(
            ("layer_types", "layers_block_type", "block_types"),
            f"`window` and `full_attention_every` say which layers see all tokens; {NO_HYBRIDS}",
        ),
    }  # fmt: skip
    instead: ClassVar[str] = "take a dense model: without these parts this would be another model"

    @property
    def shares_table(self) -> bool:
        """Whether the stage of the head reads the table of the embedding: for its logits, or for further tokens."""
        return self.tied_embeddings or self.mtp_layers > 0

    @classmethod
    def gaps(cls, given: Mapping[str, Any]) -> Iterator[Contradiction]:
        hidden, heads = given["hidden"], given["heads"]
        if "head_dim" not in given and hidden % heads:
            near = nearest_divisor(hidden, heads)
            yield "heads", f": hidden {hidden} does not divide by {heads} heads", f"heads: {near}, or give head_dim"
        if "ffn_hidden" not in given and given.get("gated_mlp"):
            yield "ffn_hidden", " is missing: a gated MLP has no usual size", f"Llama 3 has 3.5 x hidden: {7 * hidden // 2}"
        kv_heads = given.get("kv_heads", heads)
        if heads % kv_heads:
            near = nearest_divisor(heads, kv_heads)
            yield "kv_heads", f": {heads} heads do not share {kv_heads} kv_heads evenly", f"kv_heads: {near}"
        if given.get("positions") == "learned" and not given.get("max_sequence_length"):
            yield "max_sequence_length", " is missing: learned positions end somewhere", "max_sequence_length: 2048"
        yield from _of_experts(given)
        yield from _of_latents(given)

    def contradictions(self) -> Iterator[Contradiction]:
        family = hybrid_family(self.name)
        if family:
            yield "name", f": {family}: {NO_HYBRIDS}", "take a dense model, or another name if this is one"
        if not self.window and self.full_attention_every:
            yield "full_attention_every", ": without a window all layers attend to all tokens", "give a window, or leave it out"
        if not self.window and self.window_kind != "sliding":
            yield "window_kind", ": there is no window", "give a window, or leave it out"
        if self.window and self.full_attention_every == 1:
            yield "full_attention_every", ": 1 leaves no layer with a window", "at least 2, or no window"
        if self.parallel_mlp != "none" and self.experts:
            yield "parallel_mlp", ": experts beside attention are not modelled", "parallel_mlp: none"
        if self.parallel_mlp != "none" and self.norms != "before":
            yield "norms", f": {self.norms} is not modelled for an MLP beside attention", "norms: before"


def _of_experts(given: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Faults of the fields of experts in combination."""
    experts, chosen = given.get("experts", 0), given.get("experts_per_token", 0)
    if not experts:
        fields = ("experts_per_token", "expert_ffn_hidden", "shared_experts", "dense_layers")
        for name in (name for name in fields if given.get(name)):
            yield name, ": the model has no experts", "experts: 8, or leave it out"
    elif not 1 <= chosen <= experts:
        yield "experts_per_token", f": {chosen} of {experts} experts cannot be chosen", f"1 to {experts}, such as 2"
    elif given.get("dense_layers", 0) >= given["layers"] or given.get("expert_interval", 1) > given["layers"]:
        yield "experts", f": none of the {given['layers']} layers has experts", "fewer dense_layers, a smaller expert_interval"


def _of_latents(given: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Faults of the fields of multi-head latent attention in combination."""
    head_dim, rotated = given.get("head_dim", given["hidden"] // given["heads"]), given.get("rope_head_dim", 0)
    if not given.get("kv_lora_rank"):
        for name in (name for name in ("q_lora_rank", "rope_head_dim", "value_head_dim") if given.get(name)):
            yield name, ": the model has no latent attention", "kv_lora_rank: 512, or leave it out"
    elif not 1 <= rotated < head_dim:
        yield "rope_head_dim", f": {rotated} of the {head_dim} channels of a head", f"1 to {head_dim - 1}, such as 64"
    elif given.get("kv_heads", given["heads"]) != given["heads"]:
        yield "kv_heads", ": every head has its own keys in latent attention", f"kv_heads: {given['heads']}"
