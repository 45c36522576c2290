# SPDX-License-Identifier: Apache-2.0
"""Files of nova.conf, as commands and ``placement-sync`` read them.

nova-compute itself parses them by oslo.config before the library is loaded.
"""

import glob
import itertools
import os
import pathlib
from collections.abc import Sequence

from oslo_config import cfg

from nova_accel import errors
from nova_accel.config import conf as options
from nova_accel.config import conf_options

# Default of Nova's [libvirt] connection_uri (LibvirtDriver._uri).
LIBVIRT_URI = "qemu:///system"


# Configuration files of nova-compute in distributions.
CONFIG_FILES = ("/etc/nova/nova.conf", "/etc/nova/nova-compute.conf")


# Their directories of further files (oslo.config, find_config_dirs).
CONFIG_DIRS = tuple(f"{path}.d" for path in CONFIG_FILES)


DEFAULT_FILES = f"{' and '.join(CONFIG_FILES)}, and *.conf in their .d"


def read_files(paths: Sequence[str]) -> options.Settings:
    """Return the library's settings from nova.conf files.

    :param paths: in the order in which the service reads them.
    :raises ConfigurationError: a file is missing or malformed, or has a
        value that is not valid.
    """
    return parse_files(paths)[1]


def parse_files(
    paths: Sequence[str],
) -> tuple[cfg.ConfigOpts, options.Settings]:
    """Return oslo.config's view of nova.conf files, and the settings.

    The first serves callers that register options of other groups.

    :raises ConfigurationError: see ``read_files``.
    """
    conf = cfg.ConfigOpts()
    try:
        conf([], default_config_files=list(paths), default_config_dirs=[])
    except (cfg.Error, OSError, UnicodeDecodeError) as error:
        raise _unreadable_files(paths, error) from error
    # A value can refer to it: $state_path/accel.
    conf.register_opt(
        cfg.StrOpt("state_path", default=conf_options.STATE_PATH)
    )
    return conf, options.read_settings(conf)


def _unreadable_files(
    paths: Sequence[str], error: Exception
) -> errors.ConfigurationError:
    hint = str(error)
    if isinstance(error, OSError):
        paths = (str(error.filename),)
        hint = f"can't be read ({error.strerror})"
    elif isinstance(error, UnicodeDecodeError):
        paths = [path for path in paths if not _is_text(path)]
        hint = "is not UTF-8; convert it, or remove the odd characters"
    elif isinstance(error, cfg.ConfigFilesNotFoundError):
        paths, hint = tuple(error.config_files), "does not exist"
    elif isinstance(error, cfg.ConfigFilesPermissionDeniedError):
        paths = tuple(error.config_files)
        hint = "can't be read by this user; run this as root, or as nova"
    elif isinstance(error, cfg.ConfigFileParseError):
        paths = (error.config_file,)
        hint = str(error.msg).replace(f"at {error.config_file}:", "line ")
    return errors.ConfigurationError(
        "file", ", ".join(paths), hint, "configuration"
    )


def _is_text(path: str) -> bool:
    """Return whether oslo.config can decode the file."""
    try:
        pathlib.Path(path).read_text()
    except UnicodeDecodeError:
        return False
    return True


def find_default_files() -> tuple[str, ...]:
    """Return the existing ones of CONFIG_FILES, and those of CONFIG_DIRS.

    The order is that of oslo.config, whose last value of an option counts.
    """
    further = (sorted(glob.glob(f"{path}/*.conf")) for path in CONFIG_DIRS)
    files = tuple(path for path in CONFIG_FILES if os.path.exists(path))
    return (*files, *itertools.chain.from_iterable(further))


def read_libvirt_uri(conf: cfg.ConfigOpts | None) -> str:
    """Return the URI of nova-compute's libvirt.

    :param conf: parsed nova.conf; None for a host without one.
    """
    if conf is None:
        return LIBVIRT_URI
    option = cfg.StrOpt("connection_uri", default="")
    conf.register_opt(option, group="libvirt")
    return str(conf.libvirt.connection_uri or LIBVIRT_URI)
