"""Regenerates report.md here: how long hosts take to launch a kernel, from layers.csv and from steps that we timed.

    python results/host/make.py

`host.kernel` of a framework counts the kernels that we simulate, so the time of a layer is divided by their number.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import simulator as sim
from simulator.files import atomic
from simulator.measurements.published_runs import rows_of
from simulator.units import MS_PER_S, US_PER_S

HERE = Path(__file__).resolve().parent
STEPS = ("h200-125m-12-short-eager", "h100-125m-12-short-eager")
"""Our steps of single GPUs that wait for their host."""
DECODER = "pytorch-bf16-2026"
LAYERS = {
    "megatron-lm-2021": ("megatron", "v2.5"),
    "megatron-lm-2022": ("megatron", "52e6368"),
    "megatron-deepspeed-2022": ("megatron-deepspeed", "131bd43"),
}
"""Profile -> the layer that is its own, by implementation and commit."""
INTRODUCTION = """# What a host takes to launch a kernel

Written by make.py from layers.csv, which measure.py measured on one CPU, and from two steps of single GPUs that we timed
(results/calibration).

A host that launches kernels runs Python, PyTorch and autograd, and that needs no GPU to be measured: with tensors of a few
elements a kernel takes next to no time on a CPU. Layers of three implementations ran on one CPU as they are, and so did the
decoder whose step waits for its host on an H200 and an H100: {there} ms there and {here:.2f} ms here, a factor of {pace:.2f} by
the geometric mean. Other layers are taken to be slower there by the same factor. `host.kernel` of a profile is the time of a
layer, divided by the number of kernels that are simulated for it, which is less than that of real software.
"""
COLLECTIVES = """A call of `torch.distributed.all_reduce` takes {here:.1f} us here, from Python to the group of ranks, and so
{there:.0f} us there. NCCL itself, which is not in it, launches a kernel and records and waits for some events; it is assumed to
take as long again: {collective:.0f} us for `host.collective` of all profiles of PyTorch. (Layers of Megatron-LM between two ranks
whose all-reduce returns at once take 2 to 4 us longer per all-reduce here than the same layers of one rank.)
"""
NCCL = 2.0
"""What a collective takes over the call of PyTorch alone: assumed."""
CAVEATS = """- The two hosts are virtual machines with Xeon processors of about 2023, and differ from their mean by {apart:.0%}.
  Hosts of 2021 and 2022 are taken to be as fast. No step of another source has a part in these numbers.
- The oldest PyTorch that installs beside Python 3.11 is 1.13, of 2022.
- What the driver takes for a launch is in the factor, as if it were in proportion to the rest.
- The numbers hold for layers that repeat their forward pass, as most runs of these years did: checkpoints save and restore the
  state of the random numbers. Without them a kernel takes {kept:.0%} less of the host's time.
- The other profiles of PyTorch take the number of the decoder. Modules, hooks and checkpoints of real software take more.
"""


@dataclass(frozen=True, slots=True)
class HostTime:
    """What a host takes for a layer here, the kernels simulated for it, and the time per kernel on the hosts of the GPUs."""

    profile: str
    of: str
    here_ms: float
    kernels: int
    kernel_us: float


def measured_ms() -> dict[tuple[str, str], dict[str, str]]:
    """(Implementation, commit) -> its row of layers.csv."""
    with (HERE / "layers.csv").open(encoding="utf-8") as file:
        return {(row["layer"], row["commit"]): row for row in csv.DictReader(file)}


def steps() -> list[dict[str, str]]:
    """The rows of our steps that wait for their host."""
    return [row for row in rows_of("single-gpu-steps") if row["id"] in STEPS]


def pace() -> float:
    """How many times as long the hosts of our GPUs take as the CPU of layers.csv."""
    there_ms = geometric_mean(float(row["step_time_s"]) * MS_PER_S for row in steps())
    return there_ms / float(measured_ms()["decoder", ""]["kept_ms"])


def collective_us() -> float:
    """What a host of our GPUs takes to launch a collective."""
    return NCCL * float(measured_ms()["all-reduce", ""]["kept_ms"]) * pace() * US_PER_S / MS_PER_S


def launches(scenario: dict[str, object], profile: str) -> int:
    """The kernels of a step: with launches of a second each, the step is as many seconds long."""
    slow = dict.fromkeys(("kernel", "compiled_kernel", "collective"), "1 s")
    run: Any = sim.scenario({**scenario, "framework": {"name": profile, "host": slow}}).simulate()
    return round(run.metrics.step_time_s)


def launches_of_layer(profile: str, recompute: str) -> int:
    """The kernels of a layer of GPT-3's kind, forward and backward, on one GPU."""

    def step(layers: int) -> int:
        model: dict[str, Any] = {
            "layers": layers,
            "hidden": 1024,
            "heads": 16,
            "kv_heads": 16,
            "ffn_hidden": 4096,
            "vocab": 51200,
        }
        model |= {"gated_mlp": False, "bias": True, "positions": "learned", "max_sequence_length": 1024}
        cluster: dict[str, Any] = {"gpu": "a100-80gb", "gpus_per_node": 1, "nodes": 1}
        job: dict[str, Any] = {"sequence_length": 1024, "global_batch": 1, "microbatch_size": 1, "dtype": "fp16"}
        return launches({"model": model, "cluster": cluster, "plan": {"recompute": recompute}, "job": job}, profile)

    return step(2) - step(1)


def host_times() -> Iterator[HostTime]:
    """The time per kernel of each profile that was measured: of the decoder by its whole step, of the others by a layer."""
    rows, slower = measured_ms(), pace()
    of = [(DECODER, "decoder, a step", rows["decoder", ""]["kept_ms"], launches(json.loads(steps()[0]["scenario"]), DECODER))]
    for profile, name in LAYERS.items():
        of.append((profile, " ".join(name), rows[name]["repeated_ms"], launches_of_layer(profile, "full")))
    for profile, layer, text, kernels in of:
        here_ms = float(text)
        yield HostTime(profile, layer, here_ms, kernels, here_ms * slower / kernels * US_PER_S / MS_PER_S)


def share_kept() -> Iterator[float]:
    """The share of the time per kernel that layers save whose activations are kept."""
    rows = measured_ms()
    for profile, name in LAYERS.items():
        kept, repeated = (float(rows[name][column]) for column in ("kept_ms", "repeated_ms"))
        yield 1 - kept / launches_of_layer(profile, "none") / (repeated / launches_of_layer(profile, "full"))


def main() -> None:
    there_ms = sorted(float(row["step_time_s"]) * MS_PER_S for row in steps())
    here_ms = float(measured_ms()["decoder", ""]["kept_ms"])
    there = " and ".join(f"{ms:.1f}" for ms in there_ms)
    lines = [INTRODUCTION.format(there=there, here=here_ms, pace=pace())]
    lines += ["| profile | measured | ms here | kernels simulated | us per kernel |", "|---|---|---|---|---|"]
    lines += [f"| {t.profile} | {t.of} | {t.here_ms:.3f} | {t.kernels} | {t.kernel_us:.0f} |" for t in host_times()]
    call_us = float(measured_ms()["all-reduce", ""]["kept_ms"]) * US_PER_S / MS_PER_S
    lines += ["", COLLECTIVES.format(here=call_us, there=call_us * pace(), collective=collective_us())]
    apart = (there_ms[-1] / there_ms[0]) ** 0.5 - 1
    lines += [CAVEATS.format(apart=apart, kept=fmean(share_kept()))]
    with atomic(HERE / "report.md") as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
