"""Regenerates the comparison of schedules: four under one another, and Zero Bubble's printed bubble rates beside ours."""

from __future__ import annotations

from pathlib import Path

from simulator.config import catalog
from simulator.figures.drawing import save
from simulator.figures.gantt import gantt
from simulator.files import atomic
from simulator.program.layout import as_taken, lay_out
from simulator.program.slot import Durations, Shape
from simulator.study.schedule import evaluate

HERE = Path(__file__).parent
DRAWN = ("1f1b", "zb-v", "v-half", "dualpipe")
PROFILES = {
    "1.5B": (8, 24, (18.522, 18.086, 9.337, 0.601)),
    "6.2B": (8, 24, (29.718, 29.444, 19.927, 0.527)),
    "14.6B": (16, 48, (11.347, 11.248, 8.132, 0.377)),
    "28.3B": (32, 96, (10.419, 10.207, 7.715, 0.408)),
}
"""Qi et al., arXiv 2401.10241, Table 9: ranks, microbatches, and ms of F, I, W and a crossing."""
PRINTED = {
    "1.5B": (0.2431, 0.1055, 0.1585, 0.1083, 0.1585, 0.0433),
    "6.2B": (0.2347, 0.0808, 0.1323, 0.0698, 0.1323, 0.0029),
    "14.6B": (0.2552, 0.1104, 0.1397, 0.0672, 0.1397, 0.0066),
    "28.3B": (0.2646, 0.1493, 0.1421, 0.0641, 0.1421, 0.0038),
}
"""The same, Table 5, in the order of `COLUMNS`."""
COLUMNS = (
    ("1F1B", "1f1b", 1.0),
    ("1F1B-I", "interleaved", 1.0),
    ("ZB-H1", "zb-h1", 1.0),
    ("ZB-H2", "zb-h2", 1.0),
    ("ZB-1p", "zb-auto", 1.0),
    ("ZB-2p", "zb-auto", 2.0),
)
CHUNKS = {"1.5B": 3, "6.2B": 4, "14.6B": 3, "28.3B": 2}
"""Of 1F1B-I, which the paper does not print: those that give every stage one layer, embedding and head counted as one each."""


def pictures() -> None:
    drawn = {}
    for name in DRAWN:
        schedule = catalog.module("schedules", name)
        shape = as_taken(schedule, Shape(4, 8))
        share = 1 / shape.chunks
        drawn[name] = evaluate(lay_out(schedule, Shape(4, 8, shape.chunks, durations=Durations(share, share, share))))
    save(gantt(drawn), HERE / "compare.png")


def bubble_rate(model: str, name: str, limit: float) -> float:
    """Idle part of the longest span of a rank."""
    ranks, microbatches, (forward, input_gradient, weight_gradient, comm) = PROFILES[model]
    chunks = CHUNKS[model] if name == "interleaved" else 1
    durations = Durations(forward / chunks, input_gradient / chunks, weight_gradient / chunks, comm=comm)
    shape = Shape(ranks, microbatches, chunks, memory_limit=limit, durations=durations)
    span = max(evaluate(lay_out(catalog.module("schedules", name), shape)).span_per_rank)
    return 1 - microbatches * (forward + input_gradient + weight_gradient) / span


def _chunks_in_words() -> str:
    return ", ".join(f"{n} chunks for {model}" for model, n in CHUNKS.items())


def table() -> str:
    """Ours over printed, model by model."""
    lines = [
        "# Zero Bubble, Table 5: bubble rates from the profile of Table 9",
        "",
        "Ours / printed (Qi et al., arXiv 2401.10241). The rate is 1 - m (F + I + W) / span; every crossing between ranks takes",
        f"the profiled time. 1F1B-I with {_chunks_in_words()} (assumed: not printed).",
        "",
        "| model | p | m | " + " | ".join(title for title, _, _ in COLUMNS) + " |",
        "|---" * (3 + len(COLUMNS)) + "|",
    ]
    for model, (ranks, microbatches, _) in PROFILES.items():
        pairs = zip(COLUMNS, PRINTED[model], strict=True)
        cells = [f"{bubble_rate(model, name, limit):.4f} / {printed:.4f}" for (_, name, limit), printed in pairs]
        lines.append(f"| {model} | {ranks} | {microbatches} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    pictures()
    with atomic(HERE / "zero_bubble.md") as partial:
        partial.write_text(table(), encoding="utf-8")
