# SPDX-License-Identifier: Apache-2.0
"""nova.conf among the files of a host: of this machine, a tree, an archive.

nova-compute reads the files in the order of ``list_files`` (oslo.config,
find_config_files and find_config_dirs); of an option that is set twice the
last value counts, of a multi-valued one all do. Lines that may hold secrets
are not read (``allowed_paths``).
"""

import collections
import dataclasses
import functools
import types
from collections.abc import Iterator, Mapping

from nova_accel import errors
from nova_accel.config import conf, policy
from nova_accel.host.state import notes
from nova_accel.host.sysfs import allowed_paths, fs

_SECTION = conf.GROUP.name
_UNRELEASED = f"{allowed_paths.STATE_DIR}/unreleased"
# Old names of options that Nova still reads (nova.conf, deprecated_opts).
_PRESENT_NAMES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("pci", "passthrough_whitelist"): ("pci", "device_spec"),
    ("DEFAULT", "pci_passthrough_whitelist"): ("pci", "device_spec"),
    ("devices", "enabled_vgpu_types"): ("devices", "enabled_mdev_types"),
}
# Options that change the rule of devices without a line.
_DEFAULTS = ("vgpu_sizes", "mig_instances", "licensed_series")


class NovaConf:
    """nova.conf of a host; each file is read at most once.

    Each method raises UnreadableError if a file exists and can't be read.
    """

    def __init__(self, files: fs.Files) -> None:
        """Read nothing yet."""
        self._files = files

    @functools.cached_property
    def paths(self) -> tuple[str, ...]:
        """Return the files that exist, the last one to be read last."""
        return tuple(filter(self._files.exists, list_files(self._files)))

    @functools.cached_property
    def _values(self) -> Mapping[tuple[str, str], tuple[tuple[str, str], ...]]:
        """Return values, each with its file, by section and option."""
        values: dict[tuple[str, str], list[tuple[str, str]]]
        values = collections.defaultdict(list)
        for path in self.paths:
            for key, value in _parse(self._files.text(path)):
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
        options = {o.dest: o for o in conf.OPTIONS if o.dest in _DEFAULTS}
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
    *own, kolla = allowed_paths.NOVA_CONF
    return (
        *own,
        *(
            f"{directory}/{name}"
            for directory in allowed_paths.NOVA_CONF_DIRS
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
        name, value = allowed_paths.split_option(line)
        key = section, name
    if key[1]:
        yield key, value
