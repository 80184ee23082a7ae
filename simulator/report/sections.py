"""The figures and tables of a report, as HTML that needs no script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from ..advise.shown_parts import WATERFALL, IdleRow, idle_rows, path_sentences, waterfall_rows
from ..escape import html
from ..figures.bars import KINDS
from ..figures.memory_colours import COLOURS as MEMORY
from ..metrics.idle import BUBBLE, BUSY, OPTIMIZER, TimeByCause, imbalance
from ..program.holdings import Holding
from ..program.operations import HOST
from ..simulation.energy import Energy
from ..simulation.memory_check import fits_gpus, host_capacity_bytes
from ..simulation.run import Run, memory_record
from ..study.idle_causes import LAUNCHES, idle_time
from ..units import US_PER_S, show_bytes, show_count, show_digits, show_s
from .timeline_data import TimelineData, first_of_pipeline, rank_name

if TYPE_CHECKING:
    from ..advise.explanation import Explanation

MOST_ROWS = 12
"""Number of rows of a table beyond which the shortest are left out."""
LEAST = 1 / 2000
"""The smallest fraction of a step that is named."""
NAMES = {BUSY: "model kernels run", BUBBLE: "pipeline bubble", OPTIMIZER: "optimizer", HOST: "launch overhead"}
COLOURS = {BUSY: "#6f8fb3", BUBBLE: "#cfd5dd", OPTIMIZER: "#4d4d4d"}
LOSS, GAIN, WHOLE = "#c8781e", "#8d939c", "#31557f"
"""Colours of the time that a cause adds to a step, of a cause whose removal makes the rest longer, and of the remainder."""
OF_MEMORY = {
    "parameters": ("parameters", MEMORY[Holding.PARAMETERS]), "gradients": ("gradients", MEMORY[Holding.GRADIENTS]),
    "optimizer": ("optimizer", MEMORY[Holding.MOMENTS]), "activations": ("activations", MEMORY[Holding.ACTIVATIONS]),
    "working": ("working set", MEMORY[Holding.WORKSPACE]), "context": ("context", MEMORY[Holding.CONTEXT]),
    "nccl": ("NCCL", MEMORY[Holding.NCCL]), "fragmentation": ("fragmentation", MEMORY[Holding.FRAGMENTATION]),
}  # fmt: skip
"""The classes of memory that a bar shows: their names and colours."""


def facts(run: Run) -> str:
    """The most important figures."""
    m, have = run.metrics, run.scenario.cluster.gpu.memory_bytes
    low_s, high_s = run.step_time_interval_s
    fits = fits_gpus(run.scenario, run.memory)
    shown = [
        (show_s(m.step_time_s), f"a step; nine in ten between {show_s(low_s)} and {show_s(high_s)}", ""),
        (f"{m.mfu:.1%}", f"MFU, {m.model_tflop_per_s_per_gpu:.0f} TFLOP/s per GPU", ""),
        (f"{m.tokens_per_s_per_gpu:,.1f}", f"tokens/s per GPU, {m.tokens_per_s:,.0f} in all", ""),
        (f"{m.bubble_fraction:.1%}", "pipeline bubble", ""),
        (
            show_bytes(run.peak_memory_bytes),
            f"of {show_bytes(have)} on the fullest GPU{'' if fits else ': does not fit'}",
            "" if fits else " bad",
        ),
    ]
    if run.host_bytes:
        host_has = host_capacity_bytes(run.scenario)
        of, lacks = "" if host_has == inf else f"of {show_bytes(host_has)} ", run.host_bytes > host_has
        about = f"{of}of host memory on the fullest node{': does not fit' if lacks else ''}"
        shown.append((show_bytes(run.host_bytes), about, " bad" if lacks else ""))
    if isinstance(run.energy, Energy):
        shown.append((f"{run.energy.joules_per_token:.3g} J", f"per token, {run.energy.mean_w:,.0f} W per GPU", ""))
    if whole := run.whole_run:
        cost = "" if whole.cost is None else f", at a cost of {show_count(whole.cost)}"
        hours = f"for {show_count(whole.total_tokens)} tokens without failures: {show_count(whole.gpu_hours)} GPU-hours{cost}"
        shown.append((f"{whole.days:,.1f} days", hours, ""))
    boxes = (f'<div class="fact{bad}"><b>{html(figure)}</b><span>{html(about)}</span></div>' for figure, about, bad in shown)
    known = dict(run.summary)
    trust = [f"{name.capitalize()}: {known[name]}." for name in ("provenance", "calibration") if name in known]
    notes = "".join(_note(html(note)) for note in (*run.notes, " ".join(trust)))
    return f'<div class="facts">{"".join(boxes)}</div>\n{notes}'


def _named(cause: str) -> str:
    return NAMES.get(cause, cause if cause.startswith(imbalance("")) else f"exposed {cause}")


def _colour(cause: str) -> str:
    if cause in COLOURS:
        return COLOURS[cause]
    axis = cause.removeprefix(imbalance(""))
    colour = KINDS[axis].colours[0] if axis in KINDS else "#b08968"
    return colour if axis == cause else f"color-mix(in srgb, {colour} 45%, white)"


def time_by_cause(run: Run, timeline: TimelineData) -> str:
    """The time of a step by cause, for a mean rank and for the ranks of the timeline."""
    found, observed = run.time_by_cause, run.observation
    means = {cause: observed.mean_s(found.of(cause)) / observed.step_s for cause in found.causes}
    shown = [cause for cause, share in means.items() if share >= LEAST]
    rows = [_stack("mean of all ranks", ((_colour(c), means[c], f"{_named(c)} {means[c]:.1%}") for c in shown), " first")]
    for rank in timeline.ranks:
        which = int(run.engine_timeline.class_of[rank])
        rows.append(_stack(rank_name(run, rank), _shares(found, which, int(observed.window_ns[which]), shown)))
    legend = _legend({f"{_named(cause)} {means[cause]:.1%}": _colour(cause) for cause in shown})
    note = f"{timeline.left_out} are shown; the mean is of all." if timeline.left_out else ""
    return _section("Where the time goes", "".join(rows) + legend, html(note))


def _shares(found: TimeByCause, which: int, lasts_ns: int, shown: Sequence[str]) -> Iterator[tuple[str, float, str]]:
    for cause in shown:
        share = int(found.of(cause)[which]) / lasts_ns if lasts_ns else 0.0
        yield _colour(cause), share, f"{_named(cause)} {share:.1%}"


def _stack(name: str, parts: Iterable[tuple[str, float, str]], more: str = "") -> str:
    """A bar of coloured parts, each with its colour, its share of the whole, and its description."""
    drawn = "".join(
        f'<i style="width:{100 * share:.3f}%;background:{colour}" title="{html(text)}"></i>'
        for colour, share, text in parts
        if share
    )
    return f'<div class="stack{more}"><span title="{html(name)}">{html(name)}</span><div>{drawn}</div></div>'


def _legend(colours: Mapping[str, str]) -> str:
    """Names with their colours."""
    entries = (f'<span><i style="background:{colour}"></i>{html(name)}</span>' for name, colour in colours.items())
    return f'<div class="legend">{"".join(entries)}</div>'


def _section(title: str, content: str, note: str = "") -> str:
    """A part of the page; `note` is HTML below it."""
    return f"<section><h2>{html(title)}</h2>{content}{_note(note)}</section>\n"


def _note(text: str) -> str:
    return f'<p class="note">{text}</p>' if text else ""


def idle(run: Run, *, explained: bool = False) -> str:
    """The longest causes of time without kernels of the model, each with its place. They add up to the bars above, except for the
    optimizer, whose kernels run meanwhile: it is included only if the page has an explanation."""
    step_s = run.metrics.step_time_s
    found = idle_rows(idle_time(run), MOST_ROWS, LEAST * step_s, () if explained else (OPTIMIZER,))
    if not found:
        return ""
    rows = [[_waited(row), f"{row.seconds / step_s:.1%}", show_s(row.seconds)] for row in found]
    note = "Why the step is as long as it is, and what would make it shorter: <code>trainsim explain --report FILE</code>."
    what = "time without kernels of the model" if explained else "time without kernels of the model or the optimizer"
    head = [f"{what}, mean over ranks", "of the step", "each step"]
    table = _table(head, rows, right=(1, 2), parts=[number for number, row in enumerate(found) if row.part])
    return _section("What ranks wait for", table, "" if explained else note)


def _waited(row: IdleRow) -> str:
    """A cause of idle time by its name in the bars above, if the bars show all of it."""
    named = {LAUNCHES: NAMES[HOST], BUBBLE: NAMES[BUBBLE]}
    return f"exposed {row.text}" if row.axis else named.get(row.cause, row.text)


def why(found: Explanation) -> str:
    """The losses of the step, the waterfall, the critical path, idle time, and the simulated changes."""
    losses = "".join(f"<li><b>{html(loss.cause)}</b>: {html(loss.text)}.</li>" for loss in found.losses)
    rows, left = [], 1.0
    *causes, peak = found.waterfall.bars
    for bar in causes:
        share = found.waterfall.fraction(bar)
        if abs(share) >= LEAST:
            name, low = f"{bar.cause} {share:.1%}", max(0.0, min(left, left - share))
            rows.append(_stack(name, [("transparent", low, ""), (LOSS if share > 0 else GAIN, abs(share), name)]))
        left -= share
    name = f"{peak.cause} {left:.1%}"
    rows.append(_stack(name, [(WHOLE, left, name)]))
    bars = f'<div class="waterfall">{"".join(rows)}</div>'
    note = "Causes are removed one after another, and each bar is the difference of two simulated steps."
    if any(share <= -LEAST for share in map(found.waterfall.fraction, causes)):
        note += " A grey bar is a cause whose removal makes the rest of the step longer."
    numbers = _table(WATERFALL, waterfall_rows(found.waterfall), right=(1, 2, 3))
    folded = f"<details><summary>All causes in numbers</summary>{numbers}</details>"
    path = "".join(f"<p>{html(sentence)}</p>" for sentence in path_sentences(found.path))
    return "".join(
        (
            _section("Why a step takes as long as it does", f"<ol>{losses}</ol>{bars}{folded}", note),
            _section("Critical path", path, "The operations that each waited for the one before, to the end of the step."),
            idle(found.run, explained=True),
            _section("What would make it shorter", _shorter(found), "Each change is a simulated plan that fits in memory."),
        )
    )


def _shorter(found: Explanation) -> str:
    """The changes that help most, and, for a pipeline, the gain of other splits of the layers."""
    changes = "".join(f"<li>{html(change.text)}</li>" for change in found.best)
    shorter = f"<ol>{changes}</ol>" if changes else "<p>No change that was tried makes the step shorter.</p>"
    layers = f"<p>Layers: {html(found.splits.text(found.run.metrics.step_time_s))}.</p>" if found.splits else ""
    return layers + shorter


def memory(run: Run) -> str:
    """The memory of every pipeline rank at its peak, by class."""
    have = run.scenario.cluster.gpu.memory_bytes
    whole_bytes, rows, first = max(have, run.peak_memory_bytes), [], first_of_pipeline(run)
    for rank in run.memory:
        record = memory_record(rank)
        held = {name: record[f"{kind}_bytes"] for kind, (name, _) in OF_MEMORY.items()}
        colours = [colour for _, colour in OF_MEMORY.values()]
        parts = [(c, size / whole_bytes, f"{n} {show_bytes(size)}") for c, (n, size) in zip(colours, held.items(), strict=True)]
        rows.append(_stack(f"{rank_name(run, first[rank.rank])}: {show_bytes(rank.total_bytes)}", parts))
    what = "the memory of a GPU" if whole_bytes == have else "what the fullest rank needs"
    note = f"The frame of every bar is {show_bytes(whole_bytes)}, {what}."
    return _section("Memory by class", "".join(rows) + _legend(dict(OF_MEMORY.values())), note)


def network(run: Run) -> str:
    """The kinds of links with their utilisation, and the time that ranks wait for them."""
    step_s = run.metrics.step_time_s
    used = [of for of in run.network.classes if of["bytes"]]
    rows = []
    for of in used[:MOST_ROWS]:
        shares = of["utilisation"], of["highest_utilisation"], of["waited_s"] / step_s, of["full_s"] / step_s
        rows.append([of["kind"], f"{of['links']:,}", show_bytes(of["bytes"]), *(f"{share:.1%}" for share in shares)])
    waits = "mean wait, of the step", "at full links, of the step"
    head = ["class of links", "links", "traffic each step", "mean utilisation", "highest", *waits]
    return _section("Network", _table(head, rows, right=range(1, 7))) if rows else ""


def costs(run: Run) -> str:
    """The most expensive kernels and collectives, with the provenance of their times."""
    ranks = run.program.ranks
    rows = [
        [c.name, c.shape, f"{c.calls:,}", show_digits(c.seconds_each * US_PER_S), show_s(c.seconds / ranks),
         c.axis or "kernel", c.provenance, f"{c.sigma:.0%}"]
        for c in sorted((*run.kernel_costs, *run.collective_costs), key=lambda c: -c.seconds)[:MOST_ROWS]
    ]  # fmt: skip
    head = ["operation", "shape", "calls", "us each", "each step, mean rank", "kind", "provenance", "standard error"]
    note = "Calls are those of one replica. <code>trainsim run --costs</code> lists all of them with their models."
    return _section("What costs most", _table(head, rows, right=(2, 3, 4, 7)), note)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = (), parts: Sequence[int] = ()) -> str:
    """A table with a head; the columns `right` are numbers, and the rows `parts` are parts of those above. Where a page is
    narrower than its words, the table scrolls."""
    part, classes = dict.fromkeys(parts, ' class="part"'), dict.fromkeys(right, ' class="right"')
    top = "".join(f"<th{classes.get(i, '')}>{html(text)}</th>" for i, text in enumerate(head))
    body = "".join(
        f"<tr{part.get(number, '')}>"
        + "".join(f"<td{classes.get(i, '')}>{html(cell)}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for number, row in enumerate(rows)
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
