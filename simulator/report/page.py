"""The report of a run as one HTML file: the step time and its causes, the timeline, memory, network and costs.

The file is self-contained: it needs no network, server or library. Figures and tables are plain HTML, readable without scripts; a
script draws the timeline and the memory of `timeline_data` on canvases. Text from outside is escaped, and the page may load
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from ..errors import must_be
from ..escape import html
from ..files import atomic, read_bounded
from ..simulation.run import Run
from ..units import MIB, show_s
from . import sections
from .timeline_data import TimelineData, timeline_data

if TYPE_CHECKING:
    from ..advise.explanation import Explanation

HERE = Path(__file__).parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Content security policy: the page may load nothing from outside."""
KEYS = (
    "Drag across the timeline to look closer, and double-click to see all of it. After a click the keys a and d or the arrows "
    "move, w and s or + and - zoom, 0 shows all. Ctrl with the wheel zooms, Shift with the wheel moves. With #1200-1300 behind "
    "its address the page opens at these milliseconds."
)


def report(
    run: Run, path: str | Path, *, ranks: Iterable[int] | None = None, explanation: Explanation | None = None
) -> TimelineData:
    """Writes the report of a run as an HTML file, and returns the content of its timeline.

    The timeline has a rank of every kind, or of every pipeline coordinate if there are many kinds, or the given ranks. With an
    explanation (`sim.explain`) the report includes the losses of a step, and changes that would make it shorter.
    """
    must_be(run, Run, "run", "a run", 'report(sim.simulate(model, cluster, plan, job), "report.html")')
    must_be(path, (str, Path), "path", "the path of a file", 'report(run, "report.html")')
    shown = timeline_data(run, ranks)
    text = page(run, shown, explanation)
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return shown


def page(run: Run, shown: TimelineData, explanation: Explanation | None = None) -> str:
    """The text of the report."""
    name = f"{run.scenario.model.name} on {run.gpus:,} x {run.scenario.cluster.gpu.name}"
    title = f"{name}: {show_s(run.metrics.step_time_s)} a step"
    packed = json.dumps({"title": title, **shown.packed}, separators=(",", ":")).replace("<", "\\u003c")
    parts = [
        sections.facts(run),
        sections.time_by_cause(run, shown),
        sections.why(explanation) if explanation else sections.idle(run),
        _timeline(run, shown),
        sections.memory(run),
        sections.network(run),
        sections.costs(run),
        _scenario(run),
    ]
    style, script = (read_bounded(HERE / f"page.{ending}", MIB, "a part of a page").decode() for ending in ("css", "js"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html(title)}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>{html(name)}</h1>
<p class="lead">{html(_lead(run))}</p>
{"".join(parts)}
<footer>Written by trainsim. Predictions are simulated; docs/limits.md says how far to trust them.</footer>
</main>
<div id="tip" role="status"></div>
<script type="application/json" id="data">{packed}</script>
<script>
{script}</script>
</body>
</html>
"""


def _lead(run: Run) -> str:
    """The cluster, the plan, the batch, the software and what was disturbed in one line."""
    known = dict(run.summary)
    return "; ".join(known[name] for name in ("cluster", "plan", "batch", "learning", "framework", "perturbed") if name in known)


def _timeline(run: Run, shown: TimelineData) -> str:
    """The place of the timeline and of the curves of memory below it."""
    about = f"{shown.bars:,} operations of {len(shown.ranks)} of {run.gpus:,} ranks, {run.observation.window.text}."
    about += f" {shown.left_out} are shown." if shown.left_out else ""
    return f"""<section id="when">
<h2>Timeline</h2>
<div class="tools"><button id="in" type="button">zoom in</button><button id="out" type="button">zoom out</button>
<button id="all" type="button">show all</button><span id="span"></span></div>
<noscript><p>The timeline is drawn by a script.</p></noscript>
<div class="scroll"><canvas id="timeline" tabindex="0" aria-label="{html(f"Timeline: {about}")}"></canvas></div>
<div class="legend" id="kinds"></div>
<h2>Memory over time</h2>
<canvas id="memory" aria-label="Memory of every shown rank over the same time"></canvas>
<div class="legend" id="curves"></div>
<p class="note">{html(about)} {html(KEYS)}</p>
</section>
"""


def _scenario(run: Run) -> str:
    """Every value of the scenario, with its defaults: a record in seconds and bytes, and not the text of a scenario file."""
    plain = json.loads(json.dumps(run.scenario.as_dict(), default=str))
    text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=120)
    summary = "The scenario as it was simulated, with all its defaults"
    note = "A record in seconds and bytes, not a scenario file: to run it again, use the file from which this report was made."
    return (
        f'<section><details><summary>{summary}</summary><p class="note">{note}</p><pre>{_lines(text)}</pre></details></section>\n'
    )


def _lines(text: str) -> str:
    return "\n".join(map(html, text.splitlines()))
