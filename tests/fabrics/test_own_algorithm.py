"""Collective algorithms of users: timed by their own rounds, wherever their code is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import simulator as sim
from simulator.config import catalog
from simulator.errors import UserError
from simulator.study.collective import CollectiveTable

from ..commandline import trainsim

SIZES = [2**10, 2**20, 2**28]
STAR = '''
"""All ranks send to the first, which sends the sum back."""

from fractions import Fraction

import numpy as np

from simulator.collectives import Edges, Round

KINDS = ("all_reduce",)


def rounds(kind, nodes):
    first, others = np.zeros(len(nodes) - 1, dtype=np.int64), np.arange(1, len(nodes))
    there, back = Round(Edges.of(others, first), Fraction(1)), Round(Edges.of(first, others), Fraction(1))
    return (there, back) if len(nodes) > 1 else ()
'''


def on_two_nodes(algorithm: object) -> CollectiveTable:
    return sim.collective("all_reduce", sim.cluster("dgx-h100", nodes=2), SIZES, algorithm=algorithm)


def test_an_algorithm_in_a_file_is_timed(tmp_path: Path) -> None:
    file = tmp_path / "star.py"
    file.write_text(STAR)
    asked = ("collective", "all_reduce", "--cluster", "dgx-h100", "--nodes", 2, "-b", "1M", "-e", "256M", "-f", 256)
    said, record = (trainsim(*asked, "--algorithm", file, *more) for more in ((), ("--json",)))
    assert "star.py" in said.out
    assert [row["provenance"] for row in record.record["rows"]] == ["theoretical"] * 2
    assert record.record["rows"][0]["algorithm"] == str(file)
    large = on_two_nodes(str(file)).rows[-1]
    assert large.time_s > 30 * SIZES[-1] / 450e9, "the first rank receives 15 payloads and sends 15"
    assert large.time_s > on_two_nodes("ring").rows[-1].time_s


def test_the_rounds_of_a_copy_of_an_algorithm_take_as_long_as_by_its_name() -> None:
    """`bruck` has no measured curve, so its times are those of its rounds."""
    bruck = catalog.module("collectives", "bruck")
    own = SimpleNamespace(KINDS=bruck.KINDS, rounds=bruck.rounds, takes=bruck.takes) if hasattr(bruck, "takes") else bruck
    cluster = sim.cluster("dgx-h100", nodes=2)
    by_name, by_code = (sim.collective("all_gather", cluster, SIZES, algorithm=one) for one in ("bruck", own))
    assert [row.time_s for row in by_name.rows] == [row.time_s for row in by_code.rows]


def test_an_algorithm_called_like_one_that_is_measured_has_its_own_times() -> None:
    """Twice the bytes in every round of a ring take longer than the measured ring."""
    ring = catalog.module("collectives", "ring")
    twice = SimpleNamespace(
        KINDS=ring.KINDS,
        rounds=lambda kind, nodes: ring.rounds(kind, nodes) * 2,
        __name__="ring",
    )
    own, known = on_two_nodes(twice), on_two_nodes("ring")
    assert {row.algorithm for row in own.rows} == {"ring (own)"}
    assert own.rows[-1].time_s > 1.5 * known.rows[-1].time_s


def test_what_is_no_algorithm_is_refused(tmp_path: Path) -> None:
    for wrong in (5, None, SimpleNamespace(KINDS=("all_reduce",))):
        with pytest.raises(UserError, match="algorithm"):
            on_two_nodes(wrong)
    (tmp_path / "none.py").write_text("KINDS = ()\n")
    with pytest.raises(UserError, match="has no rounds"):
        on_two_nodes(str(tmp_path / "none.py"))
    (tmp_path / "other.py").write_text(STAR.replace("all_reduce", "broadcast"))
    with pytest.raises(UserError, match="does no all_reduce"):
        on_two_nodes(str(tmp_path / "other.py"))
    (tmp_path / "broken.py").write_text(STAR.replace("len(nodes) - 1", "nodes.missing"))
    with pytest.raises(UserError, match="rounds of"):
        on_two_nodes(str(tmp_path / "broken.py"))
