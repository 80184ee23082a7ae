"""Machine code of the compiled engine: made once by numba, kept on disk, and loaded by LLVM alone.

numba takes some seconds to compile. Importing numba and loading from its own cache takes 0.7 s, so this module keeps the object
code itself, and llvmlite loads it in 0.06 s. The file name is a digest of everything that the code depends on: the sources in
this folder, the processor, numba and LLVM. A digest before the code protects against damaged files. If no folder is writable, as
in a container with a read-only installation, each process compiles again.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...errors import InvariantBroken, SimulatorError
from ...files import is_writable, keep, read_bounded
from ..task import Array

Function = TypeVar("Function", bound=Callable[..., Any])

INSTALLED = find_spec("numba") is not None
NO_FOLDER = "no folder for machine code can be written to: NUMBA_CACHE_DIR may name one"
NAME = "run"
"""The name of the function in its object code."""
INTEGER = np.dtype(np.int64)
DIGEST_BYTES = 32
MOST_BYTES = 1 << 24
"""Largest size of a file of machine code, or of a source of it."""


def compiled(function: Function) -> Function:
    """Marks a function as a part of the machine code, which Python itself does not call."""
    function.is_compiled = True  # type: ignore[attr-defined]
    return function


class MachineCode:
    """A function as machine code, with arrays and named tuples of arrays as arguments; it returns a truth value."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.fault = ""
        """The reason why the code could not be written to disk; empty if it was."""
        self._code: Callable[..., bool] | None = None

    def __call__(self, *arguments: Any) -> bool:
        if self._code is None:
            self._code = self._kept() or self._made(arguments)
        return self._code(*arguments)

    @property
    def is_loaded(self) -> bool:
        """Whether this process has the code."""
        return self._code is not None

    @property
    def is_kept(self) -> bool:
        """Whether the code is on disk."""
        return any(map(Path.exists, self._files()))

    def why_not_kept(self) -> str:
        """The reason why each process compiles the code, or an empty string if the code is on disk, or can be written there."""
        return "" if self.is_kept else self.fault or ("" if any(map(is_writable, folders())) else NO_FOLDER)

    def _files(self) -> Iterator[Path]:
        return (folder / f"{self.function.__name__.strip('_')}-{_made_from()}.o" for folder in folders())

    def _kept(self) -> Callable[..., bool] | None:
        """The code in the file, if its digest is right."""
        for file in self._files():
            with suppress(SimulatorError):
                data = read_bounded(file, MOST_BYTES, "machine code")
                digest, code = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
                if sha256(code).digest() == digest:
                    return ObjectCode(code)
        return None

    def _made(self, arguments: Sequence[Any]) -> Callable[..., bool]:
        """Compiles the code, and writes it to disk if possible."""
        dispatcher = jitted(self.function)
        try:
            code = object_code(dispatcher, arguments)
        except Exception as error:  # with other versions of numba or LLVM, numba itself still runs its code
            self.fault = f"machine code was not kept: {error}"
            return dispatcher  # type: ignore[no-any-return]
        self.fault = NO_FOLDER
        for file in self._files():
            try:
                keep(file, sha256(code).digest() + code)
            except SimulatorError as error:
                self.fault = f"machine code was not kept: {error}" if is_writable(file.parent) else self.fault
            else:
                self.fault = ""
                break
        return ObjectCode(code)


class ObjectCode:
    """Object code that LLVM has loaded. Calls follow numba's convention for arrays, which `object_code` has checked."""

    def __init__(self, code: bytes) -> None:
        llvm = _llvm()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())  # owns the code
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self._at = self._engine.get_function_address(NAME)

    def __call__(self, *arguments: Any) -> bool:
        words = [word for array in _arrays(arguments) for word in _words(array)]
        result, fault = ctypes.c_int64(0), ctypes.c_void_p()
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * len(words))
        if prototype(self._at)(ctypes.addressof(result), ctypes.addressof(fault), *words):
            raise InvariantBroken("machine code of the compiled engine raised an error")
        return bool(result.value)


def jitted(function: Callable[..., Any]) -> Any:
    """A function as numba compiles it, with all others that it calls."""
    import numba
    from numba.extending import register_jitable

    # Compiled code makes no arrays, and counting references to them took a quarter to half of the time.
    counted: Any = {"_nrt": False} if hasattr(numba.core.options.DefaultOptions, "_nrt") else {}
    for part in dict.fromkeys(_parts(function)):
        register_jitable(**counted)(part)
    return numba.njit(**counted)(function)


def _parts(function: Any) -> Iterator[Callable[..., Any]]:
    """The compiled functions that a function calls, and those that they call."""
    for name in function.__code__.co_names:
        part = function.__globals__.get(name)
        if getattr(part, "is_compiled", False):
            yield part
            yield from _parts(part)


def object_code(dispatcher: Any, arguments: Sequence[Any]) -> bytes:
    """The object code of a function for arguments of these types, without numba's wrapper for calls from Python."""
    import numba

    llvm = _llvm()
    dispatcher.compile(tuple(map(numba.typeof, arguments)))
    (overload,), (text,) = dispatcher.overloads.values(), dispatcher.inspect_llvm().values()
    module = llvm.parse_assembly(text)
    called = module.get_function(overload.fndesc.llvm_func_name)
    for one in (*module.functions, *module.global_variables):
        if not one.is_declaration and one.name != called.name:
            one.linkage = "internal"
    called.name = NAME
    expected = ["ptr", "ptr"] + [kind for array in _arrays(arguments) for kind in _kinds(array)]
    found = [re.sub(r".*\*$", "ptr", str(argument.type)) for argument in called.arguments]
    if found != expected:
        raise InvariantBroken(f"numba passes {len(found)} values in another way")
    machine, pruning = _machine(), llvm.create_new_module_pass_manager()
    pruning.add_global_dead_code_eliminate_pass()
    pruning.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    missing = [one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")]
    if missing:
        raise InvariantBroken(f"machine code calls {', '.join(missing)}")
    code: bytes = machine.emit_object(module)
    return code


def folders() -> Iterator[Path]:
    """Where machine code may be kept, the first choice first."""
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(named)
    yield Path(__file__).parent / "__pycache__"
    with suppress(RuntimeError):  # no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainsim"


@cache
def _made_from() -> str:
    """A digest of all that the machine code depends on."""
    llvm, digest = _llvm(), sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(read_bounded(source, MOST_BYTES, "a source"))
    versions = version("numba"), *llvm.llvm_version_info, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    digest.update(repr(versions).encode())
    return digest.hexdigest()[:DIGEST_BYTES]


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _machine() -> Any:
    llvm = _llvm()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(llvm.get_host_cpu_name(), features, opt=3, codemodel="jitdefault", jit=True)


def _arrays(values: Sequence[Any]) -> Iterator[Array]:
    """The arrays of arguments, one after the other."""
    for value in values:
        yield from _arrays(value) if isinstance(value, tuple) else [value]


def _words(array: Array) -> tuple[int, ...]:
    """An array as numba passes it, without an owner: size, size of an item, address, lengths and strides."""
    if not array.flags.c_contiguous or {kind for kind, *_ in (array.dtype.fields or {"": [array.dtype]}).values()} != {INTEGER}:
        raise InvariantBroken(f"machine code takes contiguous integers of 64 bits, and not {array.dtype}")
    return 0, 0, array.size, array.itemsize, array.ctypes.data, *array.shape, *array.strides


def _kinds(array: Array) -> list[str]:
    return ["ptr", "ptr", "i64", "i64", "ptr", *["i64"] * (2 * array.ndim)]
