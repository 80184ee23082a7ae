"""Shards of a grid or of a space: every n-th point, for independent processes that each write their own file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError, shown

MOST_SHARDS = 10_000
HINT = "write it like --shard 3/8: the third of eight"


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several equal parts."""

    number: int = 1
    """Counted from 1."""
    of: int = 1

    def numbers(self, points: int) -> range:
        """The numbers of its points. Neighbouring points are in different shards, because they take about equally long."""
        return range(self.number - 1, points, self.of)

    def file(self, path: str | Path) -> Path:
        """The file of this shard, beside the file of the whole: for a.sqlite it is, for example, a.3-of-8.sqlite."""
        path = Path(path)
        return path if self.of == 1 else path.with_name(f"{path.stem}.{self.number}-of-{self.of}{path.suffix}")


WHOLE = Shard()


def shard_of(text: str) -> Shard:
    """The shard that a text such as 3/8 names."""
    number, _, of = (part.strip() for part in text.partition("/"))
    if not all(part.isascii() and part.isdecimal() and len(part) <= len(str(MOST_SHARDS)) for part in (number, of)):
        raise UserError(f"--shard: {shown(text)} is not a shard", hint=HINT)
    shard = Shard(int(number), int(of))
    if not 1 <= shard.number <= shard.of <= MOST_SHARDS:
        legal = min(max(1, shard.of), MOST_SHARDS)
        nearest = f"nearest legal: --shard {min(max(1, shard.number), legal)}/{legal}"
        raise UserError(f"--shard: there is no shard {shard.number} of {shard.of}", hint=nearest)
    return shard


def shard_files(path: str | Path) -> list[Path]:
    """The files of all shards of a whole. Raises `UserError` if one is missing, or if there are none."""
    path = Path(path)
    found = dict(_found(path))
    if not found:
        raise UserError(f"--merge: no shard of {shown(str(path))} is there", hint=f"{Shard(1, 8).file(path).name} would be one")
    counts = sorted({shard.of for shard in found})
    if len(counts) > 1:
        raise UserError(
            f"--merge: shards of {' and of '.join(map(str, counts))} exist side by side", hint="remove those of another run"
        )
    wanted = [Shard(number, counts[0]) for number in range(1, counts[0] + 1)]
    if missing := [shard for shard in wanted if shard not in found]:
        first = missing[0]
        message = f"--merge: {len(missing)} of {first.of} shards are missing, the first of them {first.file(path).name}"
        raise UserError(message, hint=f"run it: --shard {first.number}/{first.of}")
    return [found[shard] for shard in wanted]


def _found(path: Path) -> Iterator[tuple[Shard, Path]]:
    """The existing shard files of a whole, found by their names alone."""
    for file in sorted(path.parent.iterdir()) if path.parent.is_dir() else ():
        words = file.name.removeprefix(f"{path.stem}.").removesuffix(path.suffix).split("-of-")
        if len(words) == 2 and all(word.isascii() and word.isdecimal() for word in words):
            shard = Shard(*map(int, words))
            if shard.file(path).name == file.name:
                yield shard, file
