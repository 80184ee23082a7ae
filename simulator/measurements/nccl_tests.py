"""Reading the output of nccl-tests: its text table, and its JSON.

The table names the program (`all_reduce_perf`) in a comment or not at all, lists one `Rank` per line with host and device, and
then gives size, count, type, redop, root and twice (out of place, in place) time, algbw, busbw and errors. The collective is
found from the program's name, otherwise from the name of the file, otherwise from redop and the ratio of bus to algorithm
bandwidth if these determine one collective; a file may hold several tables. Prefixes that mpirun writes before each line are
removed. Measurements whose results nccl-tests found wrong are ignored.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..costs.collectives.theory import KINDS, Call
from ..errors import Fault, UserError, did_you_mean, either, in_one_go, shown
from ..files import check_count, decoded, parsed_json, read_bounded
from ..units import US_PER_S

NAMED = r"(all[_-]?reduce|reduce[_-]?scatter|all[_-]?gather|all[_-]?to[_-]?all|sendrecv|broadcast)"
TIMES = 4
"""Columns of one measurement: time, algbw, busbw, errors. A line has two measurements: out of place, then in place."""
OPERANDS = (3, 5)
"""Columns before the measurements: size, count and type; later versions also have redop and root."""
PREFIX = re.compile(r"^(\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) )?(\[\d+,\d+\]<std\w+>:|\d+:(?=\s))?", re.MULTILINE)
"""Prefix of each line from kubectl logs --timestamps, from mpirun --tag-output, or from srun --label."""
FILE, PROGRAM = re.compile(NAMED, re.IGNORECASE), re.compile(f"{NAMED}_perf", re.IGNORECASE)
"""The name of a collective in the name of a file, and in the name of a program."""
OTHER_PROGRAM = re.compile(r"\b(reduce|gather|scatter|hypercube|alltoallv)_perf\b", re.IGNORECASE)
"""The other programs of nccl-tests and rccl-tests, whose collectives are not modelled."""
HEADER = re.compile(r"^#\s*(nccl-tests version|nThread|Using devices)|^(?!.*concluded).*_perf\b")
"""A line of the header of a run. The end of such a line may also name the program."""
RANK = re.compile(r"# ?Rank (\d{1,9}) .*?\bon (\S+) device(?: \d+)? ?(?:\[\S*\])? ?(.*)", re.IGNORECASE)
"""Number, host and, in most versions, the name of the GPU, in a line whose words are one space apart."""
VERSION = re.compile(r"nccl-library=(\d+)|nccl version[:\s]+v?(\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)
NUMBER = re.compile(r"\d+(\.\d*)?(e[+-]?\d+)?")
MEASURED = re.compile(r"\s*\d+(\s|$)")
"""Start of a line of measurements: the size."""
WRONG = r"0*[1-9]\d*"
"""A nonzero number of wrong results in the last column of a measurement. Older versions give the largest error there, as 5e-07;
runs without checks give N/A."""
TOLERANCE = 0.02
HALF_DIGIT = 0.005
"""Half of the last decimal that bandwidths are printed with."""
MOST_BYTES = 2**26
MOST_LINES = 500_000
"""Largest number of lines of a text file, or of commas of a JSON file; a table has about 30 lines."""
LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Table:
    """One run of a collective over ranks on nodes, with its times: size in bytes and seconds, by size; a size may be repeated."""

    kind: str
    ranks: int
    nodes: int
    times: tuple[tuple[float, float], ...]
    version: str = ""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs in the run, without repetition; empty if the run does not state them."""
    wrong: tuple[str, ...] = ()
    """Places of measurements with wrong results, which are left out."""

    @property
    def calls(self) -> list[tuple[Call, float]]:
        """The collective at each size, with its time in seconds."""
        return [(Call(self.kind, size, self.ranks, self.nodes), seconds) for size, seconds in self.times]


@dataclass(frozen=True, slots=True)
class _Measurement:
    where: str
    size: float
    seconds: float
    wrong: bool
    """Whether the results of the measurement were wrong."""
    factor: float = 0.0
    """Ratio of bus bandwidth to algorithm bandwidth; 0 if a bandwidth is missing."""
    rounding: float = 0.0
    """Relative error of the ratio due to rounding of both to two decimals."""
    redop: str = ""
    """The reduction, such as `sum`, or `none`; empty if the table has no such column."""


