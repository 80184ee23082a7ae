"""From words to numbers: the rates, and the counts of links and of NICs, in what is said of a fabric.

They may stand in any order: "8x200G", "200Gb/s x8", "4 NICs HDR", "dual-rail", "2x400G per GPU", "1.6 Tbps". "B" is bytes and "b"
bits; "G" alone, "GbE", "Gbps", "Gig" and a bare number that NICs are sold by ("RoCE 200") are bits. What looks like a rate and is
none of these, and numbers that contradict each other, are refused: to drop one would be to guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import UserError
from ...units import BITS_PER_BYTE, GB, TB

WORDS = {"single": 1, "one": 1, "dual": 2, "two": 2, "three": 3, "quad": 4, "four": 4, "six": 6, "eight": 8, "sixteen": 16}
NUMBER_WORD = re.compile(rf"\b({'|'.join(WORDS)})(?=[- ])", re.IGNORECASE)
NAMED_RATE = re.compile(r"\b([ehnx]dr)-?(\d{3})(?!\d)(\s*g)?", re.IGNORECASE)
PRODUCT = re.compile(r"(\d+)\s*[x×]\s*(\d+)\s*[x×](?=\s*\d)", re.IGNORECASE)
"""Two ports, or two NICs, for each of so many GPUs."""
GPUS = r"(?:gpus?|[abhlpv]\d|g[bh]\d|mi\d|rtx)"
NOT_OF_LINKS = re.compile(
    r"\b(?:pcie?|gen)[\s\d.gen-]*[x×]\s?(?:16|8|4|2|1)\b(?!\s*g)"
    rf"|\b\d+\s*[x×]?\s*{GPUS}[\w-]*|\b{GPUS}[\w-]*?[- ]\d+\s*gb\b(?!/|ps)|\bmtu\s*\d+|\b(?:19|20)\d\d\b(?!\s*[gt])",
    re.IGNORECASE,
)
"""Lanes of PCIe, GPUs and their memory, packets, years."""
BEFORE = r"(?:(?P<before>[1-9]\d{0,3})\s*(?:links?\s*)?(?:[x×*@]|\bof\b|\bat\b)\s*)?"
AFTER = r"(?:\s*[x×*]\s*(?P<after>[1-9]\d{0,3})\b(?!\s*[GgTt]))?"
PER = r"(?i:\s*(?:/|\(?\b(?:per|an?|each)[- ])\s*(?P<per>gpu|nic|port|link|pair|node|server|host)s?\b)?"
UNIT = r"(?P<scale>[GgTt])(?:(?P<bytes>B(?!E)(?:ytes?)?|bytes?)|[bB](?:its?|E)?|ig(?:E|abits?)?|E)?"
SECOND = r"(?P<second>/s(?:ec)?\b|ps)?(?![A-Za-z])"
RATE = re.compile(rf"(?<![\d.]){BEFORE}(?P<number>\d+(?:\.\d+)?)\s*{UNIT}{SECOND}{AFTER}{PER}")
OTHERS = r"(?!\s*(?:%|[mun]s\b|[kmg]i?b\b|(?:node|rank|run|server|host|iteration)s?\b|k?m\b))"
BARE = re.compile(rf"(?<![\w.-]){BEFORE}(?P<number>25|40|50|(?:1|2|4|8|16|32|64)00)\b(?!\.\d){OTHERS}{AFTER}{PER}", re.IGNORECASE)
LEAST_BARE = 100
"""A smaller number without a unit is a rate only beside a count."""
NOUN = r"(?:[a-z][\w/.]*[- ]\s*){0,3}?(?:nics?|hcas?|rails?|adapters?|cards?|planes?|dpus?|[ehnx]dr|efa|(?:connect|c)x-?\d)\b"
EACH = r"(?P<gpu>\s*(?:/|\b(?:per|an?|each)[- ])\s*gpu)?"
COUNT = re.compile(
    rf"(?<![\w.-])(?P<before>[1-9]\d{{0,3}})(?:\s*[x×*](?!\w*\d)|\s*[x×*]?[- ]?\s*{NOUN}){EACH}"
    r"|(?:(?<!\w)|(?<=dr))[x×]\s*(?P<after>[1-9]\d{0,3})\b(?!\s*gpu)",
    re.IGNORECASE,
)
LEFT = re.compile(
    rf"(?<![\w.-])(?:\d+(?:\.\d+)?\s*(?:[kmgt](?:i?b(?:it)?)?(?:/s|ps)|[gt]b?\b)|[1-9]\d{{2,3}}\b(?!\.\d){OTHERS}(?!\s*[a-z]))",
    re.IGNORECASE,
)
SAME = {"server": "node", "host": "node", "port": "nic"}
SHARED = re.compile(r"(?:/|\b(?:per|for|every|between|by))\s*\d+\s*gpus?\b", re.IGNORECASE)
"""A NIC of several GPUs: how many of these a node has the words of a network do not say."""
HINT = "write it like 8x400Gb/s"


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate in words, Gbit/s, how many there are of it if they say so, and of what: gpu, nic, link, pair, node."""

    words: str
    gbit: float
    count: int | None
    per: str

    @property
    def total_gbit(self) -> float:
        return self.gbit * (self.count or 1)


