"""Norms whose input is cast to fp32, and operators that a framework repeats in any case."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim
from simulator.config.derived import with_usual_plan
from simulator.errors import UserError
from simulator.kernels import Rowwise
from simulator.program.operations import Compute
from simulator.simulation.memory_check import memory_of
from simulator.simulation.runnable import RunnableScenario
from simulator.simulation.simulate import layout_of, program_of

from ..small_scenarios import scenario, small_cluster, small_model

NORMS = ["attention_norm", "mlp_norm"]
LAYERS, TOKENS, HIDDEN = 4, 256, 512


def of(recompute: Any = "none", always: Any = (), dtype: Any = "bf16", **software: Any) -> RunnableScenario:
    chosen = sim.framework({"plan": {"always": list(always)}, **software})
    job = sim.Job(sequence_length=TOKENS, global_batch=1, dtype=dtype)
    plan = sim.Plan(recompute=recompute)
    return with_usual_plan(scenario(small_model(LAYERS), small_cluster(1, gpus_per_node=1), plan, job, framework=chosen))


def kernels(described: RunnableScenario) -> list[Compute]:
    """The kernels on rows of the first pass forward and back."""
    program = program_of(described)
    ops = (op for step in program.orders[0] if step.microbatch == 0 for op in program.bodies[step.body].ops)
    return [op for op in ops if isinstance(op, Compute) and isinstance(op.kernel, Rowwise)]


def bytes_of(described: RunnableScenario, layer: int = 1) -> dict[str, float]:
    found = {op.name: op.kernel.bytes_per_element for op in kernels(described) if op.layer == layer}  # type: ignore[union-attr]
    return {name.removeprefix(f"{layer}."): moved for name, moved in found.items() if "norm" in name}


def peak_bytes(described: RunnableScenario) -> int:
    return memory_of(described, layout_of(described))[0].total_bytes


def test_t9_16_a_cast_precedes_every_norm_and_follows_its_backward_pass() -> None:
    assert bytes_of(of()) == {"attention_norm": 4, "mlp_norm": 4, "attention_norm.dgrad": 6, "mlp_norm.dgrad": 6}
    each = {"{} cast": 6, "{}": 6, "{}.dgrad": 10, "{} cast.dgrad": 6}
    assert bytes_of(of(fp32_norms=True)) == {name.format(norm): moved for norm in NORMS for name, moved in each.items()}
    names = [op.name for op in kernels(of(fp32_norms=True))]
    assert names.index("1.attention_norm cast") < names.index("1.attention_norm")
    assert names.index("1.attention_norm.dgrad") < names.index("1.attention_norm cast.dgrad")
    assert "final_norm cast" in names


def test_t9_16_nothing_in_fp32_is_cast() -> None:
    assert bytes_of(of(fp32_norms=True, dtype="fp32")) == bytes_of(of(dtype="fp32"))


def test_t9_16_a_norm_keeps_its_input_in_fp32() -> None:
    more = peak_bytes(of(fp32_norms=True)) - peak_bytes(of())
    assert more == pytest.approx((2 * LAYERS + 1) * TOKENS * HIDDEN * 2, rel=0.1)


def test_t9_17_some_operators_are_repeated_in_any_case() -> None:
    always, listed = of(always=NORMS), of(sim.Recompute(ops=tuple(NORMS)))
    assert [op.name for op in kernels(always)] == [op.name for op in kernels(listed)]
    assert always.simulate().metrics == listed.simulate().metrics
    assert peak_bytes(always) == peak_bytes(listed) < peak_bytes(of())


@pytest.mark.parametrize("recompute", ["full", "selective", sim.Recompute(ops=("mlp_norm",))])
def test_t9_17_not_where_the_plan_recomputes(recompute: Any) -> None:
    assert [op.name for op in kernels(of(recompute, NORMS))] == [op.name for op in kernels(of(recompute))]


@pytest.mark.parametrize("job", [{"frozen_layers": 1}, {"lora": sim.Lora(rank=8)}])
def test_t9_17_not_where_parameters_do_not_learn(job: dict[str, Any]) -> None:
    chosen = sim.framework({"plan": {"always": NORMS}})
    batch = sim.Job(sequence_length=TOKENS, global_batch=1, **job)
    plan = sim.Plan(recompute="none")
    frozen = scenario(small_model(LAYERS), small_cluster(1, gpus_per_node=1), plan, batch, framework=chosen)
    assert not with_usual_plan(frozen).plan.recomputation.ops
    assert with_usual_plan(frozen).simulate().metrics.step_time_s > 0


@pytest.mark.parametrize("kind", ["one_norm", "two_norms"])
def test_t9_17_not_operators_that_keep_no_input(kind: str) -> None:
    chosen = sim.framework({"plan": {"always": NORMS}})
    job, plan = sim.Job(sequence_length=TOKENS, global_batch=1), sim.Plan(recompute="none")
    parallel = small_model(LAYERS, parallel_mlp=kind)
    described = scenario(parallel, small_cluster(1, gpus_per_node=1), plan, job, framework=chosen)
    assert with_usual_plan(described).plan.recomputation.ops == ("attention_norm",)
    assert with_usual_plan(described).simulate().metrics.step_time_s > 0


def test_t9_17_repeated_norms_cast_again_and_keep_16_bits() -> None:
    wide = of(always=NORMS, fp32_norms=True)
    repeated = [op.name for op in kernels(wide) if op.name.endswith(".again") and op.layer == 1]
    assert sorted(repeated) == sorted(f"1.{norm}{cast}.again" for norm in NORMS for cast in ("", " cast"))
    final = TOKENS * HIDDEN * 2
    assert peak_bytes(wide) - peak_bytes(of(always=NORMS)) == pytest.approx(final, rel=1)


@pytest.mark.parametrize("words", [{"compile": True}, {"fusion": {"norm": False}}, {"fusion": {"residual_norm": True}}])
def test_contradictions_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="fp32_norms"):
        sim.framework({"fp32_norms": True, **words})
