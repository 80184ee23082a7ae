"""The catalog of models, clusters, GPUs, schedules and other named parts, found by file name, without a registry.

To add an entry, add its file. Names may have dashes or underscores and any case. A path to a file, or `module:name`, is accepted
wherever a name is; an object is used as it is.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeGuard

from ..errors import ALIKE, UserError, did_you_mean, either, nearest, shown
from ..files import read_bounded
from ..workload.architecture import NO_HYBRIDS, hybrid_family
from . import torch_csv, user_code

PACKAGE = Path(__file__).resolve().parent.parent

MOST_BYTES = 2**20
"""Largest size of a file of the catalog, in bytes."""
DATA = {
    "models": "workloads/models",
    "clusters": "topologies",
    "gpus": "topologies/gpus",
    "frameworks": "workloads/frameworks",
    "scenarios": "workloads/scenarios",
    "published": "workloads/published",
    "fabrics": "topologies/fabrics",
}
"""Kinds of entries that are data: YAML files in a folder."""
CODE = {"schedules": "schedules", "shapes": "hardware/shapes", "collectives": "collectives", "metrics": "metrics"}
"""Kinds of entries that are code: Python files in a folder of the package."""
WITH_UNDERSCORES = ("collectives",)
"""Kinds whose names are written with underscores, as NCCL writes all_reduce; all others have dashes, as in rail-optimized."""

CUT = ", ..."
"""The end of a hint that lists only some names."""


def folder(kind: str) -> Path:
    """The folder with the files of a kind: inside the installed package, or beside the package in a checkout."""
    if kind in CODE:
        return PACKAGE / CODE[kind]
    installed = PACKAGE / "_data" / DATA[kind]
    return installed if installed.is_dir() else PACKAGE.parent / DATA[kind]


def files(kind: str) -> dict[str, Path]:
    """Every name of a kind in its printed spelling, and its file."""
    home, suffix = folder(kind), ".py" if kind in CODE else ".yaml"
    stems = [name.removesuffix(suffix) for name in os.listdir(home) if name.endswith(suffix)]
    found = {written(kind, stem): home / f"{stem}{suffix}" for stem in stems if not stem.startswith("_")}
    return dict(sorted(found.items()))


def plain(name: str) -> str:
    """A name in lower case with dashes, without spaces around it: equal for all spellings of a name."""
    return name.strip().lower().replace("_", "-")


def written(kind: str, name: str) -> str:
    """A name in the spelling of its kind, which is the spelling that is printed."""
    return plain(name).replace("-", "_") if kind in WITH_UNDERSCORES else plain(name)


def is_path(name: str) -> bool:
    """Whether the name of a data entry is the path of a user's file instead of a name of the catalog."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def is_table(name: object) -> bool:
    """Whether a schedule is named by the path of a CSV table."""
    return isinstance(name, str) and name.lower().endswith(".csv")


def is_code(name: object) -> TypeGuard[str]:
    """Whether a name is `module:name`, `file.py:name` or `file.py`, whose code has not been imported yet."""
    return type(name) is str and (":" in name or name.endswith(".py")) and not is_table(name)


def exists(name: str) -> bool:
    """Whether a file or a folder of this name exists."""
    return os.path.exists(Path(name))


def is_file(name: str) -> bool:
    """Whether a file of this name exists that can be read and is not a folder."""
    return exists(name) and not os.path.isdir(Path(name))


def find(kind: str, name: str) -> Path:
    """The file of a name of the catalog, or of a path."""
    if kind in DATA and is_path(name):
        return Path(name)
    if usual := _with_usual_name(kind, name):
        return usual
    known, spelled = files(kind), written(kind, name)
    if spelled in known:
        return known[spelled]
    if kind in DATA and exists(name):
        return Path(name)
    hint = did_you_mean(spelled, known)
    family = hybrid_family(spelled) if kind == "models" else ""
    if family:
        raise UserError(f"no model {shown(name)}: {family}: {NO_HYBRIDS}", hint="`trainsim catalog models` lists the models")
    if kind in CODE and is_code(name):
        hint = f"user code is not accepted here; {hint}"
    elif kind in DATA and is_file(f"{name}.yaml"):
        hint = f"did you mean '{name}.yaml'?"
    elif hint.endswith(CUT):
        hint = f"{hint.removesuffix(CUT).replace('known:', 'nearest:')}; `trainsim catalog {kind}` lists all {len(known)}"
    raise UserError(f"no {'GPU' if kind == 'gpus' else kind[:-1]} {shown(name)}", hint=hint)


def _with_usual_name(kind: str, name: str) -> Path | None:
    """The file of a name, if it has the usual spelling: much faster than listing all files of the kind."""
    stem = plain(name).replace("-", "_") if kind in CODE else plain(name)
    path = folder(kind) / f"{stem}{'.py' if kind in CODE else '.yaml'}"
    return None if stem.startswith("_") or "/" in stem or not os.path.isfile(path) else path


