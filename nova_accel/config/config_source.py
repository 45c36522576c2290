# SPDX-License-Identifier: Apache-2.0
"""oslo.config driver that sets ``compute_driver`` from nova.conf.

Nova loads its compute driver from below ``nova.virt`` only. The wheel
puts a package there, but an editable install, or a library installed
beside a distribution's Nova, can't. With::

    [DEFAULT]
    config_source = accel

    [accel]
    driver = nova_accel

oslo.config opens this source before Nova loads anything else. Opening it
makes ``nova.virt.accel`` importable, and the source has one value:
``compute_driver``, used where nova.conf doesn't set it. Other services may
name the source too; it has no effect until one imports the driver.

Nova 34 reads its configuration twice, first before it has chosen between
threads and eventlet: this module imports only the standard library,
oslo.config and ``top_packages``, and opening the source is idempotent.
oslo.config imports every installed source as soon as one is named, so
importing this module has no side effects.
"""

import importlib.util
import logging
import sys
from collections.abc import Sequence
from importlib import abc, machinery
from pathlib import Path
from types import ModuleType
from typing import Any

from oslo_config import cfg, sources

from nova_accel.config import top_packages

LOG = logging.getLogger(__name__)

# oslo.config logs its errors before the service sets up its log; Nova's
# loader of compute drivers logs after that.
_OSLO_CONFIG, _LOADER = "oslo_config.cfg", "nova.virt.driver"
# oslo.log's hook logs the error that ends a service by this name.
_SERVICE = "nova"
_NOT_LOADED = "could not load configuration from"

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
        """Return the spec of the shim; None for every other name."""
        if fullname != SHIM:
            return None
        return importlib.util.spec_from_file_location(
            fullname,
            self._directory / "__init__.py",
            submodule_search_locations=[str(self._directory)],
        )


def install_finder() -> None:
    """Make ``nova.virt.accel`` importable; idempotent.

    The finder goes last, so a shim that the wheel installed into Nova's own
    directory takes precedence.
    """
    if any(isinstance(finder, ShimFinder) for finder in sys.meta_path):
        return
    packages = Path(__file__).resolve().parents[2]
    sys.meta_path.append(ShimFinder(packages / "virt_hooks" / "shim"))


class ComputeDriverSource(sources.ConfigurationSource):
    """Source of ``[DEFAULT] compute_driver``, without other options."""

    def get(
        self, group_name: str | None, option_name: str, opt: cfg.Opt
    ) -> tuple[Any, cfg.LocationInfo | None]:
        """Return the value with its location, or oslo.config's _NoValue."""
        in_default = group_name in (None, "DEFAULT")
        if in_default and option_name == "compute_driver":
            location = cfg.LocationInfo(cfg.Locations.user, __name__)
            return COMPUTE_DRIVER, location
        return sources._NoValue, None


class DeferredLog(logging.Filter):
    """Repeats errors about this source in nova-compute's log.

    In the log of each service it also says whose packages were found if an
    import of a package of this library ended the service.

    oslo.config opens sources before a service sets up its log. The errors
    are logged with the first record of Nova's loader of compute drivers, so
    only in nova-compute. It is a filter because a handler would prevent
    oslo.config's own record on standard error.
    """

    def __init__(self) -> None:
        super().__init__()
        self._errors: list[str] = []
        self._opened: list[cfg.ConfigOpts] = []

    def install(self) -> None:
        """Add the filter to both loggers; idempotent."""
        for name in (_OSLO_CONFIG, _LOADER, _SERVICE):
            logging.getLogger(name).addFilter(self)

    def note_opened(self, conf: cfg.ConfigOpts) -> None:
        """Record a configuration that named this source."""
        self._opened.append(conf)

    def filter(self, record: logging.LogRecord) -> bool:
        """Record an error about the source, or log the recorded ones."""
        if record.name == _LOADER:
            self._log_errors()
        elif record.name == _SERVICE:
            _explain_import(record)
        elif str(record.msg).startswith(_NOT_LOADED):
            group = record.args[0] if isinstance(record.args, tuple) else ""
            message = record.getMessage()
            if "accel" in str(group) and message not in self._errors:
                self._errors.append(message)
        return True

    def take_errors(self) -> list[str]:
        """Return the recorded errors, and forget them."""
        messages, self._errors = self._errors, []
        return [f"{text}; accelerators are not offered" for text in messages]

    def _log_errors(self) -> None:
        opened, self._opened = self._opened, []
        for message in self.take_errors():
            LOG.error("%s", message)
        drivers = {getattr(conf, "compute_driver", None) for conf in opened}
        for driver in drivers - {None, COMPUTE_DRIVER}:
            LOG.warning(
                "[DEFAULT] compute_driver = %s precedes config_source:"
                " accelerators are not offered; remove this line, or"
                " config_source",
                driver,
            )


def _explain_import(record: logging.LogRecord) -> None:
    """Log whose packages are found if an import ended a service."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ImportError):
        for package in top_packages.find_foreign():
            LOG.error("%s", package)


_DEFERRED_LOG = DeferredLog()


def take_errors() -> list[str]:
    """Return the errors of sources since the last call.

    nova-compute logs them when it starts.
    """
    return _DEFERRED_LOG.take_errors()


class ConfigSourceDriver(sources.ConfigurationSourceDriver):
    """The entry point ``nova_accel`` of ``oslo.config.driver``."""

    def __init__(self) -> None:
        super().__init__()
        _DEFERRED_LOG.install()

    def list_options_for_discovery(self) -> list[Any]:
        """Return no options: the source is not configurable."""
        return []

    def open_source_from_opt_group(
        self, conf: cfg.ConfigOpts, group_name: str
    ) -> sources.ConfigurationSource:
        """Return the source after making ``nova.virt.accel`` importable."""
        install_finder()
        _DEFERRED_LOG.note_opened(conf)
        return ComputeDriverSource()
