"""The report of predicted beside measured steps, and docs/accuracy.md, from the table of predictions alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from textwrap import wrap

import baselines
import beside
import checks
import halves
from ablations import FORMULAS, VARIANTS
from misdescribed import EVIDENCE
from published_rows import HEADLINE, PublishedRun, by_source

from simulator.config.step_constants import StepConstant

LARGEST, WIDTH = 20, 130
"""Rows in the list of errors; characters of a line of text."""
Groups = Mapping[str, Mapping[str, Sequence[PublishedRun]]]
Table = Mapping[str, halves.Score]
MECHANISMS: Mapping[str, Callable[[PublishedRun], str]] = {
    "model": lambda run: run.experts,
    "parallelism": lambda run: run.parallelism,
    "generation": lambda run: run.generation,
    "GPU": lambda run: run.gpu,
    "format": lambda run: run.dtype,
    "tokens of a sequence": lambda run: run.length,
    "recomputation": lambda run: run.recompute,
    "framework": lambda run: run.framework,
}
"""Properties of a run by which errors are told apart."""
PEERS = (
    ("megatron-sc21", "SC'21, Table 1: ten steps on A100", {"Calculon": 0.108, "SimuMax 1.2": 0.094}),
    ("vtrain-single", "vTrain's grid on one A100 node", {"Calculon": 0.39, "SimuMax 1.2": 0.23, "vTrain (its own claim)": 0.084}),
)
"""Mean |error| of peers: Calculon and SimuMax as we ran them on two cores in November 2026, vTrain as its paper says. They
were run on the whole grid of 1,440 rows, of which the table of published runs holds a sample."""


def headline_runs(runs: Sequence[PublishedRun]) -> list[PublishedRun]:
    return [run for run in runs if run.is_headline]


def by_mechanism(runs: Sequence[PublishedRun]) -> Groups:
    """The runs of the headline by each of their properties."""
    chosen = headline_runs(runs)
    return {
        title: {name: [run for run in chosen if of(run) == name] for name in sorted({of(run) for run in chosen})}
        for title, of in MECHANISMS.items()
    }


def percents(score: halves.Score) -> str:
    return f"{score.median:.1%} | {score.p90:.1%} | {score.bias:+z.1%}"


def errors_of(runs: Sequence[PublishedRun]) -> list[float]:
    return [run.error for run in runs if run.error is not None]


def table(head: str, rows: Sequence[str]) -> list[str]:
    return [f"| {head} |", "|---" * (head.count("|") + 1) + "|", *(f"| {row} |" for row in rows), ""]


# Sections -------------------------------------------------------------------------------------------------------------------


def sources(runs: Sequence[PublishedRun]) -> list[str]:
    """A line for each source."""
    rows = []
    for name, own in by_source(runs).items():
        found = errors_of(own)
        scored = percents(halves.score(found)) if found else "- | - | -"
        off = [run.memory_gb / run.measured_memory_gb - 1 for run in own if run.memory_gb and run.measured_memory_gb]
        memory = f"{len(off)} | {percents(halves.score(off))}" if off else "0 | - | - | -"
        skipped = sum(bool(run.skipped) for run in own)
        rows.append(f"{name} | {own[0].tier} | {len(found)} of {own[0].of_rows} | {skipped} | {scored} | {memory}")
    head = "source | tier | compared | skipped | median | p90 | bias | memory peaks | median | p90 | bias"
    return table(head, rows)


def apart(runs: Sequence[PublishedRun]) -> list[str]:
    """Runs of other tiers, and runs with derived sizes, each by themselves."""
    groups = {
        "tier C": [run for run in runs if run.tier not in HEADLINE],
        **{
            f"{what} derived": [run for run in runs if run.derived == what]
            for what in sorted({run.derived for run in runs})
            if what
        },
    }
    return table(
        "runs | compared | median | p90 | bias",
        [f"{name} | {len(found)} | {percents(halves.score(found))}" for name, own in groups.items() if (found := errors_of(own))],
    )


def mechanisms(runs: Sequence[PublishedRun]) -> list[str]:
    rows = [
        f"{title} | {name} | {len({run.source for run in own})} | {len(own)} | {percents(halves.score(errors_of(own)))}"
        for title, of in by_mechanism(runs).items()
        for name, own in of.items()
    ]
    return table("property | value | sources | runs | median | p90 | bias", rows)


def compared(runs: Sequence[PublishedRun]) -> Table:
    """The simulator, the simulator with one physics off, baselines and bounds, each by its headline on the sample."""
    chosen, offs = sample(runs), {name: variant.off for name, variant in VARIANTS.items()} | FORMULAS
    free = {name: baselines.factor(own) for name, own in by_source(chosen).items()}
    found = {"the simulator": halves.headline(chosen, lambda run: run.error)}
    for name, off in offs.items():
        found[f"without {off}"] = halves.headline(chosen, lambda run, name=name: baselines.variant_error(run, name))
    return found | {
        "baseline: roofline, peak flop/s or memory bandwidth": halves.headline(chosen, baselines.roofline_error),
        "baseline: constant MFU by GPU and format": halves.two_way(chosen, baselines.constant_mfu, baselines.mfu_error),
        "bound: one factor on all steps": halves.two_way(chosen, baselines.best_factor, baselines.error_without),
        "bound: a factor for each source": halves.headline(chosen, lambda run: baselines.error_without(run, free[run.source])),
    }


def sample(runs: Sequence[PublishedRun]) -> list[PublishedRun]:
    """The runs of the headline whose ablations were predicted."""
    return [run for run in headline_runs(runs) if run.variants]


def ablations(runs: Sequence[PublishedRun]) -> list[str]:
    found = compared(runs)
    base = found["the simulator"]
    rows = []
    for name, score in found.items():
        change = "| " if score is base else f"{(score.median - base.median) * 100:+.1f} | {(score.p90 - base.p90) * 100:+.1f}"
        rows.append(f"{name} | {score.n} | {percents(score)} | {change}")
    return table("prediction | runs | median | p90 | bias | change of the median, points | of the p90", rows)


def intervals(runs: Sequence[PublishedRun], constant: StepConstant) -> list[str]:
    """Coverage of the intervals: today's without the model error, with it, and on the halves that were not used."""
    chosen = headline_runs(runs)
    share = halves.share_to_cover(chosen)
    unused = halves.unused_halves(chosen, share)
    bare, whole = halves.coverage(chosen, 0.0), halves.coverage(chosen, constant.value)
    over = [cover for _, cover in unused]
    rows = [f"errors of kernels and collectives alone | {bare.rows:.0%} | {bare.sources:.0%} | {bare.width:.0%}"]
    rows.append(
        f"with the model error of {constant.value:.3f}, as shipped | {whole.rows:.0%} | {whole.sources:.0%} | {whole.width:.0%}"
    )
    for name, own in by_mechanism(runs)["generation"].items():
        cover = halves.coverage(own, constant.value)
        rows.append(f"the same, {name} | {cover.rows:.0%} | {cover.sources:.0%} | {cover.width:.0%}")
    means = [fmean(getattr(cover, name) for cover in over) for name in ("rows", "sources", "width")]
    rows.append(
        f"calibrated to {share:.0%} of one half of the sources, on the other half | {' | '.join(f'{mean:.0%}' for mean in means)}"
    )
    least, most = min(cover.rows for cover in over), max(cover.rows for cover in over)
    bias, centred = median(run.log_error for run in chosen), halves.calibrated(chosen, share, centred=True)
    low, high = constant.interval
    return [
        *table("intervals | runs inside | mean over sources | half-width, median", rows),
        f"Over the {len(unused)} halves the model error is {low:.3f} to {high:.3f} (5% to 95%), and {least:.0%} to {most:.0%} of "
        f"the runs that were not used lie inside. The median log error of all runs is {bias:+.3f}. The model error holds this "
        f"bias: without it, it would be {centred:.3f}.",
        "",
    ]


