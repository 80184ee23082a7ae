"""Which GPU of the catalog a table of measurements means: "A100-SXM-80", "NVIDIA H100 80GB HBM3", "RTX PRO 6000".

"NVL72" is a rack of the same modules; "NVL" alone is a board of its own, with other memory and less power, and none of those
is in the catalog.
"""

from __future__ import annotations

import re

from ..errors import UserError, did_you_mean, shown
from . import catalog

WORD = re.compile(r"[a-z0-9]+")
NOISE = re.compile(
    r"nvidia|amd|tesla|instinct|quadro|sxm\d?|oam|nvl\d+|hbm\w*|gpu|server|workstation|edition|blackwell|unspecified"
)
CARD = "pcie"
SIZE = re.compile(r"(\d{1,3})(gb)?")


def named(words: str) -> str:
    """The name in the catalog. A board that is not told apart there is the module, or the nearest of as much memory."""
    chip, card, size = _parts(words)
    kin = [other for other in sorted(catalog.files("gpus")) if chip and _parts(other)[0] == chip]
    if not kin:
        hint = did_you_mean(chip, catalog.files("gpus"))
        raise UserError(f"no GPU {shown(words)} in the catalog", hint=hint if chip else "")

    def order(other: str) -> tuple[bool, bool, int]:
        _, its_card, its_size = _parts(other)
        return its_card != card, size not in (0, its_size), -its_size

    return min(kin, key=order)


def _parts(words: str) -> tuple[str, bool, int]:
    """The chip, whether it is on a card, and its gigabytes, 0 if nobody says."""
    found = [word for word in WORD.findall(words.lower()) if not NOISE.fullmatch(word)]
    sizes = [match for match in map(SIZE.fullmatch, found) if match]
    chip = "".join(word for word in found if word != CARD and not SIZE.fullmatch(word))
    return chip, CARD in found, int(sizes[0][1]) if sizes else 0
