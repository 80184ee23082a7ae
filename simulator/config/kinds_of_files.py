"""Detection, by keys, of files of another kind than the requested one, such as a scenario in place of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..errors import UserError
from ..fields import Declared, keys
from ..hardware.gpu import Gpu
from ..workload.framework import Framework
from ..workload.model import Model
from .cluster_file import ClusterFile
from .document import Document
from .scenario import ScenarioFile

LEAST_KEYS = 2
"""Fewest known keys by which a file counts as another kind."""


class Kind(NamedTuple):
    """A kind of files."""

    noun: str
    schema: type[Declared]
    use: str
    """The command or field that takes such a file."""


KINDS: Mapping[str, Kind] = {
    "scenarios": Kind("a scenario", ScenarioFile, "`trainsim run` takes it"),
    "clusters": Kind("a cluster", ClusterFile, "`trainsim topology` takes it, and a scenario names it: `cluster: FILE`"),
    "models": Kind("a model", Model, "a scenario names it: `model: FILE`"),
    "frameworks": Kind("a framework", Framework, "a scenario names it: `framework: FILE`"),
    "gpus": Kind("a GPU", Gpu, "a cluster names it: `gpu: FILE`"),
}


def refuse_other_kind(document: Document, wanted: str) -> None:
    """Raises `UserError` for a file of which most keys are unknown to the wanted kind and known to another kind."""
    count = {kind: sum(key in _known(kind) for key in document.data) for kind in KINDS}
    found, most = max(KINDS, key=lambda kind: count[kind]), max(count.values())
    if most >= LEAST_KEYS and 2 * most > len(document.data) > 2 * count[wanted]:
        message = f"this is {KINDS[found].noun}, not {KINDS[wanted].noun}"
        raise UserError(message, where=document.where(()), hint=KINDS[found].use)


def _known(kind: str) -> set[str]:
    """The keys that a file of a kind may have at its top level."""
    schema = KINDS[kind].schema
    return {*keys(schema), *schema.comments, *schema.before}
