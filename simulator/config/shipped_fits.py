"""The fits of kernels that ship, the GPUs that they were measured on, and those that borrow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from ..costs.kernels.estimator import FitLibrary, likeness, same_kernels
from ..costs.kernels.family import Fit
from ..hardware.gpu import AT_PEAK, Gpu
from . import catalog
from .fit_files import folder, load
from .gpu_files import file_of, hashed
from .gpu_names import named

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
