"""Files of another kind than the one that was asked for, such as a scenario in place of a cluster, told by their keys."""

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
"""Fewest keys by which a file is taken for another kind."""


class Kind(NamedTuple):
    """A kind of files."""

    noun: str
    schema: type[Declared]
    use: str
    """What takes such a file."""


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
    """The keys that a file of a kind may have at its top."""
    schema = KINDS[kind].schema
    return {*keys(schema), *schema.comments, *schema.before}