def read(path: Path, kind: str | None = None) -> list[Table]:
    """The tables of a file; `kind` is the collective of tables that do not name their program. Raises `UserError` with file:line
    for malformed content."""
    if kind is not None and not kind_named(kind):
        raise UserError(f"no collective {shown(kind)}", hint=did_you_mean(kind, KINDS))
    named = {kind_named(match) for match in FILE.findall(path.name)}
    stated_kind = kind_named(kind) if kind else named.pop() if len(named) == 1 else ""
    raw = read_bounded(path, MOST_BYTES, "the output of nccl-tests")
    check_count(raw, b"\n\r,", MOST_LINES, path, "the output of nccl-tests")
    text = decoded(raw, path, "the output of nccl-tests, as text or as JSON")
    if text.lstrip()[:1] == "{" or re.match(r"\s*\[\s*[{\]]", text):
        return _of_json(text, str(path))
    runs = list(_runs(PREFIX.sub("", text).splitlines()))
    if not runs:
        raise UserError("no line of measurements", where=f"{path}:1", hint="the output of all_reduce_perf and its kin")
    return in_one_go(*(partial(_text_run, first, lines, str(path), stated_kind) for first, lines in runs))


def kind_named(name: str) -> str:
    """The collective that a name is a spelling of; empty if there is none."""
    plain = re.sub("[_-]", "", name.lower())
    return next((kind for kind in KINDS if kind.replace("_", "") == plain), "")


def _right(found: Sequence[_Measurement], where: str) -> list[_Measurement]:
    """The measurements of a run without those with wrong results."""
    right = [one for one in found if one.size and not one.wrong]
    if not right and any(one.wrong for one in found):
        hint = "repair the machine or its software, and measure again"
        raise UserError("every result is wrong, as nccl-tests marked them", where=where, hint=hint)
    if not right:
        raise UserError("results hold no measurement", where=where)
    return right


def _filled(table: Table, found: Sequence[_Measurement], where: str) -> Table:
    """The table of a run with its measurements."""
    times = tuple(sorted((one.size, one.seconds) for one in _right(found, where)))
    return replace(table, times=times, wrong=tuple(one.where for one in found if one.wrong))


# The table of text ----------------------------------------------------------------------------------------------------------


