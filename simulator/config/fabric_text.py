"""A fabric as its YAML file, the same on every machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .. import escape
from ..costs.collectives.curves import Curve
from .fabric_files import Fabric, Series
from .writer import yaml_lines


def text(fabric: Fabric) -> str:
    """A fabric as its YAML file."""
    series = tuple(_series(curve, None if fabric.inside else curve.inside.name) for curve in fabric.curves)
    lines = [f"# {escape.terminal(fabric.about.rstrip('.'))}.", *yaml_lines(replace(fabric, series=series))]
    return "\n".join(lines) + "\n"


def _series(curve: Curve, inside: str | None) -> Series:
    """A curve as its file has it."""
    words: Any = {"kind": curve.kind, "algorithm": curve.algorithm, "source": curve.source, "inside": inside}
    sizes, times = zip(*curve.knots, strict=True)
    return Series(ranks=curve.ranks, nodes=curve.nodes, error=curve.error, sizes=sizes, times=times, **words)
