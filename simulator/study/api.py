"""The Python front door: models, clusters and scenarios by name, by path or by their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..hardware.cluster import Cluster
from ..workload.model import Model
from . import convert
from .load import from_mapping, resolved
from .scenario import Scenario
from .schema import ClusterSchema, ModelSchema, validated
from .source import Document


def model(name: str | Mapping[str, Any], **changes: Any) -> Model:
    """A model of the catalog, a YAML file or a mapping; keyword arguments change its fields."""
    document = resolved(Document({"model": _mapping(name) | changes}), ("model",), "models")
    return convert.model(validated(ModelSchema, Document(document.data["model"]), ("model",)))


def cluster(name: str | Mapping[str, Any], **changes: Any) -> Cluster:
    """A cluster of the catalog, a YAML file or a mapping; keyword arguments change its fields, such as `nodes=8`."""
    document = resolved(Document({"cluster": _mapping(name) | changes}), ("cluster",), "clusters")
    document = resolved(document, ("cluster", "gpu"), "gpus")
    return convert.cluster(validated(ClusterSchema, Document(document.data["cluster"]), ("cluster",)))


def scenario(data: Mapping[str, Any]) -> Scenario:
    """A scenario from a mapping such as a YAML file holds."""
    return from_mapping(data)


def _mapping(name: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name} if isinstance(name, str) else dict(name)
