"""Memory: closed forms of activations in flight, shares of state, and the verdict."""

from __future__ import annotations

import pytest

import simulator as sim
from simulator.errors import Infeasible
from simulator.study.runs.run import Run

from .house import scenario, small_cluster, small_model


def run_of(schedule: str, microbatches: int, *, pp: int = 4, chunks: int = 1, **plan: object) -> Run:
    job = sim.Job(128, microbatches, 1)
    chosen = sim.Plan(pp=pp, schedule=schedule, chunks=chunks, **plan)  # type: ignore[arg-type]
    return scenario(small_model(layers=8), small_cluster(1), chosen, job).simulate()


def per_microbatch(run: Run, stage: int) -> int:
    """Activations of one microbatch on a stage: those of a run that never holds more than one."""
    return run_of("naive", 1, pp=run.scenario.plan.pp).memory[stage].activations_bytes


@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
def test_activations_in_flight(microbatches: int) -> None:
    for schedule, held in (
        ("gpipe", lambda r: microbatches),
        ("1f1b", lambda r: min(4 - r, microbatches)),
        ("naive", lambda r: 1),
    ):
        run = run_of(schedule, microbatches)
        for rank in range(4):
            assert run.memory[rank].activations_bytes == held(rank) * per_microbatch(run, rank)


def test_the_curve_peaks_at_the_peak_and_ends_where_it_began() -> None:
    run = run_of("interleaved", 8, chunks=2)
    for rank in run.memory:
        seconds, held = run.memory_over_time(rank.rank)
        assert held.max() == rank.total_bytes
        assert held[0] == held[-1] == rank.static_bytes
        assert (seconds[1:] >= seconds[:-1]).all()
        assert seconds[-1] <= run.metrics.step_time_s


def test_state_is_counted_per_parameter_and_sharded_by_zero1() -> None:
    model = small_model(layers=8)
    whole = scenario(model, small_cluster(1), sim.Plan(dp=4)).simulate().memory[0]
    shared = scenario(model, small_cluster(1), sim.Plan(dp=4, sharding="zero1")).simulate().memory[0]
    assert whole.parameters_bytes == 2 * model.parameters
    assert whole.gradients_bytes == 4 * model.parameters
    assert whole.optimizer_bytes == 12 * model.parameters
    assert shared.optimizer_bytes == pytest.approx(whole.optimizer_bytes / 4, abs=12)
    single = scenario(model, small_cluster(1), sim.Plan(dp=4), sim.Job(256, 16, 1, "fp32")).simulate().memory[0]
    assert (single.parameters_bytes, single.optimizer_bytes) == (4 * model.parameters, 8 * model.parameters)


def test_stages_hold_their_share_and_tied_tables_stand_on_both_ends() -> None:
    for tied in (False, True):
        model = small_model(layers=8, tied_embeddings=tied)
        run = scenario(model, small_cluster(1), sim.Plan(pp=4), sim.Job(128, 4, 1)).simulate()
        total = sum(rank.parameters_bytes for rank in run.memory) // 2
        copies = model.vocab * model.hidden if tied else 0
        assert total == model.parameters + copies
    alone = scenario(small_model(layers=8, tied_embeddings=True), small_cluster(1), sim.Plan(dp=4)).simulate()
    assert alone.memory[0].parameters_bytes == 2 * alone.scenario.model.parameters


def test_tensor_and_sequence_parallelism_divide_what_they_divide() -> None:
    def held(**plan: object) -> int:
        chosen = sim.Plan(**plan)  # type: ignore[arg-type]
        return scenario(small_model(), small_cluster(1), chosen, sim.Job(128, 4, 1)).simulate().memory[0].activations_bytes

    alone, tensor, sequence = held(dp=4), held(tp=4, sequence_parallel=False), held(tp=4)
    assert sequence == pytest.approx(alone / 4, rel=1e-3)
    assert alone / 4 < tensor < alone


def test_what_does_not_fit_is_refused_with_how_much() -> None:
    tiny = sim.cluster({
        "gpu": {"name": "l40s", "memory": "0.2 GiB"}, "gpus_per_node": 4, "nodes": 1, "intra_node": "NVSwitch 10 GB/s",
    })  # fmt: skip
    of = scenario(small_model(), tiny, sim.Plan(dp=4))
    with pytest.raises(Infeasible, match="GiB more than") as caught:
        of.simulate()
    run = of.simulate(allow_oom=True)
    assert not run.fits
    assert caught.value.over_bytes == run.peak_memory_bytes - tiny.gpu.memory_bytes
