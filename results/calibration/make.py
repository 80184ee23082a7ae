"""Regenerates report.md, power.png and the fits here: what we timed on an H200 and an H100, and what it says of clocks and power.

    python results/calibration/make.py

reads raw.csv (`trainsim calibrate gpu`) and sustained.csv (`trainsim calibrate power`) of each folder, which were measured on the
day in its name, and predicts the training steps among them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from textwrap import fill
from typing import Any

import matplotlib as mpl
import pandas as pd

from simulator.calibrate.fit_table import fit_survey
from simulator.config import catalog
from simulator.config.step_constants import FILE, StepConstant, arithmetic, step_constants, text_with
from simulator.costs.kernels.power import BOARD_SPREAD
from simulator.files import atomic
from simulator.measurements.published_runs import rows_of
from simulator.measurements.training_rows import scenario_of
from simulator.study.kernel_time import kernel
from simulator.validate import training
from simulator.validate.report import Report, compare_rows

HERE = Path(__file__).resolve().parent
SETTLED_MS = 1000.0
STEPS = "single-gpu-steps"
SQUARE = "fwd bf16 m=8192 n=8192 k=8192"
STREAMING = {"copy": 4.0, "adam": 28.0}
"""Bytes per element of loads that only move data."""
SLOWED = 0.05
"""Least share by which a GEMM takes longer sustained than in a burst, on both boards, to tell their spread."""
WIDTH = 126
DIP_MS = 850.0
"""When the clock falls for the first time, after the start of a load."""
FOUR = 2 * math.sqrt(2 / math.pi)
"""Expected size of the difference of two differences of normal values, in their standard deviations."""
LEAST_S = 0.1
"""Shortest step that tells the factor on arithmetic; shorter ones wait for their host."""
INTRODUCTION = """# Kernels, clocks, power and steps on an H200 and an H100

