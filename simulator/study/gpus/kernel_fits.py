"""The fits of kernels that ship, the GPUs that they were measured on, and those that borrow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from ...costs.shelf import Fit, Shelf, akin, likeness
from ...hardware.gpu import AT_PEAK, Gpu
from .. import catalog
from .fit_files import folder, load
from .gpu_files import file_of, hashed
from .names import named

AS_IT_SHIPS = "as it ships"
"""Behind the name of a GPU: fits that ship for it, beside those of somebody's own machine."""


@cache
def shelf() -> Shelf:
    """Every fit that ships."""
    return shelf_of(dict(load(path) for path in sorted(folder().glob("*.yaml"))))


def shelf_for(owner: Gpu) -> Shelf:
    """Every fit that ships, behind those of a GPU's own profile, which speak for the kernels that they are of."""
    if not owner.profile:
        return shelf()
    return overlaid(owner, owner.name, load(Path(owner.profile))[1])


def overlaid(owner: Gpu, measured: str, fits: Sequence[Fit]) -> Shelf:
    """Every fit that ships, behind fits of a GPU of the name `measured`. If that is `owner` itself, what ships for such GPUs
    is that of a sister: it was not measured on this machine."""
    shipped = shelf()
    if measured != owner.name:
        kinds = [(fit.family, fit.dtype) for fit in fits]
        rest = [fit for fit in shipped.fits.get(measured, ()) if (fit.family, fit.dtype) not in kinds]
        return Shelf({**shipped.fits, measured: (*fits, *rest)}, {**shipped.gpus, measured: gpu(measured)})
    found, gpus = {**shipped.fits, measured: fits}, {**shipped.gpus, measured: owner}
    if measured in shipped.fits:
        sister = f"{measured} {AS_IT_SHIPS}"
        found[sister], gpus[sister] = shipped.fits[measured], shipped.gpus[measured]
    return Shelf(found, gpus, tuple(fits))


def shelf_of(fits: Mapping[str, tuple[Fit, ...]]) -> Shelf:
    """Fits, with the GPUs of the catalog that they were measured on."""
    return Shelf(fits, {name: gpu(name) for name in fits})


def like(one: Gpu) -> Gpu:
    """The measured GPU that is most like one: it runs the same kernels, and its multiprocessors have nearest the same peak."""

    def far(other: Gpu) -> tuple[bool, float]:
        return not akin(one, other), abs(likeness(other) - likeness(one))

    return min(shelf().gpus.values(), key=far)


def gpu(name: str, profile: str = "") -> Gpu:
    """A GPU of the catalog by any of its names, or of a file; with a profile, it is refused if that is of another."""
    if profile or catalog.is_path(name):
        return complete(file_of(name if catalog.is_path(name) else named(name), profile))
    return _of_the_catalog(name)


@cache
def _of_the_catalog(words: str) -> Gpu:
    """Files of the catalog do not change while something runs; somebody's own may, and are read each time."""
    return complete(file_of(named(words)))


def complete(described: Gpu) -> Gpu:
    """A GPU of a file; what that does not say of its kernels is taken from the measured GPU that is most like it."""
    made = hashed(described)
    return replace(made, kernels=replace(like(made).kernels, provenance="transferred")) if made.kernels is AT_PEAK else made