def splits(runs: Sequence[PublishedRun]) -> list[str]:
    """The headline as it is, and with one factor on all steps, fitted to the other half of the sources or to all."""
    chosen = headline_runs(runs)
    best = baselines.best_factor(chosen)
    other = halves.two_way(chosen, baselines.best_factor, baselines.error_without)
    rows = [
        f"as predicted | {percents(halves.headline(chosen, lambda run: run.error))}",
        f"times {math.exp(-best):.3f}, which fits all best | "
        f"{percents(halves.headline(chosen, lambda run: baselines.error_without(run, best)))}",
        f"times a factor that fits one half best, on the other half | {percents(other)}",
    ]
    return table("steps | median | p90 | bias", rows)


def relative(runs: Sequence[PublishedRun]) -> list[str]:
    return table("what | values | bar | found | met", checks.checks(runs))


def residuals(runs: Sequence[PublishedRun]) -> list[str]:
    """The largest errors of the headline, and what each row states."""
    worst = sorted(headline_runs(runs), key=lambda run: -abs(run.log_error))[:LARGEST]
    rows = [f"{run.id} | {run.error:+.0%} | {run.measured_s:.4g} | {run.predicted_s:.4g} | {run.states}" for run in worst]
    return table("row | error | published, s | predicted, s | what the row states", rows)


