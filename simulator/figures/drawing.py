"""Shared tools of all figures: matplotlib, a figure that shows itself in a notebook, and saving to a file.

matplotlib keeps an index of fonts in a folder of its user. Where that folder is not writable, as in a container, matplotlib uses
a temporary folder and logs two long lines about the folder at every use; without a temporary folder it cannot be imported.
matplotlib is therefore imported here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from .. import escape
from ..errors import UserError
from ..files import atomic


@contextmanager
def _wherever_fonts_are_indexed() -> Iterator[None]:
    """Silences matplotlib's messages about its folders during the import. Raises `UserError` if there is no folder to use."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    except OSError as error:
        raise UserError(f"matplotlib cannot draw: {error}", hint="set MPLCONFIGDIR to a folder that can be written to") from None
    finally:
        log.setLevel(level)


with _wherever_fonts_are_indexed():
    from matplotlib import colormaps as colormaps
    from matplotlib import rc_context
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis as Axis
    from matplotlib.cm import ScalarMappable as ScalarMappable
    from matplotlib.collections import LineCollection as LineCollection
    from matplotlib.collections import PatchCollection as PatchCollection
    from matplotlib.collections import PolyCollection as PolyCollection
    from matplotlib.colors import LinearSegmentedColormap as LinearSegmentedColormap
    from matplotlib.colors import Normalize as Normalize
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure as Figure
    from matplotlib.font_manager import FontProperties, findfont, get_font
    from matplotlib.lines import Line2D as Line2D
    from matplotlib.patches import FancyBboxPatch
    from matplotlib.patches import Patch as Patch
    from matplotlib.patheffects import withStroke as withStroke
    from matplotlib.text import Annotation as Annotation
    from matplotlib.ticker import MaxNLocator as MaxNLocator

FORMATS = {".png": ("Software",), ".svg": ("Date", "Creator"), ".pdf": ("CreationDate", "Producer")}
"""File endings, and the metadata with dates and versions that are left out, so that equal figures give equal files."""
INK, DARK = "#202020", 0.51
"""Colour of text on light colours, and the luminance below which a colour has white text."""


class Drawing(Figure):
    """A figure that a notebook shows as a picture when it is the last value of a cell."""

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.savefig(data, format="png", metadata={"Software": None})
        return data.getvalue()


def legible(text: str) -> str:
    """Text without markup, and with an escape such as `\\u6a21` for every character that the font lacks."""
    font, shown = get_font(findfont(FontProperties())), escape.figure(text)
    return "".join(c if c.isascii() or font.get_char_index(ord(c)) else escape.character(c) for c in shown)


def save(figure: Figure, path: str | Path) -> None:
    """Writes a figure as PNG, SVG or PDF, by the ending of the file name."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise UserError(f"{str(path)!r} is not a kind of picture", hint=f"end the name in {', '.join(FORMATS)}")
    with atomic(path) as temporary:
        data = BytesIO()  # written to memory first: if the file fails, matplotlib would end a PDF a second time, and fail in zlib
        with rc_context({"svg.hashsalt": "trainsim"}):  # otherwise the names of markers are random
            figure.savefig(data, format=suffix[1:], metadata=dict.fromkeys(FORMATS[suffix]))
        temporary.write_bytes(data.getbuffer())


def luminance(colour: str) -> float:
    """How light a colour is, from 0 to 1."""
    red, green, blue = to_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink_on(colour: str) -> str:
    """The colour of text that is legible on a colour: white on dark ones, nearly black on light ones."""
    return "white" if luminance(colour) < DARK else INK


def rounded_box(corner: tuple[float, float], width: float, height: float, radius: float, **style: Any) -> FancyBboxPatch:
    """A box with rounded corners, given by its lower left corner."""
    return FancyBboxPatch(corner, width, height, boxstyle=f"round,pad=0,rounding_size={radius}", **style)
