"""Configurations of Hugging Face models: what the refusal says of sizes, of models that see, and of encoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import simulator as sim
from simulator.errors import UserError

GEMMA3 = {
    "model_type": "gemma3_text", "num_hidden_layers": 48, "hidden_size": 3840, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 15360, "vocab_size": 262208, "sliding_window": 1024,
}  # fmt: skip
OPT = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "num_hidden_layers": 48, "hidden_size": 7168,
    "num_attention_heads": 56, "ffn_dim": 28672, "vocab_size": 50272,
}  # fmt: skip
BERT = {"model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}


def refusal(tmp_path: Path, config: dict[str, Any]) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    with pytest.raises(UserError) as refused:
        sim.model(str(file))
    (fault,) = refused.value.faults
    return f"{fault.message}; {fault.hint}"


def test_a_model_that_also_sees_is_that_of_its_text(tmp_path: Path) -> None:
    sees = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "vision_config": {"hidden_size": 1152}}
    said = refusal(tmp_path, {**sees, "text_config": GEMMA3})
    assert "'Gemma3ForConditionalGeneration'" in said
    assert "take gemma3-12b, which has these sizes; or begin with model: {layers: 48, hidden: 3840, heads: 16" in said


@pytest.mark.parametrize(
    "config",
    [
        {**BERT, "architectures": ["BertForMaskedLM"]},
        {**BERT, "architectures": ["ViTForImageClassification"], "model_type": "vit"},
        {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True, "d_model": 768},
    ],
)
def test_an_encoder_is_not_taken_for_a_decoder_of_its_sizes(tmp_path: Path, config: dict[str, Any]) -> None:
    said = refusal(tmp_path, config)
    assert "encoders, and models of images or of sounds alone, cannot be simulated" in said
    assert "gpt2" not in said


def test_of_several_models_of_equal_sizes_the_family_goes_first(tmp_path: Path) -> None:
    assert "take opt-30b, which has these sizes" in refusal(tmp_path, OPT)
    assert "take mpt-30b or opt-30b, which have" in refusal(tmp_path, {**OPT, "model_type": "other"})


def test_sizes_have_several_names(tmp_path: Path) -> None:
    mpt = {"architectures": ["MPTForCausalLM"], "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32}
    said = refusal(tmp_path, {**mpt, "vocab_size": 50432, "expansion_ratio": 4})
    assert "take mpt-7b" in said
    assert "{layers: 32, hidden: 4096, heads: 32, vocab: 50432}" in said
    assert "(in this file: expansion_ratio)" in said
    assert "kv_heads: 8" in refusal(tmp_path, {**OPT, "num_kv_heads": 8})


def test_what_every_model_has_is_not_listed(tmp_path: Path) -> None:
    plain = {"sliding_window": 4096, "use_sliding_window": False, "moe_layer_freq": 1, "rotary_pct": 1.0}
    assert "in this file" not in refusal(tmp_path, {**OPT, **plain})
    odd = {"sliding_window": 4096, "moe_layer_freq": 2, "rotary_pct": 0.25}
    assert "(in this file: sliding_window, rotary_pct, moe_layer_freq)" in refusal(tmp_path, {**OPT, **odd})
