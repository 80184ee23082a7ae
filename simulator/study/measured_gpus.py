"""Which GPU of the catalog a table of measurements means: "A100-SXM-80", "NVIDIA H100 80GB HBM3", "RTX PRO 6000"."""

from __future__ import annotations

import re

from ..errors import UserError, shown
from . import catalog

NOISE = re.compile(r"\b(nvidia|tesla|sxm\d?|hbm\d\w?|unspecified|server|workstation|edition|blackwell|gpu)\b")
SIZED = re.compile(r"-(\d+)$")
UNSIZED = re.compile(r"-\d+(gb)?$")


def named(words: str) -> str:
    """The name in the catalog. A board that is not told apart there is the module of the same memory."""
    name = re.sub(r"-+", "-", catalog.plain(NOISE.sub("", words.lower().replace(" ", "-")))).strip("-")
    known = sorted(catalog.files("gpus"))
    sized = SIZED.sub(r"-\1gb", name)
    for candidate in (name, sized, sized.replace("-pcie", ""), UNSIZED.sub("", name)):
        if candidate in known:
            return candidate
    kin = [other for other in known if other.startswith(f"{name}-") and name]
    if not kin:
        raise UserError(f"no GPU {shown(words)} in the catalog")
    return max(kin, key=lambda other: (not other.count("pcie"), other))
