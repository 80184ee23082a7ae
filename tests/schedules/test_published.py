"""Zero Bubble's printed bubble rates from its printed profile: Table 9 in, Table 5 out, to four digits.

Qi et al., arXiv 2401.10241, Tables 5 and 9 with the p and m printed beside them. The rate is the idle part of the longest span
of a rank, 1 - m (T_F + T_B + T_W) / span, where T_B is the gradient of the input and every crossing between neighbours takes
T_comm.
"""

from __future__ import annotations

import pytest

from .bare import result

TABLE_9 = {
    "1.5B": (8, 24, (18.522, 18.086, 9.337, 0.601)),
    "6.2B": (8, 24, (29.718, 29.444, 19.927, 0.527)),
    "14.6B": (16, 48, (11.347, 11.248, 8.132, 0.377)),
    "28.3B": (32, 96, (10.419, 10.207, 7.715, 0.408)),
}
"""Model: p, the first m, and ms of T_F, T_B, T_W and T_comm profiled for it."""
TABLE_5 = {
    "1.5B": {"1f1b": 0.2431, "zb_h1": 0.1585, "zb_h2": 0.1083},
    "6.2B": {"1f1b": 0.2347, "zb_h1": 0.1323, "zb_h2": 0.0698},
    "14.6B": {"1f1b": 0.2552, "zb_h1": 0.1397, "zb_h2": 0.0672},
    "28.3B": {"1f1b": 0.2646, "zb_h1": 0.1421, "zb_h2": 0.0641},
}
"""Bubble rates at the first m of each model."""
INTERLEAVED = {"1.5B": (3, 0.1055), "6.2B": (4, 0.0808), "14.6B": (3, 0.1104), "28.3B": (2, 0.1493)}
"""1F1B-I: chunks per rank that give every stage one layer (counting embedding and head as one each), and the rate."""


def span_and_work(model: str, name: str, chunks: int = 1) -> tuple[float, float, float]:
    """The longest span, the work of a rank, and the crossing, in ms."""
    ranks, microbatches, (forward, input_gradient, weight_gradient, comm) = TABLE_9[model]
    got = result(
        name,
        ranks,
        microbatches,
        chunks,
        forward=forward / chunks,
        input_gradient=input_gradient / chunks,
        weight_gradient=weight_gradient / chunks,
        comm=comm,
    )
    return max(got.span_per_rank), microbatches * (forward + input_gradient + weight_gradient), comm


@pytest.mark.thinned(3)
@pytest.mark.parametrize("model", TABLE_9)
@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "zb_h2"])
def test_table_9_gives_table_5(model: str, name: str) -> None:
    span, work, _ = span_and_work(model, name)
    assert round(1 - work / span, 4) == TABLE_5[model][name]


@pytest.mark.parametrize("model", TABLE_9)
def test_interleaved_but_for_p_crossings(model: str) -> None:
    """The printed 1F1B-I is reached when P of our 2(PV - 1) crossings on the longest path cost nothing.

    That holds for all four models, so it looks like a convention of the authors' code. We do not share it, and our rate is up
    to 0.0036 higher.
    """
    chunks, rate = INTERLEAVED[model]
    span, work, comm = span_and_work(model, "interleaved", chunks)
    assert 0.0015 < 1 - work / span - rate < 0.0036
    assert 1 - work / (span - TABLE_9[model][0] * comm) == pytest.approx(rate, abs=0.0001)