def module(kind: str, name: Any) -> Any:
    """The module of a name of the catalog, the object of imported user code, or the given object itself if it is not a name.

    A schedule may be a table in a `file.csv`. User code is wrapped so that its errors are reported as input errors. Only modules
    of the catalog are imported here: `module:name` and `file.py` are refused as unknown names.
    """
    if kind == "schedules" and is_table(name):
        return torch_csv.read(name)
    if type(name) is str:
        return import_module(f"simulator.{CODE[kind].replace('/', '.')}.{find(kind, name).stem}")

    found = name.found if isinstance(name, user_code.Code) else name
    return (user_code.Schedule if kind == "schedules" else user_code.Watched)(found, called(name))


def modules(package: str) -> dict[str, Any]:
    """Every module of a package of the simulator, by the name of its file."""
    return {found.name: import_module(f"{package}.{found.name}") for found in iter_modules(import_module(package).__path__)}


def typed(kind: str, name: Any) -> Any:
    """The module or object of a name that a user typed or wrote in Python. Such a name is trusted: its code is imported."""
    return module(kind, user_code.imported(name) if is_code(name) else name)


def called(thing: Any) -> str:
    """The name of a schedule of the catalog, or of the object or file that was given in place of a name."""
    if isinstance(thing, str):
        return thing if ":" in thing or thing.endswith(".py") or is_table(thing) else plain(thing)
    return str(getattr(thing, "__name__", type(thing).__name__)).rpartition(".")[2]


def headline(path: Path) -> str:
    """The one-line description of a file: the first comment of a YAML file, or the first line of a module's docstring."""
    first, _, _ = read_bounded(path, MOST_BYTES, "a file of the catalog").partition(b"\n")
    return first.decode("utf-8").strip().strip('#"').strip()


# Other names of GPUs --------------------------------------------------------------------------------------------------------

WORD = re.compile(r"[a-z0-9]+")
NOISE = re.compile(
    r"nvidia|amd|tesla|instinct|quadro|geforce|rtx|sxm\d?|oam|nvl\d+|hbm\w*|[dh]gx|gpus?|server|workstation|edition|bse|blackwell|"
    r"unspecified"
)
"""Words that do not distinguish chips: "BSE" is the Blackwell Server Edition, and "NVL72" is a rack of the same modules. "NVL"
alone is a separate board with other memory and less power."""
CARD = "pcie"
SIZE = re.compile(r"(\d{1,3})(gb?|gib)?")
TIMES = re.compile(r"^\s*\d{1,3} ?x ?(?=[a-z])|(?<=[0-9a-z]) ?x ?\d{1,3}\s*$", re.IGNORECASE)
"""A number of GPUs before or after a name: "8xH100"."""


def gpu_named(words: str) -> str:
    """The GPU of the catalog that a table of measurements calls "A100-SXM-80", "NVIDIA H100 80GB HBM3" or "RTX PRO 6000".

    Among GPUs with the same chip, the form (card or module) decides first, then the memory size, then the largest memory.
    """
    chip, card, size = _parts(words)
    kin, known, file = _kin(chip), files("gpus"), f"{words}.yaml"
    if not kin:
        like = did_you_mean(chip if nearest(chip, known, cutoff=ALIKE) else "", known)
        raise UserError(f"no GPU {shown(words)}", hint=f"did you mean {file!r}?" if is_file(file) else like)

    def order(other: str) -> tuple[bool, bool, int]:
        _, its_card, its_size = _parts(other)
        return its_card != card, size not in (0, its_size), -its_size

    return min(kin, key=order)


def unambiguous_gpu(words: str) -> str:
    """The GPU of the catalog that some words name, with its memory size. Contradictory and ambiguous words are refused."""
    name, size = gpu_named(words), _parts(words)[2]
    chip, card, its_size = _parts(name)
    alike = [other for other in _kin(chip) if _parts(other)[1] == card]
    if (size not in (0, its_size) and its_size) or (not size and len(alike) > 1):
        raise UserError(f"no GPU {shown(words)}", hint=f"did you mean {either(alike)}?")
    return name


def _kin(chip: str) -> list[str]:
    """The GPUs of the catalog with this chip."""
    return [other for other in sorted(files("gpus")) if chip and _parts(other)[0] == chip]


def _parts(words: str) -> tuple[str, bool, int]:
    """The chip, whether the GPU is a PCIe card, and its memory in gigabytes (0 if the words do not state the size)."""
    found = [word for word in WORD.findall(TIMES.sub("", words.lower())) if not NOISE.fullmatch(word)]
    sizes = [match for match in map(SIZE.fullmatch, found) if match]
    chip = "".join(word for word in found if word != CARD and not SIZE.fullmatch(word))
    return chip, CARD in found, int(sizes[0][1]) if sizes else 0


def memory_gb_in(words: str) -> int:
    """The memory in gigabytes that the name of a GPU states; 0 if it states none."""
    return _parts(words)[2]
