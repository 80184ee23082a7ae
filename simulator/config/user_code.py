"""User code imported from a module or a file, and wrapped so that its errors become input errors and its prints go to stderr.
Permission to import is not checked here. Only `imported` imports, and its callers have made sure that the name was typed, or
stands in a trusted file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from itertools import islice
from operator import index
from pathlib import Path
from traceback import extract_tb
from types import CodeType, ModuleType
from typing import Any, TypeVar

from .. import escape
from ..errors import SimulatorError, UserError, did_you_mean, shown
from ..files import read_bounded, similar_file
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, KINDS, Box, Exchange, Pair, Shape, Slot

MOST_BYTES = 2**22
"""Largest size of a Python file, in bytes."""
HOW = "write it as module:name, file.py:name or file.py"
NO_PACKAGE = "name the package: `from simulator.schedules import interleaved`, `from simulator.program.slot import Slot`"
ORDERS = ("order", "orders")
"""The functions of a module that make it a schedule."""
FUNCTIONS = ("placement", "placements", "refuse", "in_flight", "exchanges", "certificate")
WORDS = ("OPTIONS", "VOCABULARY")
"""Other functions that a schedule may have, and its tuples of words."""
BY_ITSELF = "run it by itself to see why"
ONCE = "yield each slot once"
SCHEDULE = "a schedule is order(rank, shape), which yields slots"
EXCHANGES = "yield Exchange(after, sends, receives): a slot or None, then the slots of the rank that send and that receive"
SLOT = 'yield Slot("F", stage, microbatch), of kind F, B, I or W, or Pair(forward, backward)'
PAIR = "first a forward slot, then a backward one: Pair(Slot('F', 0, 8), Slot('B', 0, 7)), or I in place of B"
MOST_CHUNKS, MOST_DIRECTIONS, MOST_NUMBER = 1024, 64, 2**40
"""Largest numbers of chunks of a rank and of directions of microbatches, and largest index of a stage or a microbatch."""


T = TypeVar("T")


class Code(str):
    """The text `module:name`, `file.py:name` or `file.py`, with the object of that name, or the module of the file."""

    __slots__ = ("found",)
    found: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> Code:
        return self


def divided(name: str) -> tuple[str, str]:
    """The module or the file of a name, and the name of its object; none if a whole file is named."""
    if name.endswith(".py"):
        return name, ""
    where, _, attribute = name.rpartition(":")
    return where, attribute


def imported(name: str) -> Code:
    """Imports the object of `module:name` or `file.py:name`, or the module `file.py`, with a note on stderr. Only for trusted
    names. A function `order` or `orders` of a module is that module, whose other names belong to the schedule."""
    print(f"note: imports {escape.terminal(name)}", file=sys.stderr)
    where, attribute = divided(name)
    is_file = where.endswith(".py")
    if not where or not (attribute or is_file):
        raise UserError(f"{shown(name)} is not complete", hint=HOW)
    if is_file:
        found = _run(Path(where))
    else:
        with _importable(Path()), as_user_errors(f"importing {where}", HOW):
            found = importlib.import_module(where)
    if attribute and not hasattr(found, attribute):
        public = [key for key, value in vars(found).items() if not key.startswith("_") and callable(value)]
        raise UserError(f"{where} has no {shown(attribute)}", hint=did_you_mean(attribute, public))
    code = Code(name)
    code.found = _named(found, attribute) if attribute else found
    return code


def given(thing: Any, taken: Sequence[str]) -> Code:
    """An object of a user by its name, which is marked if it is one of those that are `taken`."""
    name = str(getattr(thing, "__name__", type(thing).__name__)).rpartition(".")[2]
    code = Code(f"{name} (own)" if name in taken else name)
    code.found = thing
    return code


def _named(module: ModuleType, attribute: str) -> Any:
    """The object of a module; for a function `order` or `orders` the names of the module, without the other of the two."""
    found = getattr(module, attribute)
    if attribute not in ORDERS or not callable(found) or any(hasattr(found, name) for name in ORDERS):
        return found
    alone = ModuleType(module.__name__)
    vars(alone).update({name: value for name, value in vars(module).items() if name == attribute or name not in ORDERS})
    return alone


def _run(path: Path) -> ModuleType:
    """The module of a file, run anew on every call: the module is not cached."""
    module = ModuleType(f"_outside_{path.stem}")
    module.__file__ = str(path)
    try:
        raw = read_bounded(path, MOST_BYTES, "a file of Python", partial(similar_file, ending=".py", hint=HOW))
        code = compile(raw, str(path), "exec")
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError(f"not Python: {getattr(error, 'msg', error)}", where=f"{path}{line}", hint="correct the file") from None
    sys.modules[module.__name__] = module
    try:
        with _importable(path.parent), as_user_errors(str(path), BY_ITSELF):
            _execute(code, module)
    finally:
        del sys.modules[module.__name__]
    return module


def _execute(code: CodeType, module: ModuleType) -> None:
    """Runs the code of a file as a module outside of any package."""
    try:
        exec(code, vars(module))
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        line = extract_tb(error.__traceback__)[-1].lineno
        message = "a file by itself belongs to no package, from which `from . import` would import"
        raise UserError(message, where=f"{module.__file__}:{line}", hint=NO_PACKAGE) from None


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Makes the modules of a folder importable inside the `with` block."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


@contextmanager
def as_user_errors(what: str, hint: str) -> Iterator[None]:
    """Raises every exception of user code as a `UserError` with the line of the exception, and sends prints to stderr."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except SimulatorError:
        raise
    except (Exception, SystemExit) as error:
        skipped = (str(Path(__file__).parent.parent), str(Path(importlib.__file__).parent), "<")
        theirs = [f for f in extract_tb(error.__traceback__) if not f.filename.startswith(skipped)]
        at = f" at {Path(theirs[-1].filename).name}:{theirs[-1].lineno}" if theirs else ""
        raise UserError(f"{what} raised {type(error).__name__}{at}: {_message(error)}", hint=hint) from error


