"""GPUs from files: of the catalog or of one's own, with what was measured of their kernels beside them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ...errors import UserError, shown
from ...hardware.gpu import AT_PEAK, Gpu, Sustained
from .. import catalog
from ..documents import references
from ..documents.document import Document, Place
from ..documents.references import beside, understood
from ..documents.strict import required
from .names import meant
from .schema import GpuSchema, KernelSchema

PLACE: Place = ("cluster", "gpu")
"""Where a GPU stands in a scenario; faults call it so wherever it was named."""
PROFILE: Place = (*PLACE, "profile")


def schema_of(name: str, profile: str = "") -> GpuSchema:
    """The GPU in a file of the catalog or of one's own; with a profile, it is refused if that is of another."""
    words = {"name": name, "profile": profile} if profile else {"name": name}
    found: GpuSchema
    found, _ = understood(Document.of({"cluster": {"gpu": words}}), [(PLACE, resolved)], [profiled], GpuSchema, PLACE)
    return found


def resolved(document: Document, place: Place = PLACE) -> Document:
    """The document with the name of a GPU replaced by the contents of its file."""
    return references.resolved(document, place, "gpus", lambda: required(GpuSchema), meant)


def profiled(document: Document) -> Document:
    """The document with the path of its GPU's profile as seen from where trainsim runs; a file that is not there is refused,
    and one of another GPU: its kernels would be taken for this one's."""
    name, mark = document.at(PROFILE), document.mark(PROFILE)
    if not isinstance(name, str) or not mark:
        return document
    path = beside(name, mark)
    if not catalog.is_file(path):
        raise UserError(_no_profile(path, name), where=document.where(PROFILE), hint="`trainsim calibrate fit` writes one")
    _same_gpu(document, path)
    return document.changed(PROFILE, path, mark)


def _no_profile(path: str, name: str) -> str:
    """Why there is nothing to read under a path."""
    with suppress(OSError, ValueError):
        if Path(path).is_dir():
            return f"cannot read {shown(name)}: it is a folder"
        if Path(path).is_symlink():
            return f"cannot read {shown(name)}: it is a link that leads to no file"
    return f"no file {shown(name)}"


def _same_gpu(document: Document, path: str) -> None:
    """Refuses a profile whose GPU has another name."""
    from .fit_files import owner_of

    measured, name = owner_of(path), document.at((*PLACE, "name"))
    if name is None:
        whose, hint = "a GPU without a name", f"call it what it is: gpu: {{name: {measured}, ...}}"
    else:
        whose = shown(str(name)).strip("'")
        hint = f"give it a profile of {whose}: `trainsim calibrate fit TABLE.csv --gpu {whose}`"
    if name is None or catalog.plain(measured) != catalog.plain(str(name)):
        raise UserError(f"{shown(path)} holds kernels of {measured}, not of {whose}", where=document.where(PROFILE), hint=hint)


def described(schema: GpuSchema) -> Gpu:
    """A GPU as its file describes it: at its peaks, where that says nothing of its kernels."""
    return Gpu(
        name=schema.name,
        memory_bytes=schema.memory,
        memory_bytes_per_s=schema.memory_bandwidth,
        peak_flop_per_s=schema.peak,
        sms=schema.sms,
        tdp_w=schema.tdp,
        kernels=_sustained(schema.kernels) if schema.kernels else AT_PEAK,
        profile=schema.profile,
        profile_hash=_fingerprint(schema.profile) if schema.profile else "",
        site_scalar=schema.site_scalar,
        architecture=schema.architecture,
        clock_hz=schema.clock,
        cache_bytes=schema.cache,
        reserved_bytes=schema.reserved,
    )


def _sustained(k: KernelSchema) -> Sustained:
    return Sustained(k.compute_fraction, k.memory_fraction, k.provenance)


def _fingerprint(profile: str) -> str:
    from .fit_files import fingerprint

    return fingerprint(Path(profile))
