"""A note where a framework names a library of attention kernels that nobody measured on the GPU, though another one was."""

from __future__ import annotations

from ..costs.kernels.estimator import Estimator
from ..costs.kernels.fit_choice import LIBRARY_ALIASES

FAMILY = "attention"


def borrowed_attention(estimator: Estimator) -> list[str]:
    """A sentence that names the library whose kernels are used instead, and the measured libraries; none if it was measured."""
    gpu, fits = estimator.gpu, estimator.fits
    library = LIBRARY_ALIASES.get(estimator.options.library, estimator.options.library)
    measured = {fit.library for fit in (*fits.fits.get(gpu.name, ()), *fits.profile) if fit.family == FAMILY}
    usual = {library: alias for alias, library in reversed(LIBRARY_ALIASES.items()) if library in measured}
    if not library or library in measured or not usual or not fits.has(FAMILY, library):
        return []
    others = " and ".join(usual.values())
    owner = estimator.selected(FAMILY).owner
    return [f"framework.attention: {library} was not measured on {gpu.name}, kernels of {owner} replace it; {others} was"]
