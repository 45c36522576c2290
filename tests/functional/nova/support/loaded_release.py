# SPDX-License-Identifier: Apache-2.0
"""Earlier releases of this library in the process of a test.

All releases have the same package names, and register options of the same
names. While an earlier one is loaded, its modules and options replace those
of this release; objects that exist go on with the modules of their own.
"""

import contextlib
import functools
import importlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.config import conf, conf_options
from tests.functional import test_activation
from tests.functional.nova.support import harness
from tests.support import earlier_release, wheels

# Modules of nova.conf's options.
_OPTIONS = {
    earlier_release.COMMIT: "nova_accel.conf",
    earlier_release.LAST: "nova_accel.config.conf",
}
_SHIM = "nova.virt.accel"
# Nova's tests replace it, and remove theirs at their end.
_TOP = tempfile.gettempdir()


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="earlier-release-", dir=_TOP)


@functools.cache
def unpack_wheel(release: str) -> str:
    """Build the wheel of an earlier release; return where it is unpacked."""
    place = Path(_directory().name) / release
    earlier_release.extract_source(place / "source", release)
    wheel = wheels.build("wheel", place / "source", place / "wheel")
    test_activation.unpack(wheel, place / "packages")
    return str(place / "packages")


@contextlib.contextmanager
def loaded(release: str) -> Iterator[None]:
    """Let imports find an earlier release meanwhile."""
    directory = unpack_wheel(release)
    own = _remove_modules()
    sys.path.insert(0, directory)
    try:
        with _simulated_libvirt():
            importlib.import_module(_SHIM)
        _register_options(importlib.import_module(_OPTIONS[release]))
        yield
    finally:
        sys.path.remove(directory)
        _remove_modules()
        sys.modules.update(own)
        _register_options(conf)


def _remove_modules() -> dict[str, ModuleType]:
    """Remove the modules of the loaded release; return them by name."""
    names = [
        name
        for name in sys.modules
        if name == _SHIM or name.partition(".")[0] in wheels.PACKAGES
    ]
    return {name: sys.modules.pop(name) for name in names}


@contextlib.contextmanager
def _simulated_libvirt() -> Iterator[None]:
    """Let ``import libvirt`` return the one of Nova's harness meanwhile."""
    real = sys.modules.get("libvirt")
    sys.modules["libvirt"] = fakelibvirt
    try:
        yield
    finally:
        del sys.modules["libvirt"]
        if real is not None:
            sys.modules["libvirt"] = real


def _register_options(module: ModuleType) -> None:
    """Register a release's options in place of those of another one.

    Values that were set are lost. oslo.config unregisters no options after
    it has parsed the arguments.
    """
    harness.CONF._groups.pop(conf_options.GROUP.name, None)
    module.read_settings(harness.CONF)
