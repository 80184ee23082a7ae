"""Loading of scenarios, models, clusters and frameworks from files, names or values, with settings, checked together.

A scenario may extend another scenario and be changed by `--set`. Its model, cluster and GPU may be names, paths or mappings, and
a mapping with a `name` starts from the file of that name. A relative path is resolved beside the file that names it, then in the
current folder. All faults are reported together, in the order of their places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import MOST_SHOWN, Fault, UserError, described, shown
from ..hardware.cluster import Cluster
from ..workload.framework import Framework
from ..workload.model import Model
from . import catalog, cluster_file
from .cluster_file import ClusterFile
from .document import Document, Mark, beside, parse, place_of, placed, read, scalar
from .kinds_of_files import refuse_other_kind
from .named_parts import Trust, located, names_a_file, read_or_import, read_with_parts, resolved
from .reader import validated
from .scenario import CLUSTER, FRAMEWORK, GRAMMARS, MODEL, Scenario, from_document
from .shipped_fits import GPU, profiled
from .tenancy import Tenancy, tenancy


def load(path: str | Path, settings: Iterable[str] = (), *, trust: bool = False) -> Scenario | Tenancy:
    """The scenario in a file (or of a name in the catalog), changed by settings such as "plan.tp=4".

    Code that files name (`file.py`, `file.py:name`, `module:name`) is refused, unless `trust` allows the import.
    """
    return _read_scenario(document_of(path, settings), Trust(trust))


def document_of(path: str | Path, settings: Iterable[str] = ()) -> Document:
    """The document of a scenario in a file (or of a name in the catalog) with its settings, before its names are resolved."""
    if not isinstance(path, (str, Path)) or not path:
        if isinstance(path, (Scenario, Tenancy)):
            hint = 'give its file, its name or its mapping itself, such as search("scenario.yaml")'
            raise UserError("a loaded scenario no longer has the fields of its file, which are needed to vary them", hint=hint)
        hint = "a YAML file, or a name of `trainsim catalog scenarios`" if path == "" else 'load("scenario.yaml")'
        raise UserError(f"{shown(path)} is neither a file nor a name", hint=hint)
    name = str(path)
    file = Path(name) if isinstance(path, Path) or catalog.is_file(name) else catalog.find("scenarios", name)
    if file.suffix == ".py":
        raise UserError(f"{name} is a script in Python, not a scenario in YAML", hint=f"python {name}")
    document = read_or_import(file, "scenarios")
    refuse_other_kind(document, "scenarios")
    return _with_settings(_extended(document, (file.resolve(),)), settings)


def scenario(data: Mapping[str, Any], *, trust: bool = False) -> Scenario | Tenancy:
    """A scenario (or several jobs on one cluster) from a mapping such as a YAML file holds.

    With `trust` the files that it names may name code, which is imported.
    """
    return _read_scenario(document_with(data), Trust(trust))


def document_with(data: Mapping[str, Any], settings: Iterable[str] = ()) -> Document:
    """The document of a mapping such as a YAML file holds, with its settings, before its names are resolved."""
    if not isinstance(data, Mapping):
        raise UserError(f"a scenario is a mapping, not {shown(data)}", hint='a file is read by load("scenario.yaml")')
    return _with_settings(_extended(Document.of(data), ()), settings)


def _read_scenario(document: Document, trust: Trust) -> Scenario | Tenancy:
    """The scenario of one job, or the tenancy of several jobs that share a cluster."""
    return tenancy(document, trust) if "jobs" in document.data else from_document(document, trust)


def _extended(document: Document, seen: tuple[Path, ...]) -> Document:
    """A document overlaid on the document that it extends. Raises `UserError` for a chain of files that extends itself."""
    if "extends" not in document.data:
        return document
    base, mark = document.at(("extends",)), document.mark(("extends",))
    with placed(document.where(("extends",))):
        if not isinstance(base, str) or not base.strip():
            raise UserError(f"extends: {shown(base)} is neither a file nor a name", hint="extends: base.yaml")
        path = beside(base, mark)
        file = Path(path) if catalog.is_path(base) or catalog.is_file(path) else catalog.find("scenarios", base)
        if file.resolve() in seen:
            raise UserError(f"extends: {shown(base)} leads back to this file", hint="extend a file that does not extend this one")
        return _extended(read(file), (*seen, file.resolve())).overlaid(document.without(("extends",)))


def list_of_settings(settings: Iterable[str]) -> tuple[str, ...]:
    """Several settings. Raises `UserError` for anything else, such as one setting by itself."""
    if isinstance(settings, (str, bytes, Mapping)) or not isinstance(settings, Iterable):
        hint = f"[{shown(settings)}]" if isinstance(settings, str) else '["plan.tp=4", "job.global_batch=64"]'
        raise UserError(f"settings is {described(settings)}, not a list of settings", hint=f"write it like {hint}")
    return tuple(settings)


def _with_settings(document: Document, settings: Iterable[str]) -> Document:
    faults: list[Fault] = []
    for setting in list_of_settings(settings):
        try:
            document = _set(document, setting)
        except UserError as error:
            faults += error.faults
    if faults:
        raise UserError(faults=faults)
    return document


def _set(document: Document, setting: str) -> Document:
    """The document with one field changed by a setting in the form of `--set`."""
    name, equals, text = setting.partition("=") if isinstance(setting, str) else ("", "", "")
    parts, text = [part.strip() for part in name.split(".")], text.strip()
    if not equals or not all(parts):
        raise UserError(f"--set {described(setting)} sets nothing", hint="write it like --set plan.tp=4")
    origin = f"--set {name.strip()}"
    mark = Mark(f"{origin}={text if len(text) <= MOST_SHOWN else shown(text)}")
    try:
        value = typed(text, origin)
    except UserError as error:  # its lines and columns are not those of the typed text
        raise UserError(faults=[replace(fault, where=str(mark)) for fault in error.faults]) from None
    with placed(origin):
        return document.changed(place_of(".".join(parts)), value, mark)


def typed(text: str, origin: str) -> Any:
    """The value that a text on the command line stands for: a scalar as in a file, or a list, mapping or quoted text of YAML."""
    return parse(f"value: {text}", origin).data["value"] if text[:1] in tuple("[{\"'") else scalar(text)


def model(name: str | Path | Mapping[str, Any], **changes: Any) -> Model:
    """A model of the catalog, a YAML file or a mapping; keyword arguments change its fields."""
    return validated(Model, resolved(_document("model", name, changes), MODEL), ("model",))


def cluster(name: str | Path | Mapping[str, Any], *, trust: bool | Trust = False, **changes: Any) -> Cluster:
    """A cluster of the catalog, a YAML file or a mapping; keyword arguments change its fields, such as `nodes=8`.

    With `trust` its file may name code as its shape, which is imported.
    """
    steps = (located, (trust if isinstance(trust, Trust) else Trust(trust)).admit, profiled)
    found, _ = read_with_parts(_document("cluster", name, changes), (CLUSTER, GPU), steps, ClusterFile, ("cluster",), GRAMMARS)
    return cluster_file.cluster(found)


def framework(name: str | Path | Mapping[str, Any], **changes: Any) -> Framework:
    """A framework of the catalog, a YAML file or a mapping; keyword arguments change its fields, such as `cuda_graphs=True`."""
    document = resolved(_document("framework", name, changes), FRAMEWORK)
    return validated(Framework, document, ("framework",), GRAMMARS)


def _is_regular(name: str) -> bool:
    """Whether a file can be read more than once, as a pipe cannot."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def _document(kind: str, name: str | Path | Mapping[str, Any], changes: Mapping[str, Any]) -> Document:
    if not isinstance(name, (str, Path, Mapping)):
        examples = {"model": "llama3-70b", "cluster": "dgx-h100", "framework": "megatron-core-2025"}
        hint = f'{kind}("{examples[kind]}")'
        raise UserError(f"{kind}: {shown(name)} is not a name, path or mapping", hint=hint)
    if not isinstance(name, Mapping) and names_a_file(f"{kind}s", str(name), str(name)) and _is_regular(str(name)):
        refuse_other_kind(read_or_import(Path(name), f"{kind}s"), f"{kind}s")
    values = dict(name) if isinstance(name, Mapping) else {"name": str(name)}
    return Document.of({kind: {**values, **changes}})