Written by make.py from what `trainsim calibrate gpu` and `trainsim calibrate power` measured on the days in the names of the
folders: single GPUs in virtual machines, PyTorch 2.11, CUDA 13.0, limit of power 700 W, highest clock 1,980 MHz, about 40
degrees. A burst is the first 12 runs, or the first twentieth of a second; sustained is the median after the first second of
2.5. nvidia-smi was read every 20 ms; the power is the mean of its instantaneous readings after the first second.
"""


def loads(folder: Path) -> pd.DataFrame:
    """One row per load: burst and sustained time in us, clock, mean power, memory."""
    table = pd.read_csv(folder / "sustained.csv")
    found = []
    for (name, detail, share), rows in table.groupby(["load", "detail", "share"], sort=False):
        late = rows[rows.at_ms >= SETTLED_MS]
        seen = {"load": name, "detail": detail, "share": share, "burst_us": rows.time_us.iloc[0], "us": late.time_us.median()}
        seen |= {"period_us": late.period_us.median(), "mhz": late.clock_mhz.median(), "watts": late.power_w.mean()}
        found.append(seen | {"capped": rows.throttle.notna().any(), "start": rows.at_ms.iloc[0]})
    return pd.DataFrame(found)


def machine(folder: Path) -> str:
    facts = json.loads((folder / "sustained.json").read_text())
    return f"{facts['gpu']}, driver {facts['driver_version']}, limit {facts['power.limit']}"


def sustained(of: pd.DataFrame) -> Iterator[str]:
    """Burst beside sustained, for everything that runs all the time."""
    yield "| load | of | burst, us | sustained, us | longer | MHz | W |"
    yield "|---|---|---|---|---|---|---|"
    for row in of[of.share == 1].itertuples():
        if not row.us:
            yield f"| {row.load} | {row.detail} | | | | {row.mhz:.0f} | {row.watts:.0f} |"
            continue
        times = f"{row.burst_us:,.0f} | {row.us:,.0f} | {row.us / row.burst_us - 1:+.1%}"
        yield f"| {row.load} | {row.detail} | {times} | {row.mhz:.0f} | {row.watts:.0f} |"


def idle_w(of: pd.DataFrame) -> float:
    return float(of[of.load == "idle"].watts.iloc[0])


def shares(of: pd.DataFrame) -> Iterator[str]:
    """A GEMM that runs for a share of the time: what it draws while it runs, and how long it takes."""
    idle = idle_w(of)
    yield "| share of the time | us | MHz | W, mean | W beyond idle while it runs |"
    yield "|---|---|---|---|---|"
    own = of[(of.load == "gemm") & (of.detail == SQUARE)].sort_values("share")
    for row in own.itertuples():
        busy = row.us / row.period_us
        yield f"| {busy:.2f} | {row.us:,.0f} | {row.mhz:.0f} | {row.watts:.0f} | {(row.watts - idle) / busy:.0f} |"
    first, last = own.iloc[1], own.iloc[-1]
    drawn = [(one.watts - idle) / (one.us / one.period_us) for one in (first, last)]
    gamma = math.log(drawn[0] / drawn[1]) / math.log(last.us / first.us)
    longer = f"the GEMM takes {last.us / first.us:.2f} times as long: gamma {gamma:.1f}"
    yield f"\nFrom {drawn[0]:.0f} to {drawn[1]:.0f} W beyond idle {longer}."


def energies(of: pd.DataFrame) -> Iterator[str]:
    """Joules per flop and byte beyond idle power."""
    idle, found = idle_w(of), []
    for row in of[of.share == 1].itertuples():
        sizes = {k: int(v) for k, _, v in (word.partition("=") for word in row.detail.split()) if v.isdigit()}
        joules = (row.watts - idle) * row.us / 1e6
        if row.load in STREAMING:
            found.append((row, f"{joules / (STREAMING[row.load] * sizes['m'] * sizes['n']) * 1e12:.0f} pJ per byte"))
        elif row.load == "gemm":
            found.append((row, f"{joules / (2 * sizes['m'] * sizes['n'] * sizes['k']) * 1e12:.2f} pJ per flop"))
        elif row.load.startswith("attention"):
            passes = 2 if row.load.endswith("fwd") else 5
            flop = passes * sizes["batch"] * sizes["heads"] * sizes["seq"] ** 2 * sizes["head_dim"]
            found.append((row, f"{joules / flop * 1e12:.2f} pJ per flop"))
    yield "| load | of | beyond idle |"
    yield "|---|---|---|"
    for row, energy in found:
        yield f"| {row.load} | {row.detail} | {energy} |"


def limited(of: pd.DataFrame) -> pd.DataFrame:
    """The GEMMs on random values that run all the time, and the share by which each takes longer sustained than in a burst."""
    own = of[(of.share == 1) & (of.load == "gemm") & ~of.detail.str.contains("zeros")]
    return pd.DataFrame({"detail": own.detail, "longer": own.us / own.burst_us - 1})


def dips(folder: Path) -> Iterator[str]:
    """How far the clock falls once a second, below where it settles: the longest window of each second over the median one."""
    table, found = pd.read_csv(folder / "sustained.csv"), []
    chosen = (table.share == 1) & table.load.isin(["gemm", "layer"]) & ~table.detail.str.contains("zeros")
    for _, rows in table[chosen].groupby(["load", "detail"]):
        settled_us = rows.time_us[rows.at_ms >= SETTLED_MS].median()
        if settled_us / rows.time_us.iloc[0] > 1 + SLOWED:
            second = ((rows.at_ms - DIP_MS + SETTLED_MS / 2) // SETTLED_MS).astype(int)
            found.append(rows.time_us.groupby(second).max().loc[[0, 1]] / settled_us - 1)
    first, later = (median(one[second] for one in found) for second in (0, 1))
    yield "\n" + fill(
        f"The {len(found)} loads of GEMMs and of a layer that slow down do so more for some tenths of a second, once a second, "
        f"at {DIP_MS / 1e3:.2f} s and {1 + DIP_MS / 1e3:.2f} s after their start: by up to {first:.0%} the first time and "
        f"{later:.0%} the second time, in the median. Loads of 2.5 s do not say what is left of that after minutes, or under a "
        "load that changes.",
        WIDTH,
    )


def longer_by_fit(gpu: str, detail: str) -> float:
    """The share by which a GEMM takes longer sustained than in a burst by the fit of a GPU, which is from boards of others."""
    _, dtype, *sizes = detail.split()
    m, n, k = (int(size.partition("=")[2]) for size in sizes)
    found = kernel("gemm", gpu, dtype, m=m, n=n, k=k)
    return found.sustained_us / found.burst_us - 1


def boards(folders: Sequence[Path]) -> Iterator[str]:
    """What the limit of power costs our boards and those of the public tables, and the spread among boards that this says.

    Products may differ: their ratio, on our boards over those of the tables, tells boards apart from products, and from how a
    burst is measured.
    """
    both = pd.merge(*map(limited, map(loads, folders)), on="detail", suffixes=("_one", "_other"))
    both = both[both[["longer_one", "longer_other"]].min(axis=1) > SLOWED]
    ratios = []
    yield fill(
        f"What the limit of power costs the {len(both)} GEMMs on random values that take over {SLOWED:.0%} longer sustained than "
        "in a burst on both of our boards, in the mean:",
        WIDTH,
    )
    yield ""
    yield "| GPU | our board | boards of the public tables, by the fit | ratio |"
    yield "|---|---|---|---|"
    for folder, longer in zip(folders, (both.longer_one, both.longer_other), strict=True):
        name = folder.name.partition("-")[0]
        by_fit = fmean(longer_by_fit(name, detail) for detail in both.detail)
        ratios.append(longer.mean() / by_fit)
        yield f"| {name} | {longer.mean():.1%} | {by_fit:.1%} | {ratios[-1]:.2f} |"
    spread = abs(math.log(ratios[0] / ratios[1])) / FOUR
    yield "\n" + fill(
        "What products and ways to measure a burst have in common is not in the ratio of the ratios. If what the limit costs a "
        f"board is a normal value, its standard deviation is {spread:.2f} of its mean by this one number; in use is "
        f"{BOARD_SPREAD} (power.py). One number tells a deviation badly: it may be half of that, or several times that.",
        WIDTH,
    )


def predicted(calibration: str) -> Report:
    """Our steps beside their predictions, with or without the number that was fitted to them."""
    fidelity = {"fidelity": {"calibration": calibration}}
    rows = [{**row, "scenario": json.dumps({**scenario_of(row)[0], **fidelity})} for row in rows_of(STEPS)]
    return compare_rows(training, rows, STEPS)


def factor(alone: Report, usual: Report) -> StepConstant:
    """The factor on arithmetic with which each of the longer steps comes out as measured: the median, and the extremes."""
    found = []
    for one, other in zip(alone.rows, usual.rows, strict=True):
        if one.measured >= LEAST_S:
            per_unit_s = (other.predicted - one.predicted) / (arithmetic() - 1)
            found.append(1 + (one.measured - one.predicted) / per_unit_s)
    shipped = step_constants()["arithmetic in a step"]
    obtained = (
        f"results/calibration/make.py: the factor with which a step of one GPU that we timed comes out as measured, median of "
        f"{len(found)} steps of {LEAST_S:g} s and more on an H200 and an H100; interval: least and greatest of them"
    )
    extremes = round(min(found), 3), round(max(found), 3)
    return StepConstant(shipped.name, round(median(found), 3), extremes, obtained, shipped.moves)


def steps(alone: Report) -> Iterator[str]:
    """Our steps beside their predictions, nothing of which was fitted to a step."""
    yield "| step | measured, ms | predicted, ms | error | memory measured, GB | predicted, GB |"
    yield "|---|---|---|---|---|---|"
    for row in alone.rows:
        times = f"{row.measured * 1e3:.2f} | {row.predicted * 1e3:.2f} | {row.error:+.1%}"
        yield f"| {row.id} | {times} | {row.measured_memory_gb:.1f} | {row.memory_gb:.1f} |"


def picture(folders: list[Path]) -> None:
    """Time, clock and power of a GEMM from its start; and its time by what the board may draw."""
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "calibration"
    figure = Figure(figsize=(11, 4), layout="constrained")
    begin, by_power = figure.subplots(1, 2)
    for folder, colour, line, marker in zip(folders, ("#17524d", "#e0752f"), ("-", "--"), ("o", "s"), strict=True):
        table, of = pd.read_csv(folder / "sustained.csv"), loads(folder)
        own = table[(table.load == "gemm") & (table.detail == SQUARE) & (table.share == 1)]
        begin.plot(own.at_ms, own.time_us / 1e3, line, color=colour, label=folder.name.partition("-")[0].upper())
        part = of[(of.load == "gemm") & (of.detail == SQUARE)].sort_values("share")
        drawn = (part.watts - idle_w(of)) / (part.us / part.period_us)
        by_power.plot(drawn, part.us / 1e3, marker, color=colour, fillstyle="full" if marker == "o" else "none")
    begin.set(xlabel="ms after the first launch", ylabel="ms per GEMM, 8192 x 8192 x 8192, bf16", ylim=(0, None))
    begin.legend()
    by_power.set(xlabel="W beyond idle while it runs", ylabel="ms per GEMM", ylim=begin.get_ylim())
    with atomic(HERE / "power.png") as temporary:
        figure.savefig(temporary, format="png", dpi=110, metadata={"Software": None})


def main() -> None:
    folders = sorted((path.parent for path in HERE.glob("*/sustained.csv")), reverse=True)
    lines: list[Any] = [INTRODUCTION, "![A GEMM under load](power.png)"]
    for folder in folders:
        of = loads(folder)
        fit_survey(folder, 0)
        lines += [f"\n## {machine(folder)}\n", "### In a burst and sustained\n", *sustained(of)]
        lines += dips(folder)
        lines += ["\n### A GEMM that runs for a share of the time\n", *shares(of), "\n### Energy\n", *energies(of)]
    alone = predicted("kernels")
    constant = factor(alone, predicted("steps"))
    lines += ["\n## Boards of one chip\n", *boards(folders), "\n## Steps\n", *steps(alone)]
    lines += [f"\nWith all arithmetic {constant.value} times as long half of the steps of {LEAST_S:g} s and more come out fast."]
    picture(folders)
    texts = {HERE / "report.md": "\n".join(lines) + "\n", catalog.folder("clusters") / FILE: text_with(constant)}
    for path, text in texts.items():
        with atomic(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
