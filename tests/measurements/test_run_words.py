"""Words of runs: what each becomes, in any spelling, and what is refused or noted instead of being taken for something else."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.config import load
from simulator.errors import UserError
from simulator.measurements.run_words import facts_of, notes_on
from simulator.measurements.training_rows import scenario_of

from ..made_up_runs import row

EXPERTS = {"num_experts": 8, "moe_topk": 2, "moe_ffn_hidden": 1024}
NO_EXPERTS = dict.fromkeys(EXPERTS, "0.0")


def part(name: str, **cells: object) -> Any:
    return scenario_of(row(**cells))[0][name]


def reason(**cells: object) -> str:
    with pytest.raises(UserError) as refused:
        scenario_of(row(**cells))
    return refused.value.faults[0].message


@pytest.mark.parametrize("column", ["sp", "gated_mlp"])
@pytest.mark.parametrize(
    ("cell", "means"), [("1", True), ("1.0", True), ("True", True), ("yes", True), ("0", False), ("false", False), ("No", False)]
)
def test_flags_are_read_in_words_too(column: str, cell: str, *, means: bool) -> None:
    section, field = {"sp": ("plan", "sequence_parallel"), "gated_mlp": ("model", "gated_mlp")}[column]
    assert part(section, **{column: cell})[field] is means


@pytest.mark.parametrize("column", ["sp", "gated_mlp"])
def test_a_flag_that_is_neither_yes_nor_no_is_not_taken_for_no(column: str) -> None:
    assert reason(**{column: "swiglu"}) == f"{column}: 'swiglu' is neither 0 nor 1"


@pytest.mark.parametrize("date", ["2025-03", " 2025-3", "2025/03", "March 2025", "2025.0", "2025-03-15"])
def test_dates_are_read_in_any_form(date: str) -> None:
    scenario, notes = scenario_of(row(framework_date=date, dtype="", sp=""))
    assert (scenario["job"]["dtype"], scenario["plan"]["sequence_parallel"], notes) == ("bf16", True, [])


def test_software_without_a_date_is_as_old_as_its_name_or_as_what_is_taken_for_it() -> None:
    assert part("job", framework_date="", dtype="")["dtype"] == "bf16"
    assert part("plan", framework_date="", sp="")["sequence_parallel"] is True
    old = row(framework_date="", framework_profile="megatron-lm-2021", dtype="", sp="")
    assert scenario_of(old)[0]["job"]["dtype"] == "fp16"
    assert part("job", framework_date="", framework_profile="none", dtype="")["dtype"] == "bf16"
    _, notes = scenario_of(row(framework_date="unknown"))
    assert notes == ["framework_date: 'unknown' is no date such as 2024-06, and has no effect"]


def test_software_without_a_profile_is_that_of_the_column_framework() -> None:
    scenario, notes = scenario_of(row(framework_profile="", framework="NeMo / Megatron-Core"))
    assert scenario["framework"]["name"] == "nemo-2025"
    assert notes[0].startswith("no framework 'NeMo / Megatron-Core' of 2025-03: nemo-2025 is taken")


@pytest.mark.parametrize(
    ("cells", "schedule"),
    [
        ({"schedule": "", "vpp": 2}, {"schedule": "interleaved", "chunks": 2}),
        ({"schedule": "1F1B", "vpp": "4.0"}, {"schedule": "interleaved", "chunks": 4}),
        ({"schedule": "1F1B", "vpp": "1.0"}, {}),
        ({"schedule": "1f1b", "vpp": "0"}, {}),
        ({"schedule": "Interleaved 1F1B", "vpp": ""}, {"schedule": "interleaved", "chunks": 2}),
        ({"schedule": "Interleaved1F1B", "vpp": 4}, {"schedule": "interleaved", "chunks": 4}),
        ({"schedule": "GPipe"}, {"schedule": "gpipe"}),
        ({"schedule": "zb_h1"}, {"schedule": "zb-h1"}),
        ({"schedule": "ZBVZeroBubble"}, {"schedule": "zb-v", "chunks": 2}),
        ({"schedule": "DualPipeV"}, {"schedule": "dualpipe-v", "chunks": 2}),
        ({"schedule": "none", "pp": 1, "vpp": 2}, {}),
    ],
)
def test_words_for_schedules(cells: dict[str, object], schedule: dict[str, object]) -> None:
    plan = part("plan", **cells)
    assert {key: plan[key] for key in ("schedule", "chunks") if key in plan} == schedule


@pytest.mark.parametrize(
    ("cells", "layout"),
    [
        ({"tp": "", "pp": "", "dp": 16}, (1, 1)),
        ({"tp": "", "pp": "", "dp": 8, "cp": 2}, (1, 1)),
        ({"tp": "", "pp": 2, "dp": 2}, (4, 2)),
        ({"tp": 4, "pp": "", "dp": 4}, (4, 1)),
    ],
)
def test_a_blank_degree_is_what_the_others_leave_of_the_gpus(cells: dict[str, object], layout: tuple[int, int]) -> None:
    plan = part("plan", **cells)
    assert (plan["tp"], plan["pp"]) == layout


@pytest.mark.parametrize("cells", [{"tp": "", "pp": "", "dp": 4}, {"tp": "", "pp": 2, "dp": 5}, {"tp": "", "dp": 64}])
def test_a_layout_that_may_be_several_is_refused(cells: dict[str, object]) -> None:
    assert reason(**cells).endswith(": blank, and 16.0 GPUs do not determine it")


def test_stages_without_a_pipeline_are_noted() -> None:
    assert scenario_of(row(schedule="", pp=1, vpp=2))[1] == ["vpp: no pipeline, it has no effect"]
    assert reason(vpp="many") == "vpp: 'many' is not a count"
    assert reason(vpp="1.5") == "vpp: '1.5' is not a count"


@pytest.mark.parametrize(
    ("words", "means"),
    [
        ("ZeRO-1", "zero1"), ("zero_2", "zero2"), ("Distributed Optimizer", "zero1"), ("FULL_SHARD", "fsdp"), ("FSDP2", "fsdp"),
        ("HYBRID_SHARD", "hsdp"), ("SHARD_GRAD_OP", "zero2"), ("DDP", "none"),
    ],
)  # fmt: skip
def test_words_for_sharding(words: str, means: str) -> None:
    assert part("plan", sharding=words)["sharding"] == means


@pytest.mark.parametrize(
    ("cells", "means"),
    [
        ({"recompute": "No"}, "none"),
        ({"recompute": "false"}, "none"),
        ({"recompute": "on"}, "full"),
        ({"recompute": "selective_layer"}, {"scope": "full", "every": 2}),
        ({"recompute": "", "facts": "activation_checkpoint=full"}, "full"),
        ({"recompute": "none", "facts": "activation_checkpoint=full"}, "none"),
    ],
)
def test_words_for_recomputation(cells: dict[str, object], means: object) -> None:
    assert part("plan", **cells)["recompute"] == means


@pytest.mark.parametrize(
    ("words", "means"),
    [
        ("bfloat16", "bf16"), ("amp_bf16", "bf16"), ("BF16-mixed", "bf16"), ("half", "fp16"), ("float8_e4m3fn", "fp8"),
        ("FP8-Hybrid", "fp8"), ("fp8_blockwise", "fp8_block"), ("FP8-MX", "mxfp8"), ("NVFP4", "nvfp4"),
    ],
)  # fmt: skip
def test_words_for_number_formats(words: str, means: str) -> None:
    assert part("job", dtype=words, gpu_model="b200")["dtype"] == means


def test_a_label_is_a_format_where_no_column_is() -> None:
    assert part("job", dtype="", facts="precision_label=MXFP8")["dtype"] == "mxfp8"
    assert part("framework", dtype="fp8-cs")["low_precision"] == {"scaling": "current"}


@pytest.mark.parametrize(
    ("cells", "start"),
    [
        ({"schedule": "virtual"}, "schedule: 'virtual' is not known; "),
        ({"sharding": "1"}, "sharding: '1' is not known; known: fsdp, hsdp, none"),
        ({"recompute": "block"}, "recompute: 'block' is not known; known: full, none, selective"),
        ({"dtype": "int8"}, "dtype: 'int8' is not known; known: bf16, fp16"),
        ({"dtype": "bf16/fp8"}, "dtype: 'bf16/fp8' is not known; did you mean 'bf16'?"),
    ],
)
def test_a_word_that_may_mean_several_things_is_refused(cells: dict[str, object], start: str) -> None:
    assert reason(**cells).startswith(start)


@pytest.mark.parametrize(
    ("facts", "section", "field", "value"),
    [
        ("Compile=True", "framework", "compile", True),
        ("compile=off", "framework", "compile", False),
        ("attention=FA2", "framework", "attention", "flash_attention"),
        ("launch_blocking=1", "framework", "launch_blocking", True),
        ("optimizer_offload=off", "plan", "offload", None),
        ("ep_overlap=false", "plan", "overlap", None),
        ("parallel_block=False", "model", "parallel_mlp", None),
        ("optimizer=Muon", "job", "optimizer", "muon"),
        ("optimizer=AdamW", "job", "optimizer", None),
        ("async_tp=no", "plan", "overlap", None),
    ],
)
def test_facts_are_read_in_any_spelling(facts: str, section: str, field: str, value: object) -> None:
    assert part(section, facts=facts).get(field) == value


@pytest.mark.parametrize(
    "fact", ["attention=sdpa", "routing=random", "compile=max", "optimizer=lion", "overlap=some", "mp_mode=odd"]
)
def test_a_fact_with_a_value_that_nobody_knows_is_noted(fact: str) -> None:
    assert list(notes_on(facts_of({"facts": fact}))) == [f"{fact}: not modelled, it has no effect"]
    assert scenario_of(row(facts=fact))[0] == scenario_of(row())[0]


def test_a_dense_model_may_have_no_experts_in_figures() -> None:
    assert scenario_of(row(**NO_EXPERTS)) == scenario_of(row())
    assert reason(num_experts=8, moe_topk=0) == "moe_topk: '0' is not a count"


def test_a_model_with_experts_of_which_nothing_is_known_is_not_taken_for_a_dense_one() -> None:
    assert reason(arch="moe").startswith("num_experts: blank, although the column arch says moe")
    assert part("model", arch="moe", **EXPERTS)["experts"] == 8


def test_blank_sizes_are_those_of_a_model_of_the_catalog_with_this_name() -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "gated_mlp", "vocab", *EXPERTS), "")
    scenario, notes = scenario_of(row(**blank, model_name="Llama-3-70B", pp=1))
    assert (scenario["model"], notes) == ({"name": "llama3-70b"}, ["layers, hidden, heads: blank, as of llama3-70b"])
    assert load.scenario(scenario).model.layers == 80  # type: ignore[union-attr]
    mixture = scenario_of(row(**blank, model_name="Mixtral 8x7B", pp=1))[0]
    assert (mixture["model"]["name"], mixture["framework"]["name"]) == ("mixtral-8x7b", "megatron-core-moe-2025")
    assert "name" not in part("model", **{**blank, "layers": 8, "arch": "dense"}, model_name="Mixtral 8x7B")
    assert "name" not in part("model", **{**blank, "layers": 8, "heads": 7}, model_name="Llama-3-70B")
    assert reason(**blank, model_name="nobody's").startswith("layers: blank, and the catalog has no such model")


@pytest.mark.parametrize(("width", "each", "number"), [("2048", "1024", 2), ("1000", "1536", None), ("1536", "", None)])
def test_shared_experts_are_a_whole_number_of_experts(width: str, each: str, number: int | None) -> None:
    cells = {**EXPERTS, "moe_ffn_hidden": each, "facts": f"shared_expert_hidden={width}"}
    if number:
        assert part("model", **cells)["shared_experts"] == number
    else:
        assert reason(**cells).startswith(f"facts: shared_expert_hidden={width}: shared experts are as wide as others")
