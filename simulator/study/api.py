"""The Python front door: models, clusters and scenarios by name, by path or by their values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, shown
from ..hardware.cluster import Cluster
from ..workload.model import Model
from .document import Document
from .jobs import Tenancy
from .load import from_mapping, resolved
from .scenario import Scenario


def model(name: str | Path | Mapping[str, Any], **changes: Any) -> Model:
    """A model of the catalog, a YAML file or a mapping; keyword arguments change its fields."""
    from . import convert
    from .findings import validated
    from .schema import ModelSchema

    document = resolved(_document("model", name, changes), ("model",), "models")
    return convert.model(validated(ModelSchema, document, ("model",)))


def cluster(name: str | Path | Mapping[str, Any], **changes: Any) -> Cluster:
    """A cluster of the catalog, a YAML file or a mapping; keyword arguments change its fields, such as `nodes=8`."""
    from . import convert
    from .findings import validated
    from .machines import ClusterSchema

    document = resolved(_document("cluster", name, changes), ("cluster",), "clusters")
    document = resolved(document, ("cluster", "gpu"), "gpus")
    return convert.cluster(validated(ClusterSchema, document, ("cluster",)))


def scenario(data: Mapping[str, Any]) -> Scenario | Tenancy:
    """A scenario (or several jobs on one cluster) from a mapping such as a YAML file holds."""
    if not isinstance(data, Mapping):
        raise UserError(f"a scenario is a mapping, not {shown(data)}", hint='a file is read by load("scenario.yaml")')
    return from_mapping(data)


def _document(kind: str, name: str | Path | Mapping[str, Any], changes: Mapping[str, Any]) -> Document:
    if not isinstance(name, (str, Path, Mapping)):
        hint = f'{kind}("{"llama3-70b" if kind == "model" else "dgx-h100"}")'
        raise UserError(f"{kind}: {shown(name)} is no name, path or mapping", hint=hint)
    values = dict(name) if isinstance(name, Mapping) else {"name": str(name)}
    return Document.of({kind: {**values, **changes}})
