# SPDX-License-Identifier: Apache-2.0
"""Fault injection: functions of this library raise when called."""

import collections
import contextlib
import inspect
import pkgutil
import sys
import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import nova_accel
import placement_sync
import virt_hooks
from nova_accel.config import config_source
from virt_hooks import nova_driver

_PACKAGES = (nova_accel, placement_sync, virt_hooks)
# The entry points that Nova calls directly, and the code that catches
# failures: both call nothing unguarded.
GUARDS = frozenset(
    {
        "virt_hooks.bypass._stock",
        "virt_hooks.bypass.accelerators_only",
        "virt_hooks.bypass.has_accelerators",
        "virt_hooks.bypass.started_only",
        "virt_hooks.error_guards.log_errors",
    }
)
OVERRIDES = frozenset(
    {
        "__init__",
        "_attach_mediated_devices",
        "_guest_add_mdevs",
        "_vgpu_allocations",
        "cleanup_host",
        "get_available_resource",
        "init_host",
        "update_provider_tree",
    }
)


class StruckError(Exception):
    """An error that no code expects."""


# A function runs with the globals of its module, so it imports for itself.
_TEXT = """
def outer({words}):
    def inner(*_, **__):
        import sys
        from tests.functional.nova.support import striking
        {uses}
        raise striking.StruckError(sys._getframe().f_code.co_name)
"""


def _code(name: str, free: tuple[str, ...]) -> CodeType:
    """Return code that raises, for a function with these free variables."""
    words = ", ".join(free)
    text = _TEXT.format(words=words, uses=words or "pass")
    outer = compile(text, __file__, "exec").co_consts[0]
    inner = next(c for c in outer.co_consts if isinstance(c, CodeType))
    return inner.replace(co_name=name)


def all_functions() -> dict[str, FunctionType]:
    """Return the functions of this library that may be struck, by name."""
    functions: dict[str, FunctionType] = {}
    for package in _PACKAGES:
        for info in pkgutil.walk_packages(
            package.__path__, f"{package.__name__}."
        ):
            module = sys.modules.get(info.name)
            if module is not None and module is not config_source:
                functions |= _functions_of(module, info.name)
    return {
        name: function
        for name, function in functions.items()
        if name not in GUARDS and not _is_entry(name, function)
    }


def _functions_of(holder: Any, module: str) -> dict[str, FunctionType]:
    functions: dict[str, FunctionType] = {}
    for value in vars(holder).values():
        if inspect.isclass(value) and value.__module__ == module:
            if value is not holder:
                functions |= _functions_of(value, module)
            continue
        for function in _unwrapped(value):
            # Generated methods of dataclasses are in no file of this library.
            if (
                function.__module__ == module
                and function.__code__.co_filename != "<string>"
            ):
                functions[f"{module}.{function.__qualname__}"] = function
    return functions


def _unwrapped(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    parts = [value]
    if isinstance(value, property):
        parts = [value.fget, value.fset]
    for part in parts:
        inner = inspect.unwrap(part) if callable(part) else None
        if isinstance(inner, FunctionType):
            yield inner


def _is_entry(name: str, function: FunctionType) -> bool:
    """Return whether Nova calls a method without a guard before it."""
    method = function.__name__
    return method in OVERRIDES and any(
        _plain(vars(kind).get(method)) is function
        for kind in nova_driver.AccelLibvirtDriver.__mro__
    )


def _plain(value: Any) -> Any:
    inner = inspect.unwrap(value) if callable(value) else None
    return inner if isinstance(inner, FunctionType) else None


@contextlib.contextmanager
def struck(functions: Iterable[tuple[str, FunctionType]]) -> Iterator[None]:
    """Make functions raise for every caller, by any reference."""
    with contextlib.ExitStack() as undo:
        for name, function in functions:
            code = function.__code__
            undo.callback(setattr, function, "__code__", code)
            function.__code__ = _code(name, code.co_freevars)
        yield


@contextlib.contextmanager
def traced(
    functions: dict[str, FunctionType],
) -> Iterator[collections.Counter[str]]:
    """Count the calls of functions meanwhile, by name.

    In this thread, and in those that begin meanwhile.
    """
    names = {function.__code__: name for name, function in functions.items()}
    called: collections.Counter[str] = collections.Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in names:
            called[names[frame.f_code]] += 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield called
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
