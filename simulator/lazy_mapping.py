"""Mappings whose values are computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class LazyMapping(Mapping[str, T]):
    """A mapping of some names, whose values are computed on demand, each once."""

    def __init__(self, names: Iterable[str], make: Callable[[str], T]) -> None:
        self.made: dict[str, T | None] = dict.fromkeys(names)
        self.make = make

    def __getitem__(self, name: str) -> T:
        found = self.made[name]
        if found is None:
            found = self.made[name] = self.make(name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self.made

    def __iter__(self) -> Iterator[str]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)
