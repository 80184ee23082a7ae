"""Routing from a file, and experts on the ranks that a list names."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import token_shares
from simulator.errors import UserError
from simulator.kernels import Gemm, Part
from simulator.lowering.routing import apportioned, drawn
from simulator.program.operations import Compute
from simulator.simulation.simulate import program_of

from ..small_scenarios import both, bound_twice
from .test_experts import CHOSEN, EXPERTS, HIDDEN, SEQ, exchanges, of

SHARES = (8, 7, 6, 5, 4, 3, 2, 1)
PAIRS = ((0, 4), (1, 5), (2, 6), (3, 7))
BAD = {
    "expert,tokens\n0,1\n0,2\nx,3\n1,lots\n2\n": (
        ":3: expert 0 occurs twice",
        ":4: 'x' is no expert",
        ":5: 'lots'",
        ":6: 1 cells",
    ),
    "layers,expert,tokens\n0,0,1\n": (":1: the columns are", "before them layer, if layers differ"),
    "layer,expert,tokens\n0,0,1\n0,0,1\nx,0,1\n3,1\n": (":3: expert 0 occurs twice", ":4: 'x' is no layer", "three: layer"),
    "layer,expert,tokens\n3,0,1\n3,1,2\n4,1,2\n": ("expert 0 has no row in layer 4",),
    "expert,tokens\n0,1\n2,3\n": ("expert 1 has no row",),
    "expert,tokens\n0,-1\n": ("-1.0 is not a share of expert 0",),
    "expert,tokens\n0,inf\n": ("inf is not a share of expert 0",),
    "expert,tokens\n0,0\n": ("no expert receives a token",),
    "": (":1: the columns are missing",),
}


def rows_of(moe: sim.Moe, ep: int = 4) -> Any:
    chosen = of({"ep": ep, "moe": moe})
    return drawn(chosen.model, chosen.plan, SEQ, 0)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any), st.integers(0, 5000))
def test_t17_17_rows_are_the_shares_of_the_copies_rounded(shares: list[int], copies: int) -> None:
    rows = apportioned(shares, copies)
    assert rows.sum() == copies
    for share, found in zip(shares, rows.tolist(), strict=True):
        assert abs(Fraction(share * copies, sum(shares)) - found) < 1


def test_t17_17_every_rank_sends_the_same_part_of_its_rows() -> None:
    """36 shares of 512 copies, on four ranks of two experts each."""
    rows = rows_of(sim.Moe(routing=SHARES))
    assert (rows == rows[0]).all()
    assert rows[0].tolist() == [214, 156, 100, 42]
    assert all(abs(512 * pair / 36 - own) < 2 for pair, own in zip((15, 11, 7, 3), rows[0].tolist(), strict=True))
    chosen = of({"ep": 4, "moe": sim.Moe(routing=SHARES)})
    program = program_of(chosen)
    gemms = {
        tuple(kernel.m for kernel in op.kernels() if isinstance(kernel, Gemm))
        for body in program.bodies.values()
        for op in body.ops
        if isinstance(op, Compute) and op.expert and op.part is Part.FORWARD and isinstance(op.kernel, Gemm)
    }
    assert program.variants == ((0,), (1,), (2,), (3,))
    assert gemms == {tuple(-(-4 * own // 2) for own in rows[0].tolist())}
    assert set(exchanges(chosen, "alltoall", Part.FORWARD)) == {SEQ * CHOSEN * HIDDEN * 2}


def test_t17_17_an_expert_may_have_every_token_once() -> None:
    """7 of 14 shares are one row for each token, which two ranks of four send to expert 0 and to one of the others."""
    assert rows_of(sim.Moe(routing=(7,) + (1,) * 7), ep=8)[0].tolist()[0] == SEQ


def test_t17_17_equal_shares_take_as_long_as_balanced_routing() -> None:
    even, balanced = of({"ep": 4, "moe": sim.Moe(routing=(1,) * EXPERTS)}), of({"ep": 4})
    assert not program_of(even).variants
    assert even.simulate().metrics.step_time_s == pytest.approx(balanced.simulate().metrics.step_time_s, rel=1e-6)


@pytest.mark.parametrize("name", ["shares.csv", "shares.json"])
def test_t17_17_a_file_stands_beside_the_scenario_that_names_it(name: str, tmp_path: Path) -> None:
    table = "expert,tokens\n" + "".join(f"{expert}, {SHARES[expert]}\n" for expert in reversed(range(EXPERTS)))
    (tmp_path / name).write_text(table if name.endswith(".csv") else json.dumps(SHARES))
    chosen = of({"ep": 4, "moe": sim.Moe(routing=SHARES)})
    (tmp_path / "scenario.yaml").write_text(
        "model: {layers: 2, hidden: 512, heads: 8, vocab: 512, experts: 8, experts_per_token: 2}\n"
        f"cluster: {{name: dgx-h100, nodes: 1}}\nplan: {{ep: 4, moe: {{routing: {name}}}}}\n"
        "job: {sequence_length: 256, global_batch: 16}\n"
    )
    loaded = sim.load(tmp_path / "scenario.yaml")
    typed = replace(loaded, plan=chosen.plan)
    assert loaded.simulate().metrics == typed.simulate().metrics
    assert loaded.as_dict()["plan"]["moe"]["routing"] == str(tmp_path / name)


@pytest.mark.parametrize("text", BAD)
def test_t17_17_wrong_files_are_refused_line_by_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "shares.csv"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        token_shares.read(file)
    said = str(caught.value)
    for word in BAD[text]:
        assert word in said


@pytest.mark.parametrize("text", ["{}", "[]", "[1, true]", '[1, "2"]', "[1, -1]", "[1", "7", "[NaN]"])
def test_wrong_lists_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "shares.json"
    file.write_text(text)
    with pytest.raises(UserError, match=r"shares\.json"):
        token_shares.read(file)


def test_t17_18_a_list_says_which_experts_a_rank_holds() -> None:
    """Experts 0 and 4 on rank 0 of four, which is what `cyclic` does; the most and the least popular together are even."""
    listed, cyclic = (rows_of(sim.Moe(routing=SHARES, placement=placement)) for placement in (PAIRS, "cyclic"))
    assert listed.tolist() == cyclic.tolist()
    single = rows_of(sim.Moe(routing=SHARES), ep=8)
    assert listed[0].tolist() == [single[0, a] + single[0, b] for a, b in PAIRS]
    mirrored = rows_of(sim.Moe(routing=SHARES, placement=tuple((i, 7 - i) for i in range(4))))
    assert mirrored[0].tolist() == [128] * 4


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(EXPERTS)), st.sampled_from([2, 4, 8]))
def test_t17_18_a_placement_moves_rows_and_loses_none(order: list[int], ep: int) -> None:
    placement = tuple(tuple(order[rank::ep]) for rank in range(ep))
    moved, usual = (rows_of(moe, ep) for moe in (sim.Moe("drawn", placement=placement), sim.Moe("drawn")))
    assert (moved.sum(axis=1) == usual.sum(axis=1)).all()
    of_expert = rows_of(sim.Moe("drawn"), ep=8)[0] if ep == 8 else None
    if of_expert is not None:
        assert moved[0].tolist() == [of_expert[own[0]] for own in placement]


GRID: dict[str, dict[str, Any]] = {
    "given": {"ep": 4, "sharding": "zero1", "moe": sim.Moe(routing=SHARES, placement=PAIRS)},
    "given, sharded": {"pp": 2, "tp": 2, "etp": 1, "ep": 4, "sharding": "fsdp", "moe": sim.Moe(routing=SHARES)},
    "listed, drawn": {"pp": 2, "ep": 4, "schedule": "zb-h1", "moe": sim.Moe("drawn", placement=PAIRS)},
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", GRID)
def test_folded_equals_unfolded_for_given_routing(name: str) -> None:
    both(*bound_twice(of(GRID[name]))).assert_equal()


@pytest.mark.parametrize(
    "moe, fault",
    [
        ({"routing": (1, 2)}, "2 shares for the 8 experts"),
        ({"routing": SHARES, "seed": 1}, "given routing has no use for it"),
        ({"placement": PAIRS}, "balanced routing has no use for it"),
        ({"routing": SHARES, "placement": PAIRS[:3]}, "3 ranks with 2 experts each"),
        ({"routing": SHARES, "placement": (*PAIRS[:3], (3, 3))}, "no rank holds expert 7 of 8"),
        ({"routing": SHARES, "placement": ((0, 1, 2), (3,), (4, 5), (6, 7))}, "4 ranks with 1 or 2 or 3 experts each"),
        ({"routing": "drwn"}, "'drwn' is not a routing"),
        ({"routing": (1, "x")}, "'x' is not a share of expert 1"),
        ({"routing": "none.csv"}, "no file 'none.csv'"),
    ],
)
def test_what_given_routing_cannot_do_is_refused_with_a_hint(moe: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault) as caught:
        of({"ep": 4, "moe": sim.Moe(**moe)})
    assert caught.value.hint
