"""The Python front door: models, clusters and scenarios by name, by path or by their values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError, shown
from ..documents.document import Document
from .code import Trust
from .load import from_mapping
from .references import NAMED, resolved, understood

if TYPE_CHECKING:
    from ...hardware.cluster import Cluster
    from ...workload.framework import Framework
    from ...workload.model import Model
    from .scenario import Scenario
    from .tenancy import Tenancy


def model(name: str | Path | Mapping[str, Any], **changes: Any) -> Model:
    """A model of the catalog, a YAML file or a mapping; keyword arguments change its fields."""
    from ..documents.checked import validated
    from . import convert
    from .schema import ModelSchema

    document = resolved(_document("model", name, changes), ("model",), "models")
    return convert.model(validated(ModelSchema, document, ("model",)))


def cluster(name: str | Path | Mapping[str, Any], *, trust: bool | Trust = False, **changes: Any) -> Cluster:
    """A cluster of the catalog, a YAML file or a mapping; keyword arguments change its fields, such as `nodes=8`.

    With `trust` its file may name code as its shape, which is imported.
    """
    from . import convert_cluster
    from .clusters import ClusterSchema

    names = [(place, kind) for place, kind in NAMED if place[0] == "cluster"]
    schema, _ = understood(
        _document("cluster", name, changes),
        names,
        ClusterSchema,
        ("cluster",),
        trust=trust if isinstance(trust, Trust) else Trust(trust),
    )
    return convert_cluster.cluster(schema)


def framework(name: str | Path | Mapping[str, Any], **changes: Any) -> Framework:
    """A framework of the catalog, a YAML file or a mapping; keyword arguments change its fields, such as `cuda_graphs=True`."""
    from ..documents.checked import validated
    from . import convert
    from .software import FrameworkSchema

    document = resolved(_document("framework", name, changes), ("framework",), "frameworks")
    return convert.framework(validated(FrameworkSchema, document, ("framework",)))


def scenario(data: Mapping[str, Any], *, trust: bool = False) -> Scenario | Tenancy:
    """A scenario (or several jobs on one cluster) from a mapping such as a YAML file holds.

    With `trust` the files that it names may name code, which is imported.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"a scenario is a mapping, not {shown(data)}", hint='a file is read by load("scenario.yaml")')
    return from_mapping(data, trust=trust)


def _document(kind: str, name: str | Path | Mapping[str, Any], changes: Mapping[str, Any]) -> Document:
    if not isinstance(name, (str, Path, Mapping)):
        examples = {"model": "llama3-70b", "cluster": "dgx-h100", "framework": "megatron-core-2025"}
        hint = f'{kind}("{examples[kind]}")'
        raise UserError(f"{kind}: {shown(name)} is no name, path or mapping", hint=hint)
    values = dict(name) if isinstance(name, Mapping) else {"name": str(name)}
    return Document.of({kind: {**values, **changes}})
