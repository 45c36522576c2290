# SPDX-License-Identifier: Apache-2.0
"""Hosts that commands read: this machine, a directory, an archive."""

import argparse
import os
from collections.abc import Sequence

from nova_accel import errors
from nova_accel.config import conf
from nova_accel.discovery import capture, nova_conf, plugin
from nova_accel.host import nvml_gpus
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import fs, host_reader


def add_config(
    parser: argparse.ArgumentParser, without_default: str = ""
) -> None:
    """Add the option for nova.conf.

    :param without_default: when the default files are not read.
    """
    parser.add_argument(
        "--config-file",
        action="append",
        default=[],
        metavar="FILE",
        help="read [nova_accel] from this nova.conf; may be repeated"
        f" (default: {nova_conf.DEFAULT_FILES}, if they exist"
        f"{without_default})",
    )


def add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        metavar="DIR|ARCHIVE",
        help="read another machine from this directory, which has sys/, or"
        " from this archive of `nova-accel capture`",
    )


def open_host(
    root: str, settings: conf.Settings | None = None
) -> tuple[host_reader.HostReader, capture.Meta]:
    """Return a reader and the metadata of a directory or an archive.

    :param settings: see ``open_source``.
    :raises ArchiveError: the root is neither.
    :raises ConfigurationError: the root of the settings is neither.
    """
    source, read_gpus, meta = open_source(root, settings)
    return host_reader.HostReader(source=source, gpus=read_gpus()), meta


def open_source(
    root: str, settings: conf.Settings | None = None
) -> tuple[fs.FileSource, nvml_gpus.ReadGpus, capture.Meta]:
    """Return files, NVML reader and metadata of a directory or an archive.

    :param settings: if ``root`` is the root of these settings, an error
        names the option and its file.
    :raises ArchiveError: the root is neither.
    :raises ConfigurationError: the root of the settings is neither.
    """
    try:
        return _open_source(root)
    except errors.ArchiveError as error:
        if settings is None or root != settings.root:
            raise
        raise settings.refusal("root", root, error.reason) from error


def _open_source(
    root: str,
) -> tuple[fs.FileSource, nvml_gpus.ReadGpus, capture.Meta]:
    if os.path.isdir(root + fs.TOP):
        # NVML describes this machine only, not a tree of another host.
        is_this_host = os.path.realpath(root) == "/"
        return (
            fs.DiskSource(root),
            gpu_reader.read_gpus
            if is_this_host
            else lambda: nvml_gpus.NvmlGpus({}),
            capture.describe_host(root),
        )
    if os.path.isdir(root):
        raise errors.ArchiveError(
            root, "holds no sys/ directory; name the directory above it"
        )
    if not os.path.exists(root):
        raise errors.ArchiveError(root, "does not exist")
    image, meta = capture.load(root)
    gpus = capture.load_gpus(root, meta)
    return image, lambda: gpus, meta


def load_drivers(settings: conf.Settings) -> dict[str, plugin.Driver]:
    """Return the vendor drivers of option ``drivers``, by name.

    :raises ConfigurationError: a driver can't be loaded, or there is none.
    """
    drivers = dict(plugin.load_named(settings))
    if not drivers:
        raise settings.refusal(
            "drivers",
            "(empty)",
            "no vendor driver is installed; install nova-accel with pip so"
            " that its entry points are known",
        )
    return drivers


def select_root(option: str | None, default: str) -> str:
    """Return the root to read: the option's, or the default without it.

    :raises ArchiveError: the option is empty.
    """
    if option == "":
        raise errors.ArchiveError(
            "--root", "is empty; name a directory or an archive"
        )
    return default if option is None else option


def read_settings(
    arguments: argparse.Namespace, is_foreign: bool = False
) -> conf.Settings:
    """Return the settings of ``--config-file``, or of this machine.

    :param is_foreign: another host is read, so this machine's files are
        not.
    """
    return nova_conf.read_files(list_config_files(arguments, is_foreign))


def check_config_files(arguments: argparse.Namespace) -> None:
    """Check that the files of ``--config-file`` can be opened.

    :raises MalformedError: one can't be.
    """
    for path in arguments.config_file:
        try:
            with open(path, encoding="utf-8"):
                pass
        except OSError as error:
            raise errors.MalformedError(
                "nova.conf", path, f"a file to read ({error.strerror})"
            ) from error


def list_config_files(
    arguments: argparse.Namespace, is_foreign: bool = False
) -> Sequence[str]:
    """Return the configuration files; see ``read_settings``."""
    files: Sequence[str] = arguments.config_file
    return files or (() if is_foreign else nova_conf.find_default_files())
