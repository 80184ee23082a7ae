"""A matplotlib figure that shows itself in a notebook, without pyplot and without a magic word.

matplotlib keeps an index of fonts in a folder of its user. Where it may not write there, as in a container, it takes a temporary
one and logs two long lines about it at every use; with no temporary folder either it cannot be imported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

from ..errors import UserError


@contextmanager
def _wherever_fonts_are_indexed() -> Iterator[None]:
    """While matplotlib is loaded, it says nothing of its folders; raises `UserError` if it has none."""
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
    from matplotlib.figure import Figure


class Drawing(Figure):
    """A figure; as the last value of a notebook's cell it appears as a picture."""

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.savefig(data, format="png", metadata={"Software": None})
        return data.getvalue()
