"""A fabric as its YAML file, the same on every machine."""

from __future__ import annotations

import math

from ... import escape
from ...costs.curves import Curve
from ...costs.links import Across, Inside
from ...costs.tuner import Choice
from ...units import GB, GIB, KIB, MIB, US_PER_S
from .fabrics import Fabric


def text(fabric: Fabric) -> str:
    """A fabric as its YAML file."""
    lines = [f"# {escape.terminal(fabric.about.rstrip('.'))}.", f"about: {escape.yaml(fabric.about)}"]
    lines += [f"provenance: {fabric.provenance}", f"source: {escape.yaml(fabric.source)}"]
    if fabric.inside:
        lines += ["inside:", *(f"  {line}" for line in _inside_lines(fabric.inside))]
    if fabric.across:
        lines += ["across:", *(f"  {line}" for line in _across_lines(fabric.across))]
    if fabric.choices:
        lines += ["choices:", *(f"  - {{{_choice(line)}}}" for line in fabric.choices)]
    if fabric.curves:
        lines.append("curves:")
        for curve in fabric.curves:
            lines += _curve_lines(curve, own=fabric.inside is not None)
    return "\n".join(lines) + "\n"


def _inside_lines(inside: Inside) -> list[str]:
    lines = [f"rate: {_rate(inside.bytes_per_s)}", f"launch: {_us(inside.launch_s)}", f"step: {_us(inside.step_s)}"]
    lines += [f"efficiency: {inside.efficiency:.4g}", f"fill: {_us(inside.fill_s)}"]
    if inside.pair_efficiency != 1:
        lines.append(f"pair_efficiency: {inside.pair_efficiency:.4g}")
    if inside.nvls_efficiency:
        lines.append(f"nvls_efficiency: {inside.nvls_efficiency:.4g}")
    if inside.island:
        lines += [f"island: {inside.island}", f"beyond: {_rate(inside.beyond_bytes_per_s)}"]
        lines.append(f"beyond_efficiency: {inside.beyond_efficiency:.4g}")
    if inside.mesh:
        lines.append(f"mesh: {inside.mesh}")
    if inside.flags != 1:
        lines += [f"flags: {inside.flags:.4g}", f"flags_size: {_size(round(inside.flags_bytes))}"]
    if inside.pair_bytes_per_s:
        lines.append(f"pair: {_rate(inside.pair_bytes_per_s)}")
    if inside.to_nics:
        lines.append("to_nics: true")
    return lines


def _across_lines(across: Across) -> list[str]:
    return [
        f"nic: {_rate(across.nic_bytes_per_s)}",
        f"nics: {across.nics:.0f}",
        f"crossing: {_us(across.crossing_s)}",
        f"efficiency: {across.efficiency:.4g}",
        f"rendezvous: {across.rendezvous:.4g}",
        f"rendezvous_size: {_size(round(across.rendezvous_bytes))}",
        *(["sharp: true"] if across.sharp else []),
        *(["adaptive: true"] if across.adaptive else []),
        *([] if across.nvls else ["nvls: false"]),
    ]


def _curve_lines(curve: Curve, *, own: bool) -> list[str]:
    head = f"  - {{kind: {curve.kind}, algorithm: {curve.algorithm}, ranks: {curve.ranks}, nodes: {curve.nodes}"
    head += "" if own else f", inside: {curve.inside.name}"
    return [
        f"{head}, error: {curve.error:.4f}, source: {escape.yaml(curve.source)},",
        f"     sizes: [{', '.join(_size(size) for size, _ in curve.knots)}],",
        f"     times: [{', '.join(_us(time) for _, time in curve.knots)}]}}",
    ]


def _choice(line: Choice) -> str:
    parts = [f"kind: {line.kind}", f"algorithm: {line.algorithm}"]
    parts += [f"size_up_to: {_size(line.bytes_up_to)}"] * math.isfinite(line.bytes_up_to)
    parts += [f"nodes_up_to: {line.nodes_up_to:.0f}"] * math.isfinite(line.nodes_up_to)
    return ", ".join(parts)


def _rate(value: float) -> str:
    return f"{value / GB:.6g} GB/s"


def _us(value: float) -> str:
    """Rounded twice, as means of measured times lie half way between digits, and one machine errs above and another below."""
    us = float(f"{value * US_PER_S:.9g}")
    return f"{us:.4g} us" if us < MIB else f"{us:.0f} us"


def _size(value: float) -> str:
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if value % factor == 0:
            return f"{value / factor:.0f} {unit}"
    return f"{value:.0f} B"
