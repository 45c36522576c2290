# SPDX-License-Identifier: Apache-2.0
"""nova.conf among the files of a host: of this machine, a tree, an archive.

nova-compute reads the files in the order of ``list_files`` (oslo.config,
find_config_files and find_config_dirs); of an option that is set twice the
last value counts, of a multi-valued one all do. Lines that may hold secrets
are not read (``host_paths``).
"""

import collections
import dataclasses
import errno
import functools
import glob
import itertools
import os
import pathlib
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oslo_config import cfg

from nova_accel import errors
from nova_accel.config import (
    conf,
    conf_options,
    config_source,
    policy,
)
from nova_accel.host import host_paths
from nova_accel.host.state import notes
from nova_accel.host.sysfs import fs

_SECTION = conf_options.GROUP.name
_UNRELEASED = f"{host_paths.STATE_DIR}/unreleased"
# Old names of options that Nova still reads (nova.conf, deprecated_opts).
_PRESENT_NAMES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("pci", "passthrough_whitelist"): ("pci", "device_spec"),
    ("DEFAULT", "pci_passthrough_whitelist"): ("pci", "device_spec"),
    ("DEFAULT", "pci_alias"): ("pci", "alias"),
    ("devices", "enabled_vgpu_types"): ("devices", "enabled_mdev_types"),
}
# Options that change the rule of devices without a line.
_DEFAULTS = ("vgpu_sizes", "mig_instances", "licensed_series")


