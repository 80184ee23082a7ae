"""The shipped framework for the software and date that a table of measurements names.

The name of a file in workloads/frameworks is its family and its year: megatron-core-2025 describes Megatron Core of 2025.
"""

from __future__ import annotations

import re

from ..errors import UserError, shown
from .catalog import files
from .suggestions import plain

GENERIC = (
    *((word, ("megatron-lm", "megatron-core")) for word in ("megatron", "megascale")), ("mcore", ("megatron-core",)),
    ("neox", ("megatron-deepspeed",)), ("deepspeed", ("deepspeed",)), ("colossal", ("colossal-ai",)),
    ("composer", ("llm-foundry",)),
    *((word, ("maxtext", "paxml")) for word in ("jax", "xla", "axlearn", "levanter", "praxis", "t5x", "alpa")),
    ("", ("pytorch",)),
)  # fmt: skip
"""Word in the name of a program -> generic families for such programs: what they are built on, or what compiles them. The last
entry is for any software."""
NAME = re.compile(r"(.*?)-?(20\d\d)?")
DATE = re.compile(r"(20\d\d)(?:-(0[1-9]|1[0-2])(?:-\d\d)?)?")


def nearest_profile(profile: str, date: str = "") -> tuple[str, str]:
    """The shipped framework for software that is called `profile`, such as "NeMo 2024", and a note if it is not that framework.

    The note is empty for a shipped name. Otherwise the file of the same family with the nearest year is taken, of two the later;
    without files of the family, the nearest file of a generic family of its kind. The date is a year or "2024-06"; if it is
    empty, the year in `profile` counts, and without one the latest file is taken.
    """
    known = files("frameworks")
    if exact := [name for name in known if plain(name) == plain(profile)]:
        return exact[0], ""
    years = {name: (family, int(year)) for name in known for family, year in [_family_and_year(name)] if year}
    words, year = _family_and_year(profile.strip())
    when, words = _years(date or year), plain(words)
    own = max((family for family, _ in years.values() if words.startswith(plain(family))), key=len, default="")
    families = (own,) if own else next(generic for word, generic in GENERIC if word in words)
    name = min(
        (each for each in years if years[each][0] in families),
        key=lambda each: (abs(years[each][1] + 0.5 - when), -years[each][1], each),
    )
    why = f"the nearest date of {own}" if own else "of the same kind, as none of this family is shipped"
    return name, f"no framework {shown(profile)}{f' of {date}' if date else ''}: {name} is taken, {why}"


def _family_and_year(name: str) -> tuple[str, str]:
    """The name without its year, and the year; empty if the name states none."""
    found = NAME.fullmatch(name)
    return (found[1], found[2] or "") if found else (name, "")


def _years(date: str) -> float:
    """A date in years: the middle of a month, or of a year; without a date, later than any file."""
    if not date:
        return 9999.0
    found = DATE.fullmatch(date.strip())
    if not found:
        raise UserError(f"date {shown(date)}", hint="write a year and a month, such as 2024-06, or a year")
    return int(found[1]) + (int(found[2]) - 0.5 if found[2] else 6) / 12