def misdescribed(runs: Sequence[PublishedRun]) -> list[str]:
    """Rows that are listed as mis-described, and the headline without them."""
    known = {run.id: run for run in runs}
    rows = []
    for evidence, ids in EVIDENCE.items():
        found = [known[name] for name in ids if name in known]
        said = ", ".join(f"{run.id} {run.error:+.0%}" if run.error is not None else f"{run.id} skipped" for run in found)
        rows += [f"{evidence} | {said}"] if said else []
    listed = {name for ids in EVIDENCE.values() for name in ids}
    without = halves.headline([run for run in headline_runs(runs) if run.id not in listed], lambda run: run.error)
    sentence = (
        f"They count in every score of this page. Without them the headline would be {without.median:.1%} and {without.p90:.1%}."
    )
    return [*table("evidence | rows and their errors", rows), sentence, ""]


def peers(runs: Sequence[PublishedRun]) -> list[str]:
    rows = []
    for name, title, quoted in PEERS:
        found = [abs(error) for error in errors_of(checks.of(runs, name))]
        if found:
            others = "; ".join(f"{peer} {error:.1%}" for peer, error in quoted.items())
            rows.append(f"{title} | {len(found)} | {fmean(found):.1%} | {others}")
    return table("rows | compared here | mean error here | mean error of others", rows)


def skipped(runs: Sequence[PublishedRun]) -> list[str]:
    reasons = {
        reason: [run.id for run in runs if run.skipped == reason] for reason in sorted({run.skipped for run in runs}) if reason
    }
    return table("reason | rows", [f"{reason} | {', '.join(ids)}" for reason, ids in reasons.items()])


# Pages ----------------------------------------------------------------------------------------------------------------------


def counted(runs: Sequence[PublishedRun]) -> str:
    """How many rows of how many were predicted, and how many were tried in vain."""
    sources, done = by_source(runs), sum(run.predicted_s is not None for run in runs)
    of_rows = sum(own[0].of_rows for own in sources.values())
    these = f"{done:,} of the {of_rows:,} rows" if done < of_rows else f"all {of_rows:,} rows"
    in_vain = f" ({len(runs) - done:,} skipped)" if done < len(runs) else ""
    return f"{these} of {len(sources)} sources{in_vain}"


def first(runs: Sequence[PublishedRun]) -> list[str]:
    """The headline, in words."""
    chosen = headline_runs(runs)
    found, off = halves.headline(chosen, lambda run: run.error), [abs(error) for error in errors_of(chosen)]
    tiers = [run for run in runs if run.tier in HEADLINE]
    within = {limit: f"{fmean(error <= limit for error in off):.0%}" for limit in (0.05, 0.1, 0.2)}
    return [
        f"**Mean over sources of the median error {found.median:.1%}, of the 90th percentile {found.p90:.1%}, of the bias "
        f"{found.bias:+z.1%}**, over {found.n:,} published runs of tiers A and B, {found.n / len(tiers):.1%} of those that were "
        f"tried. Of these runs {within[0.05]} are within 5%, {within[0.1]} within 10%, {within[0.2]} within 20%. One number "
        "was fitted to published steps: what arithmetic loses beside communication, over the SMs that this holds (a half of the "
        "sources says it as well as all: see Beside communication in the report). One factor on all arithmetic was fitted to "
        "steps of single GPUs that we timed (results/calibration). Both are the same for every source, model and GPU; the host's "
        "time per kernel is from our own timings of layers and steps (results/host).",
        "",
    ]


