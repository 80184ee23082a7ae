"""GPUs from files, of the catalog or of one's own, and the fits that ship for them: measured, or transferred from another GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from ..costs.kernels.estimator import FitLibrary
from ..costs.kernels.family import Fit
from ..costs.kernels.gpu_model import likeness, same_kernels
from ..errors import UserError, shown
from ..hardware.gpu import AT_PEAK, Gpu
from . import catalog
from .catalog import gpu_meant, gpu_named
from .document import Document, Place, beside
from .fit_files import fingerprint, folder, load
from .named_parts import Named, understood

GPU = Named(("cluster", "gpu"), "gpus", Gpu, gpu_meant)
"""Where a GPU stands in a scenario; faults call it so wherever it was named."""
PROFILE: Place = (*GPU.place, "profile")
AS_IT_SHIPS = "as it ships"
"""Behind the name of a GPU: fits that ship for it, beside those of somebody's own machine."""


@cache
def shipped() -> FitLibrary:
    """Every fit that ships."""
    return fits_of(dict(load(path) for path in sorted(folder().glob("*.yaml"))))


def fits_for(owner: Gpu) -> FitLibrary:
    """Every fit that ships, behind those of a GPU's own profile, which go first for the kernels that they are of."""
    if not owner.profile:
        return shipped()
    return overlaid(owner, owner.name, load(Path(owner.profile))[1])


def overlaid(owner: Gpu, measured: str, fits: Sequence[Fit]) -> FitLibrary:
    """Every fit that ships, behind fits of a GPU of the name `measured`. If that is `owner` itself, what ships for such GPUs
    is that of a sister: it was not measured on this machine."""
    fit_library = shipped()
    if measured != owner.name:
        kinds = [(fit.family, fit.dtype) for fit in fits]
        rest = [fit for fit in fit_library.fits.get(measured, ()) if (fit.family, fit.dtype) not in kinds]
        return FitLibrary({**fit_library.fits, measured: (*fits, *rest)}, {**fit_library.gpus, measured: gpu(measured)})
    found, gpus = {**fit_library.fits, measured: fits}, {**fit_library.gpus, measured: owner}
    if measured in fit_library.fits:
        sister = f"{measured} {AS_IT_SHIPS}"
        found[sister], gpus[sister] = fit_library.fits[measured], fit_library.gpus[measured]
    return FitLibrary(found, gpus, tuple(fits))


def fits_of(fits: Mapping[str, tuple[Fit, ...]]) -> FitLibrary:
    """Fits, with the GPUs of the catalog that they were measured on."""
    return FitLibrary(fits, {name: gpu(name) for name in fits})


def like(one: Gpu) -> Gpu:
    """The measured GPU that is most like one: it runs the same kernels, and its multiprocessors have nearest the same peak."""

    def far(other: Gpu) -> tuple[bool, float]:
        return not same_kernels(one, other), abs(likeness(other) - likeness(one))

    return min(shipped().gpus.values(), key=far)


def gpu(name: str, profile: str = "") -> Gpu:
    """A GPU of the catalog by any of its names, or of a file; with a profile, it is refused if that is of another."""
    if profile or catalog.is_path(name):
        return complete(file_of(name if catalog.is_path(name) else gpu_named(name), profile))
    return _of_the_catalog(name)


@cache
def _of_the_catalog(words: str) -> Gpu:
    """Files of the catalog do not change while something runs; somebody's own may, and are read each time."""
    return complete(file_of(gpu_named(words)))


def complete(described: Gpu) -> Gpu:
    """A GPU of a file; what that does not say of its kernels is taken from the measured GPU that is most like it."""
    made = hashed(described)
    return replace(made, kernels=replace(like(made).kernels, provenance="transferred")) if made.kernels is AT_PEAK else made


def file_of(name: str, profile: str = "") -> Gpu:
    """The GPU as a file of the catalog or of one's own describes it; refused with a profile of another GPU."""
    words = {"name": name, "profile": profile} if profile else {"name": name}
    found: Gpu
    found, _ = understood(Document.of({"cluster": {"gpu": words}}), [GPU], [profiled], Gpu, GPU.place)
    return found


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
    measured, name = load(Path(path))[0], document.at((*GPU.place, "name"))
    if name is None:
        owner, hint = "a GPU without a name", f"call it what it is: gpu: {{name: {measured}, ...}}"
    else:
        owner = shown(str(name)).strip("'")
        hint = f"give it a profile of {owner}: `trainsim calibrate fit TABLE.csv --gpu {owner}`"
    if name is None or catalog.plain(measured) != catalog.plain(str(name)):
        raise UserError(f"{shown(path)} holds kernels of {measured}, not of {owner}", where=document.where(PROFILE), hint=hint)


def hashed(described: Gpu) -> Gpu:
    """A GPU with the hash of its profile, if it has one."""
    return replace(described, profile_hash=fingerprint(Path(described.profile))) if described.profile else described