def _runs(lines: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """The lines of each run, from its header to the next header, with the number of the first line."""
    start, measured = 0, False
    for i, line in enumerate(lines):
        opens = HEADER.search(line) is not None
        if opens and measured:
            yield start + 1, list(lines[start:i])
            start, measured = i, False
        measured |= MEASURED.match(line) is not None
    if measured:
        yield start + 1, list(lines[start:])


def _text_run(first: int, lines: Sequence[str], name: str, stated_kind: str) -> Table:
    hosts, gpus, kind, version = dict[int, str](), dict[str, None](), "", ""
    measured: list[partial[_Measurement]] = []
    for number, line in enumerate(lines, first):
        rank, program, library = RANK.search(" ".join(line.split())), PROGRAM.search(line), VERSION.search(line)
        if program and HEADER.search(line):
            kind = kind_named(program[1])
        elif (other := OTHER_PROGRAM.search(line)) and HEADER.search(line) and not kind:
            hint = f"the programs of {either(sorted(KINDS))}"
            raise UserError(f"{other[0]} measures no collective that is modelled", where=f"{name}:{number}", hint=hint)
        version = version or (_version(library[1] or library[2]) if library else "")
        if rank:
            hosts[int(rank[1])] = rank[2]
            gpus |= {rank[3].strip(): None} if rank[3].strip() else {}
        elif MEASURED.match(line):
            measured.append(partial(_line, f"{name}:{number}", line.split()))
    found: list[_Measurement] = in_one_go(*measured)
    where = found[0].where
    largest = max(_right(found, where), key=lambda one: one.size)
    if len(hosts) < 2:
        hint = 'lines like "#  Rank  0 ... on host device  0 ..."'
        raise UserError("the run names fewer than two ranks", where=where, hint=hint)
    kind = kind or _kind(largest, len(hosts), stated_kind, where)
    return _filled(Table(kind, len(hosts), _nodes(hosts.values(), where), (), version, tuple(gpus)), found, where)


def _nodes(hosts: Iterable[str], where: str) -> int:
    """The number of nodes, from the host of every rank or process. Raises `UserError` where some have more than others."""
    counts = Counter(hosts)
    if len(set(counts.values())) > 1:
        (most, many), *_, (least, few) = counts.most_common()
        message = f"the run does not sit evenly on its {len(counts)} nodes: {many} on {most}, and {few} on {least}"
        raise UserError(message, where=where, hint="run as many on each")
    return len(counts)


def _line(where: str, words: Sequence[str]) -> _Measurement:
    least, most = OPERANDS
    skipped = min(max(len(words) - 2 * TIMES, least), most)
    numbers = [*words[:2], *words[skipped : skipped + 3]]
    if len(words) < least + TIMES or (len(words) < least + 2 * TIMES and len(words) not in (least + TIMES, most + TIMES)):
        wrong = f"{len(words)} columns: a line of the table has {most + 2 * TIMES}"
    elif bad := [word for word in numbers if not NUMBER.fullmatch(word)]:
        wrong = f"{shown(bad[0])} is not a positive number"
    elif float(words[0]) and not float(words[skipped]):
        wrong = f"{shown(words[skipped])} is not a positive number"
    else:
        size, _, time_us, algorithm, bus = map(float, numbers)
        is_wrong = re.fullmatch(WRONG, words[skipped + TIMES - 1]) is not None
        redop = words[least] if skipped > least else ""
        rounding = HALF_DIGIT / algorithm + HALF_DIGIT / bus if algorithm and bus else 0.0
        return _Measurement(where, size, time_us / US_PER_S, is_wrong, bus / algorithm if algorithm else 0.0, rounding, redop)
    raise UserError(wrong, where=where, hint="size count type redop root time algbw busbw #wrong ...")


def _kind(largest: _Measurement, ranks: int, stated: str, where: str) -> str:
    """The collective that the run states, otherwise the collective with the bandwidth ratio of the largest size. Raises
    `UserError` if the bandwidths contradict the name. The ratio of a gather is also that of an all-to-all, and of a scatter
    unless data are reduced."""
    share, adds = (ranks - 1) / ranks, largest.redop.lower() not in ("", "none")
    own = {"all_reduce": 2 * share, "broadcast": 1.0, "sendrecv": 1.0}.get(stated, share)
    if stated and largest.factor and abs(largest.factor / own - 1) > TOLERANCE + largest.rounding:
        message = f"busbw is {largest.factor:.3g} times algbw, and of {stated} over {ranks} ranks it is {own:.3g} times"
        raise UserError(message, where=where, hint="--kind says which collective it is")
    if stated:
        return stated
    if abs(largest.factor / (2 * share) - 1) < TOLERANCE and (ranks > 2 or adds):
        return "all_reduce"
    if adds and abs(largest.factor / share - 1) < TOLERANCE:
        return "reduce_scatter"
    hint = "say it by --kind, by the name of the file, or keep the line that names the program, such as all_gather_perf"
    raise UserError("the run does not say which collective it is", where=where, hint=hint)


# JSON -----------------------------------------------------------------------------------------------------------------------


def _of_json(text: str, name: str) -> list[Table]:
    data = parsed_json(text, name)
    runs = {f"{name}: [{i}]": run for i, run in enumerate(data)} if isinstance(data, list) else {name: data}
    if not runs:
        raise UserError("no run", where=name)
    return in_one_go(*(partial(_json_run, _mapping(run), where) for where, run in runs.items()))


def _json_run(run: Mapping[str, Any], where: str) -> Table:
    """One report of nccl-tests -J: `args`, `config` with `devices` (one per process), `results`."""
    results = enumerate(_list(run.get("results")))
    measured = (partial(_json_result, f"{where}: results[{i}]", _mapping(result)) for i, result in results)
    table, *found = in_one_go(partial(_json_config, run, where), *measured)
    return _filled(table, found, where)


def _json_config(run: Mapping[str, Any], where: str) -> Table:
    """The table of a JSON report, without its measurements."""
    config = _mapping(run.get("config"))
    program = PROGRAM.search(" ".join(map(str, _list(run.get("args")))))
    devices = [d for d in _list(config.get("devices")) if isinstance(d, Mapping)]
    threads, gpus = config.get("nthreads", 1), config.get("ngpus", 1)
    faults = []
    if not program:
        faults.append(Fault(f"args name no program that measures {either(sorted(KINDS))}", where=where))
    if not all(isinstance(n, int) and n >= 1 for n in (threads, gpus)):
        faults.append(Fault("config: nthreads and ngpus should be counts", where=where))
    elif len(devices) * threads * gpus < 2:
        faults.append(Fault("config: fewer than two GPUs", "devices lists one for each process", where))
    if faults or not program:
        raise UserError(faults=faults)
    nodes = _nodes([str(device.get("hostname", "")) for device in devices], where)
    version = _version(str(run.get("nccl_version", "")))
    return Table(kind_named(program[1]), len(devices) * threads * gpus, nodes, (), version)


def _json_result(where: str, result: Mapping[str, Any]) -> _Measurement:
    inner = _mapping(result.get("out_of_place") or result.get("in_place"))
    size, time_us, wrong = result.get("size"), inner.get("time", inner.get("cpu_time")), inner.get("nwrong")
    for field, value in (("size", size), ("time", time_us)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST:
            raise UserError(f"{field} should be a number, not {shown(value)}", where=where)
    if size and not time_us:
        raise UserError("time is zero", where=where)
    is_wrong = isinstance(wrong, (int, float)) and wrong > 0
    return _Measurement(where, float(size or 0), float(time_us or 0) / US_PER_S, is_wrong)


def _version(text: str) -> str:
    """A version such as 2.27.3, also from the number 22703."""
    if not re.fullmatch(r"\d{4,6}", text):
        return text
    return ".".join(str(int(part or 0)) for part in (text[:-4], text[-4:-2], text[-2:]))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