class NovaConf:
    """nova.conf of a host; each file is read at most once.

    Each method raises UnreadableError if a file exists and can't be read.
    """

    def __init__(
        self, files: fs.Files, config_files: Sequence[str] = ()
    ) -> None:
        """Read nothing yet.

        :param config_files: files of this machine to read instead, in the
            order in which nova-compute reads them.
        """
        files.allow(host_paths.ALL)
        self._files = files
        #: Files that are read instead of those of the host.
        self.config_files = tuple(config_files)

    @functools.cached_property
    def paths(self) -> tuple[str, ...]:
        """Return the files, the last one to be read last.

        Of a host only existing files are returned.
        """
        if self.config_files:
            return self.config_files
        return tuple(filter(self._files.exists, list_files(self._files)))

    @functools.cached_property
    def _values(self) -> Mapping[tuple[str, str], tuple[tuple[str, str], ...]]:
        """Return values, each with its file, by section and option."""
        values: dict[tuple[str, str], list[tuple[str, str]]]
        values = collections.defaultdict(list)
        for path in self.paths:
            for key, value in _parse(self.read(path)):
                values[_PRESENT_NAMES.get(key, key)].append((value, path))
        return {key: tuple(pairs) for key, pairs in values.items()}

    @functools.cached_property
    def options(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """Return the values by section and option.

        An option that Nova also reads by an old name has its present one.
        Options that this library does not read are left out.
        """
        return {
            key: tuple(value for value, _ in pairs)
            for key, pairs in self._values.items()
        }

    def list_sections(
        self,
    ) -> Iterator[tuple[str, Mapping[str, Mapping[str, Sequence[str]]]]]:
        """Yield each file with its sections, options and values."""
        for path in self.paths:
            sections: dict[str, dict[str, list[str]]] = {}
            for (section, name), value in _parse(self.read(path)):
                options = sections.setdefault(section, {})
                options.setdefault(name, []).append(value)
            yield path, sections

    def read(self, path: str) -> str:
        """Return a file without the lines that may hold secrets.

        :raises UnreadableError: it can't be read.
        """
        if not self.config_files:
            return self._files.text(path)
        try:
            text = pathlib.Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise errors.UnreadableError(path, errno.EILSEQ) from error
        except OSError as error:
            raise errors.UnreadableError(path, error.errno or 0) from error
        return host_paths.ALL.reduce_text(host_paths.NOVA_CONF[0], text)

    def parse(self) -> tuple[Any, conf.Settings]:
        """Return oslo.config's view of the files, and the settings.

        nova-compute reads them so. Of another host's files the lines that
        may hold secrets are missing. The files are parsed once.

        :raises ConfigurationError: see ``parse_files``.
        """
        parsed, _ = self._parsed
        if isinstance(parsed, errors.ConfigurationError):
            raise parsed
        return parsed

    @property
    def source_errors(self) -> tuple[str, ...]:
        """Return the errors of config_source, as nova-compute logs them."""
        return self._parsed[1]

    @functools.cached_property
    def _parsed(
        self,
    ) -> tuple[
        tuple[Any, conf.Settings] | errors.ConfigurationError,
        tuple[str, ...],
    ]:
        """Return the parsed files, or their error, and errors of sources."""
        config_source.take_errors()
        parsed: tuple[Any, conf.Settings] | errors.ConfigurationError
        try:
            parsed = self._parse_files()
        except errors.ConfigurationError as error:
            parsed = error
        return parsed, tuple(config_source.take_errors())

    def _parse_files(self) -> tuple[Any, conf.Settings]:
        """See ``parse``."""
        source = self._files.source
        is_here = isinstance(source, fs.DiskSource) and source.is_this_machine
        if self.config_files or is_here:
            return parse_files(self.paths)
        with tempfile.TemporaryDirectory() as top:
            copies = [f"{top}{path}" for path in self.paths]
            for path, copy in zip(self.paths, copies, strict=True):
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                pathlib.Path(copy).write_text(self.read(path), "utf-8")
            try:
                options, settings = parse_files(copies)
            except errors.ConfigurationError as error:
                texts = (str(text).replace(top, "") for text in error.args)
                raise errors.ConfigurationError(*texts) from error
        return options, dataclasses.replace(
            settings,
            files={
                option: path.replace(top, "")
                for option, path in settings.files.items()
            },
        )

    def read_rules(self) -> policy.DeviceRules:
        """Return the rules for devices, with the functions of servers.

        :raises ConfigurationError: an option is not valid.
        """
        lines = self.options.get((_SECTION, "device_spec"), ())
        default = self._read_default_rule()
        try:
            rules = policy.parse_rules(lines, default)
        except errors.ConfigurationError as error:
            raise self._refusal("device_spec", error) from error
        assigned = notes.parse_file_names(self._list_unreleased())
        return dataclasses.replace(rules, assigned=frozenset(assigned))

    def _read_default_rule(self) -> policy.Rule:
        options = {
            o.dest: o for o in conf_options.OPTIONS if o.dest in _DEFAULTS
        }
        values = {name: option.default for name, option in options.items()}
        for name, option in options.items():
            if texts := self.options.get((_SECTION, name)):
                try:
                    values[name] = option.type(texts[-1])
                except ValueError as error:
                    raise errors.ConfigurationError(
                        f"[{_SECTION}] {name}",
                        texts[-1],
                        f"{error}",
                        self._values[_SECTION, name][-1][1],
                    ) from error
        return conf.build_default_rule(types.SimpleNamespace(**values))

    def _list_unreleased(self) -> tuple[str, ...]:
        try:
            return self._files.names(_UNRELEASED)
        except errors.UnreadableError:
            return ()  # most hosts have none; doctor checks the directory

    def _refusal(
        self, option: str, error: errors.ConfigurationError
    ) -> errors.ConfigurationError:
        """Return an error with the file that has the value."""
        pairs = self._values.get((_SECTION, option), ())
        path = next((p for value, p in pairs if value == error.value), "")
        return errors.ConfigurationError(
            f"[{_SECTION}] {option}",
            error.value,
            error.hint,
            path or "nova.conf",
        )


def list_files(files: fs.Files) -> tuple[str, ...]:
    """Return the files of nova-compute, whether they exist or not.

    :raises UnreadableError: a directory of them can't be listed.
    """
    *own, kolla = host_paths.NOVA_CONF
    return (
        *own,
        *(
            f"{directory}/{name}"
            for directory in host_paths.NOVA_CONF_DIRS
            if files.exists(directory)
            for name in sorted(files.names(directory))
            if name.endswith(".conf") and not name.startswith(".")
        ),
        kolla,
    )


def _parse(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield section, option and value, with continued lines joined."""
    section, key, value = "DEFAULT", ("", ""), ""
    for line in text.splitlines():
        if line[:1].isspace():
            value += line.strip()
            continue
        if key[1]:
            yield key, value
        if line.startswith("["):
            section = line.strip("[]")
        name, value = host_paths.split_option(line)
        key = section, name
    if key[1]:
        yield key, value


# Default of Nova's [libvirt] connection_uri (LibvirtDriver._uri).
LIBVIRT_URI = "qemu:///system"


# Configuration files of nova-compute in distributions.
CONFIG_FILES = ("/etc/nova/nova.conf", "/etc/nova/nova-compute.conf")


# Their directories of further files (oslo.config, find_config_dirs).
CONFIG_DIRS = tuple(f"{path}.d" for path in CONFIG_FILES)


DEFAULT_FILES = f"{' and '.join(CONFIG_FILES)}, and *.conf in their .d"


def read_files(paths: Sequence[str]) -> conf.Settings:
    """Return the library's settings from nova.conf files.

    :param paths: in the order in which the service reads them.
    :raises ConfigurationError: a file is missing or malformed, or has a
        value that is not valid.
    """
    return parse_files(paths)[1]


def parse_files(
    paths: Sequence[str],
) -> tuple[cfg.ConfigOpts, conf.Settings]:
    """Return oslo.config's view of nova.conf files, and the settings.

    The first serves callers that register options of other groups.

    :raises ConfigurationError: see ``read_files``.
    """
    parsed = cfg.ConfigOpts()
    try:
        parsed([], default_config_files=list(paths), default_config_dirs=[])
    except (cfg.Error, OSError, UnicodeDecodeError) as error:
        raise _unreadable_files(paths, error) from error
    # A value can refer to it: $state_path/accel.
    parsed.register_opt(
        cfg.StrOpt("state_path", default=conf_options.STATE_PATH)
    )
    return parsed, conf.read_settings(parsed)


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
