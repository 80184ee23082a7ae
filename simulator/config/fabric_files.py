"""Files of fabrics: the constants of links and the measured curves of collectives, one YAML file each in topologies/fabrics.

A file describes the links inside a node, or the network across nodes, or both. Curves measured across nodes name the fabric
inside the nodes. `results/collectives/make.py` writes the shipped files; `trainsim calibrate links` writes files of users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from .. import escape
from ..costs.collectives.curves import Curve
from ..costs.collectives.link_constants import Across, Inside
from ..costs.collectives.nccl_choice import Choice
from ..costs.collectives.theory import Algorithm, Kind
from ..errors import UserError, did_you_mean, shown
from ..fields import NO_KEY, Also, Bytes, Contradiction, Declared, Key, Length, Limits, Seconds, Text, Usual, Written
from ..files import read_bounded
from . import catalog
from .document import Document, parse, read
from .reader import Grammar, Grammars, validated
from .writer import yaml_lines

MOST_KNOTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Series(Declared):
    """A measured curve in the form of its file: the fabric inside the nodes by name, sizes and times as separate lists."""

    kind: Annotated[Kind, "kind of collective"]
    algorithm: Annotated[Algorithm, Written(with_field="kind"), "algorithm; auto: chosen by the library"] = "auto"
    ranks: Annotated[int, Limits(ge=2, le=2**20), "number of GPUs"]
    nodes: Annotated[int, Limits(ge=1, le=2**20), Written(with_field="kind"), "number of nodes"] = 1
    inside: Annotated[str | None, Text("fabric_name"), "name of the fabric inside the nodes; left out, this fabric"] = None
    error: Annotated[float, Limits(ge=0, le=10), Written(".4f"), "median relative error of the times"]
    source: Annotated[str, Written(with_field="kind"), "origin of the measurements"] = ""
    sizes: Annotated[tuple[Bytes, ...], Length(1, MOST_KNOTS), "payloads in increasing order"]
    times: Annotated[tuple[Seconds, ...], Length(1, MOST_KNOTS), "measured times, one for each size"]

    def contradictions(self) -> Iterator[Contradiction]:
        if len(self.sizes) != len(self.times):
            yield "times", f": {len(self.times)} of them for {len(self.sizes)} sizes", "one time for each size"
        elif any(b <= a for a, b in zip(self.sizes, self.sizes[1:], strict=False)):
            yield "sizes", " do not rise", "smallest first, each once"
        if not all(self.times):
            yield "times", " hold a zero", "leave out what takes no time"
        if self.ranks % self.nodes:
            yield "ranks", f": {self.ranks} do not sit evenly on {self.nodes} nodes", f"{self.nodes} of them, or a multiple"


def _served(choice: Choice) -> Iterator[Contradiction]:
    """Refuses an algorithm that does not implement the collective for which the file selects it."""
    if choice.kind not in catalog.module("collectives", choice.algorithm).KINDS:
        message = f": {choice.algorithm} does no {choice.kind}"
        yield "algorithm", message, "`trainsim catalog collectives` says what each does"


@dataclass(frozen=True, slots=True)
class Fabric(Declared):
    """Links inside a node, or between nodes, or both, and the curves of collectives that were measured on these links."""

    name: Annotated[str, NO_KEY, Usual(lambda given: ""), "name of the fabric, which is that of its file"]
    about: Annotated[str, "description in one sentence"]
    provenance: Annotated[
        Literal["measured", "theoretical"], "measured: fitted to measured collectives; theoretical: set by hand"
    ]
    source: Annotated[str, "where the numbers can be looked up"]
    inside: Annotated[Inside | None, "constants of the links inside a node; left out if there are none"] = None
    across: Annotated[Across | None, "constants of the network between nodes; left out if there are none"] = None
    curves: Annotated[tuple[Curve, ...], NO_KEY, "measured curves with the links that they were measured on"] = ()
    choices: Annotated[
        tuple[Annotated[Choice, Also(_served)], ...],
        "algorithms that the library takes, by payload and number of nodes, where this is known better than by NCCL's cost model",
    ] = ()
    series: Annotated[tuple[Series, ...], Key("curves"), "measured curves in the form of the file"] = ()
    file: Annotated[str, NO_KEY, "path of a user's file; empty for a shipped fabric"] = ""

    @property
    def label(self) -> str:
        """The name by which a cluster selects the fabric: the path of a user's file, or the name of a shipped fabric."""
        return self.file or self.name

    def contradictions(self) -> Iterator[Contradiction]:
        if self.inside is None and self.across is None:
            yield "", " describes neither links inside a node nor a network across nodes", "give inside:, across: or both"
        for i, curve in enumerate(self.series):
            if curve.nodes > 1 and self.across is None:
                yield f"curves.{i}.nodes", f": {curve.nodes}, and no network across nodes", "describe it under across:"
            if self.inside is None and curve.inside is None:
                yield f"curves.{i}", " names no fabric inside the nodes", "inside: nvlink4-nvswitch"