@dataclass(frozen=True, slots=True)
class Said:
    """What words say of a network: a rate, a number of NICs of each GPU or else of a node, or nothing of these."""

    rate: Rate | None
    count: int | None
    by_gpu: bool


def of_network(text: str) -> Said:
    """The one rate and the one number of NICs in the words of a network. Refuses what is left over or does not agree."""
    text = NAMED_RATE.sub(lambda name: f"{name[1]} {name[2]}{name[3] or 'Gb '}", text)
    text = NUMBER_WORD.sub(lambda word: str(WORDS[word[1].lower()]), text)
    shared = SHARED.search(text)
    if shared:
        raise UserError(f"{shared[0].strip()!r}: that leaves open how many NICs a node has", hint=HINT)
    text = PRODUCT.sub(lambda found: f"{int(found[1]) * int(found[2])}x", NOT_OF_LINKS.sub(";", text))
    found = [*RATE.finditer(text), *BARE.finditer(RATE.sub(";", text))]
    rates = [_rate(match) for match in found if _is_rate(match)]
    rest = BARE.sub(lambda match: ";" if _is_rate(match) else match[0], RATE.sub(";", text))
    counts = [(int(match["before"] or match["after"]), match["gpu"] is not None) for match in COUNT.finditer(rest)]
    left = LEFT.search(COUNT.sub(";", rest))
    if left:
        raise UserError(f"{left[0].strip()!r} looks like a rate, and is none that is known", hint=HINT)
    count, by_gpu = counts[0] if counts else (None, False)
    rate = _one(rates, count)
    numbers = {number for number, _ in counts} | ({rate.count} if rate and rate.count and not by_gpu else set())
    if len(numbers) > 1:
        raise UserError(f"several numbers of NICs: {', '.join(map(str, sorted(numbers)))}", hint=HINT)
    return Said(rate, count, by_gpu)


def of_links(text: str) -> Rate | None:
    """The first rate in what is said of the links in a node: nobody counts these in bits unless the words say so."""
    text = re.sub(r"([gt])b(?=/s)", lambda unit: f"{unit[1]}B", NOT_OF_LINKS.sub(";", text), flags=re.IGNORECASE)
    return next((_rate(match) for match in RATE.finditer(text) if match["second"]), None)


def _is_rate(match: re.Match[str]) -> bool:
    """Whether a number is a rate: by its unit, its size, or the count beside it."""
    words = match.groupdict()
    return bool(words.get("scale") or words["before"] or words["after"]) or int(words["number"]) >= LEAST_BARE


def _rate(match: re.Match[str]) -> Rate:
    words = match.groupdict()
    scale = (BITS_PER_BYTE if words.get("bytes") else 1) * (TB // GB if words.get("scale") in ("T", "t") else 1)
    count = words["before"] or words["after"]
    gbit = positive(float(words["number"]), match[0].strip()) * scale
    per = (words["per"] or "").lower()
    return Rate(match[0].strip(), gbit, int(count) if count else None, SAME.get(per, per))


def _one(rates: Sequence[Rate], count: int | None) -> Rate | None:
    """The first rate that says how many there are of it, or the first; the others must say the same."""
    if not rates:
        return None
    first = next((rate for rate in rates if rate.count), rates[0])
    same = (first.gbit, first.total_gbit, first.gbit * (count or 1), first.gbit / (count or 1))
    for rate in rates:
        if not any(math.isclose(own, other) for own in (rate.gbit, rate.total_gbit) for other in same):
            raise UserError(f"two rates: {first.words!r} and {rate.words!r}", hint="say that of the network between nodes alone")
    return first


def positive(rate: float, words: str) -> float:
    """A rate, unless it is nothing."""
    if not 0 < rate < math.inf:
        raise UserError(f"{words!r} is no rate")
    return rate
