"""Caches with a limited total weight, from which the least recently used values are dropped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Cache:
    """Values by key, each with a weight; their total weight is at most `most`. A value is never changed once it is kept."""

    def __init__(self, most: int) -> None:
        self.most, self.weight = most, 0
        self.values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.values)

    def __contains__(self, key: Hashable) -> bool:
        return key in self.values

    def of(self, key: Hashable, make: Callable[[], T], weight: int | Callable[[T], int] = 1) -> T:
        """The value of a key, computed if it is not kept. Keys with lists or mappings, as users may write them, are not cached.

        The weight may be a function of the value.
        """
        try:
            hash(key)
        except TypeError:
            return make()
        if key in self.values:
            self.values.move_to_end(key)
            found: T = self.values[key][0]
            return found
        made = make()
        weight = weight(made) if callable(weight) else weight
        if weight <= self.most:
            self.values[key] = made, weight
            self.weight += weight
        while self.weight > self.most:
            _, (_, less) = self.values.popitem(last=False)
            self.weight -= less
        return made
