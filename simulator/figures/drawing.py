"""A matplotlib figure that shows itself in a notebook, without pyplot and without a magic word."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class Drawing(Figure):
    """A figure; as the last value of a notebook's cell it appears as a picture."""

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.savefig(data, format="png", metadata={"Software": None})
        return data.getvalue()
