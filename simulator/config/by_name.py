"""Models, clusters and frameworks for Python: by name, by path or by their values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, shown
from ..hardware.cluster import Cluster
from ..workload.framework import Framework
from ..workload.model import Model
from . import cluster_file
from .cluster_file import ClusterFile
from .document import Document
from .grammar import BOUNDARY
from .named_parts import resolved, understood
from .reader import validated
from .scenario import CLUSTER, FRAMEWORK, MODEL, paths
from .shipped_fits import GPU
from .trust import Trust


def model(name: str | Path | Mapping[str, Any], **changes: Any) -> Model:
    """A model of the catalog, a YAML file or a mapping; keyword arguments change its fields."""
    return validated(Model, resolved(_document("model", name, changes), MODEL), ("model",))


def cluster(name: str | Path | Mapping[str, Any], *, trust: bool | Trust = False, **changes: Any) -> Cluster:
    """A cluster of the catalog, a YAML file or a mapping; keyword arguments change its fields, such as `nodes=8`.

    With `trust` its file may name code as its shape, which is imported.
    """
    steps = paths(trust if isinstance(trust, Trust) else Trust(trust))
    found, _ = understood(_document("cluster", name, changes), (CLUSTER, GPU), steps, ClusterFile, ("cluster",), BOUNDARY)
    return cluster_file.cluster(found)


def framework(name: str | Path | Mapping[str, Any], **changes: Any) -> Framework:
    """A framework of the catalog, a YAML file or a mapping; keyword arguments change its fields, such as `cuda_graphs=True`."""
    document = resolved(_document("framework", name, changes), FRAMEWORK)
    return validated(Framework, document, ("framework",), BOUNDARY)


def _document(kind: str, name: str | Path | Mapping[str, Any], changes: Mapping[str, Any]) -> Document:
    if not isinstance(name, (str, Path, Mapping)):
        examples = {"model": "llama3-70b", "cluster": "dgx-h100", "framework": "megatron-core-2025"}
        hint = f'{kind}("{examples[kind]}")'
        raise UserError(f"{kind}: {shown(name)} is no name, path or mapping", hint=hint)
    values = dict(name) if isinstance(name, Mapping) else {"name": str(name)}
    return Document.of({kind: {**values, **changes}})