def _algorithm(name: Any) -> str:
    """The name of an algorithm, in the spelling of the catalog."""
    known = catalog.files("collectives")
    found = catalog.written("collectives", name) if isinstance(name, str) else ""
    if found not in known:
        raise UserError(f"there is none called {shown(name)}", hint=did_you_mean(found, list(known)))
    return found


def _name(value: Any) -> str:
    """The name of a fabric, which is looked up after all other fields of the file were checked."""
    if not isinstance(value, str):
        raise UserError(f"{shown(value)} is not a name of a fabric", hint='write it like "nvlink4-nvswitch"')
    return value


GRAMMARS: Grammars = {"collective": Grammar(_algorithm, "ring"), "fabric_name": Grammar(_name, "nvlink4-nvswitch")}


IDEAL = Fabric("ideal", "Theoretical: links reach their nominal rate and latency; no measurement is used.", "theoretical", "")
"""The fabric of a cluster whose links are taken at their nominal bandwidth and latency."""
Loader = Callable[[str], Fabric]


def folder() -> Path:
    """The folder of the shipped fabrics."""
    return catalog.folder("fabrics")


def names() -> list[str]:
    """The names of all shipped fabrics."""
    return list(catalog.files("fabrics"))


def load(name: str) -> Fabric:
    """A fabric by its name, or by the path of a user's file."""
    if catalog.is_path(name):
        return replace(_fabric(read(Path(name)), Path(name).stem), file=name)
    if catalog.plain(name) not in names():
        raise UserError(f"no fabric {name!r}", hint=did_you_mean(catalog.plain(name), names()))
    return _fabric(read(folder() / f"{catalog.plain(name)}.yaml"), catalog.plain(name))


@cache
def outline(name: str) -> Fabric:
    """A shipped fabric without its curves, which make up most of the file and stand at its end."""
    path = folder() / f"{catalog.plain(name)}.yaml"
    outlined = read_bounded(path, catalog.MOST_BYTES, "a fabric").decode("utf-8").partition("\ncurves:")[0]
    return _fabric(parse(outlined, str(path)), catalog.plain(name))


def _fabric(document: Document, name: str) -> Fabric:
    found = validated(Fabric, document, grammars=GRAMMARS)
    inside = found.inside and replace(found.inside, name=name)
    across = found.across and replace(found.across, name=name)
    curves = []
    for series in found.series:
        within = inside if series.inside is None else load(series.inside).inside
        if within is None:
            raise UserError(f"{series.inside!r} describes no links inside a node", where=document.where(("curves",)))
        curve = Curve(
            series.kind,
            series.algorithm,
            series.ranks,
            series.nodes,
            knots=tuple(zip(series.sizes, series.times, strict=True)),
            error=series.error,
            inside=within,
            across=across if series.nodes > 1 else None,
            source=f"{name}: {series.source}" if series.source else name,
            choices=found.choices,
        )
        curves.append(curve)
    return replace(found, name=name, inside=inside, across=across, curves=tuple(curves), series=())


def text(fabric: Fabric) -> str:
    """A fabric as the text of its YAML file, identical on every machine."""
    series = tuple(_series(curve, None if fabric.inside else curve.inside.name) for curve in fabric.curves)
    lines = [f"# {escape.terminal(fabric.about.rstrip('.'))}.", *yaml_lines(replace(fabric, series=series))]
    return "\n".join(lines) + "\n"


def _series(curve: Curve, inside: str | None) -> Series:
    """A curve in the form of its file."""
    words: Any = {"kind": curve.kind, "algorithm": curve.algorithm, "source": curve.source, "inside": inside}
    sizes, times = zip(*curve.knots, strict=True)
    return Series(ranks=curve.ranks, nodes=curve.nodes, error=curve.error, sizes=sizes, times=times, **words)