REPORT = """# Predicted beside measured: steps of published runs

Written by `python results/validation/make.py`; `--predict` predicts all rows anew. Errors are predicted / published step time
less one, so a negative error is too fast. *p90* is the smallest error that nine rows in ten do not exceed. A source counts once,
whatever its number of rows. Tier A can be simulated without guessing anything that matters, B with one or two assumed fields, C
is an anchor only. Rows are predicted by `trainsim validate --kind training`, from the columns that describe a run.
"""
SECTIONS: Mapping[str, tuple[str, str, Callable[[Sequence[PublishedRun]], list[str]]]] = {
    "Sources": ("", "sources.png", sources),
    "Apart": ("Runs of tier C do not count above. Those with derived sizes do, and are repeated here.", "", apart),
    "By mechanism": (
        "Runs of tiers A and B. A value with few sources says as much of those sources.",
        "mechanisms.png",
        mechanisms,
    ),
    "Ablations and baselines": (
        "On a sample of tiers A and B: every k-th row of a source, a few of each. Each line changes fields of a scenario and "
        "nothing else, or takes a formula in place of the step. The constant MFU and the factor on all steps are fitted to half "
        "of the sources and scored on the other, both ways, over 20 random halves. A factor for each source is what tuning could "
        "reach at most; it is not used.",
        "ablations.png",
        ablations,
    ),
    "Relative results": ("What decides between two plans, and its bar.", "", relative),
    "Halves of the sources": (
        "No factor on whole steps was fitted. What one could do: sources are divided at random, 20 times, and one factor on all "
        "steps is fitted to one half and scored on the other, both ways. It is not used.",
        "",
        splits,
    ),
    "Beside communication": (
        "GEMMs, attention and experts lose a multiple of the share of SMs that communication beside them holds. It is the one "
        "number of a step time that is from published steps, here on a sample of every source (beside.csv).",
        "",
        beside.lines,
    ),
    "The largest errors": ("", "", residuals),
    "Rows that are described incompletely or wrongly": ("", "", misdescribed),
    "Peers on the same rows": (
        "Calculon and SimuMax were run by us in 2026, on all rows of each publication; of vTrain's grid a sample stands here.",
        "",
        peers,
    ),
    "Skipped rows": ("", "", skipped),
}
INTERVALS = """## Intervals

The interval that `trainsim run` prints extends two log-standard errors to each side: the errors of kernels and collectives, and
the model error, a global constant (`topologies/_step_constants.yaml`). It is calibrated so that nine in ten runs lie inside.
"""


def report(runs: Sequence[PublishedRun], constant: StepConstant) -> str:
    lines = [*REPORT.splitlines(), "", f"Predicted were {counted(runs)}.", "", *first(runs)]
    lines += ["![Predicted over published step times](scatter.png)", ""]
    for title, (note, picture, made) in SECTIONS.items():
        lines += [f"## {title}", "", *([note, ""] if note else [])]
        lines += [f"![{title}]({picture})", ""] if picture else []
        lines += made(runs)
        lines += [*INTERVALS.splitlines(), "", *intervals(runs, constant)] if title.startswith("Halves") else []
    return wrapped(lines)


def wrapped(lines: Iterable[str]) -> str:
    """Lines as a page, in which only tables are wide."""
    return "\n".join(part for line in lines for part in ([line] if line.startswith("|") else wrap(line, WIDTH) or [""]))


ACCURACY = """# Accuracy

How far predicted steps are from published ones. Written by `python results/validation/make.py` from the same numbers as
[its report](../results/validation/report.md), which has every source, every mechanism, the largest errors and the skipped rows.
"""


def accuracy(runs: Sequence[PublishedRun], constant: StepConstant) -> str:
    """The page docs/accuracy.md."""
    chosen = headline_runs(runs)
    scored = {name: halves.score(errors_of(own)) for name, own in by_source(chosen).items()}
    rows = [f"{name} | {score.n} | {percents(score)}" for name, score in sorted(scored.items(), key=lambda one: one[1].median)]
    found = compared(runs)
    base = found.pop("the simulator")
    gains = sorted(found.items(), key=lambda one: one[1].median - base.median, reverse=True)
    gained = [
        f"{name} | {score.median:.1%} | {score.p90:.1%} | {score.bias:+z.1%}" for name, score in [("the simulator", base), *gains]
    ]
    return wrapped(
        [
            *ACCURACY.splitlines(), "", f"Predicted were {counted(runs)}.", "", *first(runs),
            "![Predicted over published step times](../results/validation/scatter.png)", "",
            "## Sources, the best first", "", *table("source | runs | median | p90 | bias", rows),
            "## What buys accuracy", "",
            f"On a sample of {base.n} runs: the simulator with one physics off, two baselines, and two bounds on what fitting to "
            "steps would reach.", "",
            *table("prediction | median | p90 | bias", gained),
            "## The interval of a step", "", *intervals(runs, constant),
        ]
    )  # fmt: skip
