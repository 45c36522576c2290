# SPDX-License-Identifier: Apache-2.0
"""Switch the library on from nova.conf, wherever it is installed.

Nova loads its compute driver from below ``nova.virt`` only. The wheel
puts a package there, but an editable install, or a library installed
beside a distribution's Nova, can't. With::

    [DEFAULT]
    config_source = accel

    [accel]
    driver = nova_accel

oslo.config opens this source before Nova loads anything else. Opening it
makes ``nova.virt.accel`` importable, and the source answers one question:
``compute_driver``, where nova.conf itself doesn't set it. Other services
may name the source too; nothing happens until one imports the driver.

Nova 34 reads its configuration twice, first before it has chosen between
threads and eventlet: this module imports the standard library and
oslo.config, nothing else, and opening it twice is opening it once. And
oslo.config imports every installed source as soon as one is named, so
importing this module changes nothing.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib import abc, machinery
from pathlib import Path
from types import ModuleType
from typing import Any

from oslo_config import cfg, sources

SHIM = "nova.virt.accel"
COMPUTE_DRIVER = "accel.AccelLibvirtDriver"


class ShimFinder(abc.MetaPathFinder):
    """Finds ``nova.virt.accel`` in this library's own directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> machinery.ModuleSpec | None:
        """Return where the shim is; None for every other name."""
        if fullname != SHIM:
            return None
        return importlib.util.spec_from_file_location(
            fullname,
            self._directory / "__init__.py",
            submodule_search_locations=[str(self._directory)],
        )


def install_finder() -> None:
    """Make ``nova.virt.accel`` importable; once, however often called.

    The finder goes last, so a shim that the wheel laid into Nova's own
    directory is preferred to it.
    """
    if any(isinstance(finder, ShimFinder) for finder in sys.meta_path):
        return
    packages = Path(__file__).resolve().parent.parent
    sys.meta_path.append(ShimFinder(packages / "virt_hooks" / "shim"))


class Source(sources.ConfigurationSource):
    """Knows ``[DEFAULT] compute_driver`` and no other option."""

    def get(
        self, group_name: str | None, option_name: str, opt: cfg.Opt
    ) -> tuple[Any, cfg.LocationInfo | None]:
        """Return the value with its location, or oslo.config's no-value."""
        in_default = group_name in (None, "DEFAULT")
        if in_default and option_name == "compute_driver":
            location = cfg.LocationInfo(cfg.Locations.user, __name__)
            return COMPUTE_DRIVER, location
        return sources._NoValue, None


class Driver(sources.ConfigurationSourceDriver):
    """The entry point ``nova_accel`` of ``oslo.config.driver``."""

    def list_options_for_discovery(self) -> list[Any]:
        """Return no options: naming the source is all there is to set."""
        return []

    def open_source_from_opt_group(
        self, conf: cfg.ConfigOpts, group_name: str
    ) -> sources.ConfigurationSource:
        """Return the source, with ``nova.virt.accel`` importable."""
        install_finder()
        return Source()