def _message(error: BaseException) -> str:
    """The message of an exception, whose class may be user code too."""
    try:
        return str(error)
    except Exception as another:
        return f"its message raised {type(another).__name__}"


class Watched:
    """An object of user code whose functions raise a `UserError` with the function's name for every exception."""

    hint = BY_ITSELF

    def __init__(self, found: Any, name: str) -> None:
        self._found, self._name = found, name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        value = getattr(self._found, attribute)
        return partial(self._call, attribute, value) if callable(value) else value

    def _call(self, attribute: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with self._as_user_errors(attribute):
            return function(*args, **options)

    def _as_user_errors(self, what: str, hint: str = "") -> Any:
        return as_user_errors(f"{what} of {self._name}", hint or self.hint)


class Schedule(Watched):
    """A schedule of a user: a module or an object with `order` or `orders`, or only a function. Optional members have the usual
    defaults."""

    hint = SCHEDULE

    def __init__(self, found: Any, name: str) -> None:
        super().__init__(found, name)
        self._order: Callable[[int, Shape], Any] = getattr(found, "order", found)
        if not callable(self._order) and not callable(getattr(found, "orders", None)):
            if isinstance(found, ModuleType):
                raise UserError(f"{name} has no order", hint=f"{SCHEDULE}; if another function is one, name it: {name}:function")
            raise UserError(f"{name} is {shown(found)}, not a function", hint=SCHEDULE)
        chunks = getattr(found, "CHUNKS", 1)
        if not isinstance(chunks, int) or isinstance(chunks, bool) or not 1 <= chunks <= MOST_CHUNKS:
            raise UserError(f"CHUNKS of {name} is {shown(chunks)}", hint=f"a whole number from 1 to {MOST_CHUNKS:,}")
        for other in FUNCTIONS:
            if not callable(value := getattr(found, other, len)):
                raise UserError(f"{other} of {name} is {shown(value)}, not a function", hint="leave it out, or call it otherwise")
        for other in WORDS:
            value = getattr(found, other, ())
            if not isinstance(value, (tuple, list)) or not all(isinstance(word, str) for word in value):
                raise UserError(f"{other} of {name} is {shown(value)}, not a tuple of words", hint='such as ("group",)')

    def __getattr__(self, attribute: str) -> Any:
        found = super().__getattr__(attribute)
        checked = {
            "orders": self._all_orders,
            "exchanges": self._all_exchanges,
            "placement": self._placement,
            "placements": self._placements,
        }
        return checked.get(attribute, found)

    def order(self, rank: int, shape: Shape) -> Iterator[Box]:
        """The boxes of a rank, each checked to be a box."""
        with self._as_user_errors(f"order(rank={rank})"):
            return iter(self._checked(self._box, self._order(rank, shape), rank, shape, ONCE))

    def _all_orders(self, shape: Shape) -> list[list[Box]]:
        """The boxes of all ranks, for a schedule that gives the orders of all ranks at once."""
        with self._as_user_errors("orders"):
            orders = list(self._found.orders(shape))
            if len(orders) != shape.ranks:
                raise UserError(f"{self._name} gives {len(orders)} orders for {shape.ranks} ranks", hint="one for each rank")
            return [self._checked(self._box, order, rank, shape, ONCE) for rank, order in enumerate(orders)]

    def _all_exchanges(self, rank: int, shape: Shape) -> list[Exchange]:
        """The exchanges of a rank, each checked to be an exchange."""
        with self._as_user_errors(f"exchanges(rank={rank})", EXCHANGES):
            return self._checked(self._exchange, self._found.exchanges(rank, shape), rank, shape, EXCHANGES)

    def _checked(self, check: Callable[[Any, int], T], found: Any, rank: int, shape: Shape, hint: str) -> list[T]:
        """The items that user code gives for a rank, each checked, up to a maximum number."""
        most = 2 * len(KINDS) * shape.stages * shape.microbatches
        given = [check(one, rank) for one in islice(found, most)]
        if len(given) == most:
            raise UserError(f"{self._name} does not stop: {most} of rank {rank} so far", hint=hint)
        return given

    def _placement(self, shape: Shape) -> Sequence[int]:
        """The rank of every stage, each checked to be a rank."""
        with self._as_user_errors("placement"):
            return self._placed(self._found.placement(shape), shape)

    def _placements(self, shape: Shape) -> list[Sequence[int]]:
        """The rank of every stage for each direction of microbatches."""
        with self._as_user_errors("placements"):
            placements = [self._placed(of, shape) for of in islice(self._found.placements(shape), MOST_DIRECTIONS + 1)]
        if not 1 <= len(placements) <= MOST_DIRECTIONS:
            wanted = f"one to {MOST_DIRECTIONS} of them, each with the rank of every stage"
            raise UserError(f"{self._name} gives {len(placements)} placements", hint=wanted)
        return placements

    def _placed(self, placement: Any, shape: Shape) -> Sequence[int]:
        """A placement, which has each stage on a rank."""
        ranks = [index(rank) for rank in islice(placement, shape.stages + 1)]
        if len(ranks) != shape.stages or not all(0 <= rank < shape.ranks for rank in ranks):
            wanted = f"give each of {shape.stages} stages a rank from 0 to {shape.ranks - 1}"
            raise UserError(f"{self._name}: the placement is {ranks[:12]}", hint=wanted)
        return ranks

    def _box(self, box: Any, rank: int) -> Box:
        written = isinstance(box, (tuple, list)) and len(box) == 3 and box[0] == "FB"
        if not isinstance(box, Pair) and not written:
            return self._slot(box, rank)
        forward, backward = (self._slot(slot, rank) for slot in box[-2:])
        if forward.kind != FORWARD or backward.kind not in (BACKWARD, INPUT_GRADIENT):
            raise UserError(f"{self._name} yields {box!r:.60} on rank {rank}, which is not a pair", hint=PAIR)
        return Pair(forward, backward)

    def _exchange(self, exchange: Any, rank: int) -> Exchange:
        try:
            after, sends, receives = exchange
            sides = tuple(tuple(self._slot(slot, rank) for slot in side) for side in (sends, receives))
        except (TypeError, ValueError):
            raise UserError(f"{self._name} exchanges {exchange!r:.60} on rank {rank}", hint=EXCHANGES) from None
        return Exchange(None if after is None else self._slot(after, rank), *sides)

    def _slot(self, slot: Any, rank: int) -> Slot:
        with suppress(TypeError, ValueError):
            kind, stage, microbatch = slot
            numbers = index(stage), index(microbatch)
            if kind in KINDS and all(abs(number) <= MOST_NUMBER for number in numbers):
                return Slot(str(kind), *numbers)
        raise UserError(f"{self._name} yields {slot!r:.60} on rank {rank}, which is not a slot", hint=SLOT)
