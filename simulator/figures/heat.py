"""The heat of a picture of a cluster: how busy links are, on a scale up to the fullest, and which are waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import escape
from ..hardware.cluster import Cluster
from .palette import MARK, UNLOADED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Array = NDArray[Any]
Load = Mapping[int, float] | Mapping[str, float] | Array
"""Utilisation, 0 to 1, of links by number or by name `source>target`; or that of all links in the order of the wiring."""
HEAT, PALEST = "YlOrRd", 0.12
"""The colours of utilisation, without the palest part of them."""
HALO_POINTS = 2.6
"""Points by which the line under a marked link is wider than the link."""
TICKS, STEPS = 5, (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Heat:
    """The utilisation of every link, and links to mark."""

    load: Array
    """Utilisation of each link; not a number where none is given."""
    marked: Mapping[str, Array] = field(default_factory=dict)
    """Captions of marked links, and the numbers of those links."""

    @cached_property
    def ticks(self) -> list[float]:
        """Round utilisations from nothing to the fullest link or little more, at most to 1."""
        from matplotlib.ticker import MaxNLocator

        fullest = float(np.nanmax(self.load, initial=0.0))
        percent = MaxNLocator(TICKS, steps=STEPS).tick_values(0, 100 * min(1.0, fullest)) if fullest else np.array([0, 100])
        return [float(at) / 100 for at in percent]

    @property
    def top(self) -> float:
        """The upper end of the scale."""
        return self.ticks[-1]

    @cached_property
    def is_marked(self) -> Array:
        """For every link, whether it is marked."""
        marked = np.zeros(len(self.load), dtype=bool)
        for links in self.marked.values():
            marked[links] = True
        return marked

    @property
    def room_in(self) -> float:
        """Height of the explanation below the picture, in inches."""
        return 0.35 + (0.2 + 0.16 * len(self.marked) if self.marked else 0.0)

    def part(self, load: Array) -> Array:
        """Utilisations as fractions of the scale; masked where there is none."""
        parts: Array = np.clip(np.nan_to_num(load) / self.top, 0, 1)
        return parts

    def colours(self, load: Array) -> list[Any]:
        """The colours of some utilisations; pale grey where there is none."""
        hot = _colours()(self.part(load))
        return [UNLOADED if np.isnan(value) else tuple(colour) for value, colour in zip(load.tolist(), hot, strict=True)]

    def explain(self, figure: Figure, axes: Axes) -> None:
        """A bar with the colours of the scale, and below it what is marked."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize
        from matplotlib.lines import Line2D

        bar = figure.colorbar(
            ScalarMappable(Normalize(0, 100 * self.top), _colours()),
            ax=axes,
            location="bottom",
            shrink=0.35,
            aspect=40,
            pad=0.02,
            ticks=[100 * at for at in self.ticks],
            format="{x:g}",
            label="utilisation of a link (%)" + ("" if self.top == 1 else ", scaled to the fullest"),
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8)
        bar.ax.xaxis.label.set_fontsize(9)
        if self.marked:
            handles = [Line2D([], [], color=MARK, linewidth=HALO_POINTS, label=escape.figure(label)) for label in self.marked]
            title = "waited for longest (mean over ranks)"
            figure.legend(handles=handles, loc="outside lower center", frameon=False, fontsize=8, title=title, title_fontsize=8)


def _colours() -> Colormap:
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("heat", colormaps[HEAT](np.linspace(PALEST, 1.0, 256)))


def heat_of(cluster: Cluster, link_load: Load | None, marked: Mapping[str, Array] | None) -> Heat | None:
    """The heat map of given utilisations; None without any."""
    if link_load is None:
        return None
    if isinstance(link_load, np.ndarray):
        return Heat(link_load.astype(float), marked or {})
    load = np.full(cluster.wiring.links, np.nan)
    for link, value in link_load.items():
        load[cluster.link_named(link) if isinstance(link, str) else link] = value
    return Heat(load, marked or {})
