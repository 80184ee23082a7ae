"""GPUs from files: of the catalog or of one's own, with what was measured of their kernels beside them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..errors import UserError, shown
from ..fields import required
from ..hardware.gpu import Gpu
from . import catalog, file_references
from .document import Document, Place
from .file_references import beside, understood
from .fit_files import fingerprint, owner_of
from .gpu_names import meant

PLACE: Place = ("cluster", "gpu")
"""Where a GPU stands in a scenario; faults call it so wherever it was named."""
PROFILE: Place = (*PLACE, "profile")


def file_of(name: str, profile: str = "") -> Gpu:
    """The GPU as a file of the catalog or of one's own describes it; refused with a profile of another GPU."""
    words = {"name": name, "profile": profile} if profile else {"name": name}
    found: Gpu
    found, _ = understood(Document.of({"cluster": {"gpu": words}}), [(PLACE, resolved)], [profiled], Gpu, PLACE)
    return found


def resolved(document: Document, place: Place = PLACE) -> Document:
    """The document with the name of a GPU replaced by the contents of its file."""
    return file_references.resolved(document, place, "gpus", required(Gpu), meant)


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

    measured, name = owner_of(path), document.at((*PLACE, "name"))
    if name is None:
        whose, hint = "a GPU without a name", f"call it what it is: gpu: {{name: {measured}, ...}}"
    else:
        whose = shown(str(name)).strip("'")
        hint = f"give it a profile of {whose}: `trainsim calibrate fit TABLE.csv --gpu {whose}`"
    if name is None or catalog.plain(measured) != catalog.plain(str(name)):
        raise UserError(f"{shown(path)} holds kernels of {measured}, not of {whose}", where=document.where(PROFILE), hint=hint)


def hashed(described: Gpu) -> Gpu:
    """A GPU with the hash of its profile, if it has one."""
    if not described.profile:
        return described

    return replace(described, profile_hash=fingerprint(Path(described.profile)))
