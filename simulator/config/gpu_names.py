"""Which GPU of the catalog a table of measurements means: "A100-SXM-80", "NVIDIA H100 80GB HBM3", "RTX PRO 6000".

"BSE" is the Blackwell Server Edition. "NVL72" is a rack of the same modules; "NVL" alone is a board of its own, with other
memory and less power.
"""

from __future__ import annotations

import re

from ..errors import ALIKE, UserError, did_you_mean, either, nearest, shown
from . import catalog

WORD = re.compile(r"[a-z0-9]+")
NOISE = re.compile(
    r"nvidia|amd|tesla|instinct|quadro|sxm\d?|oam|nvl\d+|hbm\w*|gpu|server|workstation|edition|bse|blackwell|unspecified"
)
CARD = "pcie"
SIZE = re.compile(r"(\d{1,3})(gb)?")


def named(words: str) -> str:
    """The name in the catalog. A board that is not told apart there is the module, or the nearest of as much memory."""
    chip, card, size = _parts(words)
    kin = _kin(chip)
    if not kin:
        raise UserError(f"no GPU {shown(words)}", hint=_near(words, chip))

    def order(other: str) -> tuple[bool, bool, int]:
        _, its_card, its_size = _parts(other)
        return its_card != card, size not in (0, its_size), -its_size

    return min(kin, key=order)


def meant(words: str) -> str:
    """The same where a GPU's memory counts: one of as much as the words say, and none if they leave it open."""
    name, size = named(words), _parts(words)[2]
    chip, card, its_size = _parts(name)
    alike = [other for other in _kin(chip) if _parts(other)[1] == card]
    if (size not in (0, its_size) and its_size) or (not size and len(alike) > 1):
        raise UserError(f"no GPU {shown(words)}", hint=f"did you mean {either(alike)}?")
    return name


def _near(words: str, chip: str) -> str:
    """The hint for a GPU that is not there: a file of that name, a chip that is written like it, or all that there are."""
    file, known = f"{words}.yaml", catalog.files("gpus")
    if catalog.is_file(file):
        return f"did you mean {file!r}?"
    return did_you_mean(chip if nearest(chip, known, cutoff=ALIKE) else "", known)


def _kin(chip: str) -> list[str]:
    """The GPUs of the catalog that have this chip."""
    return [other for other in sorted(catalog.files("gpus")) if chip and _parts(other)[0] == chip]


def _parts(words: str) -> tuple[str, bool, int]:
    """The chip, whether it is on a card, and its gigabytes, 0 if nobody says."""
    found = [word for word in WORD.findall(words.lower()) if not NOISE.fullmatch(word)]
    sizes = [match for match in map(SIZE.fullmatch, found) if match]
    chip = "".join(word for word in found if word != CARD and not SIZE.fullmatch(word))
    return chip, CARD in found, int(sizes[0][1]) if sizes else 0
