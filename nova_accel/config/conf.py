# SPDX-License-Identifier: Apache-2.0
"""Options of ``[nova_accel]``, parsed into ``Settings``."""

import dataclasses
import glob
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oslo_config import cfg

from nova_accel import errors
from nova_accel.config import conf_options, policy
from nova_accel.config.lines import native_flavors
from nova_accel.model import flavors

# Directory of the cached bitstreams, below the state directory.
_CACHE = "bitstreams"


_MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeigherSettings:
    """Multipliers of AcceleratorWeigher; aggregates can override them."""

    free: float = 10.0
    function: float = 20.0
    packing: float = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BitstreamSettings:
    """Allowed bitstreams and their cache.

    ``images`` are ids of images, ``owners`` of projects; ``limit`` is the
    size of the cache in bytes, ``seconds`` the time limit for loading.
    """

    images: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()
    cache_dir: str = os.path.join(conf_options.DEFAULT_STATE_DIR, _CACHE)
    limit: int = 2048 * _MIB
    seconds: int = 300


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """Passes that correct Placement, and their metrics.

    ``interval`` is in seconds, 0 for no passes in nova-compute, and so is
    ``stats_interval``, 0 for no samples of usage;
    ``metrics_textfile`` is a path, empty for none.
    """

    interval: int = 60
    metrics_textfile: str = ""
    stats_interval: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options, parsed and checked.

    ``files`` has the file or environment variable that sets an option.
    """

    drivers: tuple[str, ...]
    rules: policy.DeviceRules
    root: str
    state_dir: str = conf_options.DEFAULT_STATE_DIR
    bitstreams: BitstreamSettings = BitstreamSettings()
    sync: SyncSettings = SyncSettings()
    #: In MiB/s, 0 where it is unknown.
    live_migration_link: int = 0
    #: Whether guests may leave a host whose kernel has no IOMMUFD.
    live_migration_without_iommufd: bool = False
    #: Whether all PCI functions are assigned by IOMMUFD.
    use_iommufd: bool = False
    #: PCIe topology of guests, None if it depends on the guest.
    guest_topology: flavors.GuestTopology | None = None
    #: Path of the licence tokens, empty for none.
    license_dir: str = ""
    #: Of native_flavors.
    replacements: tuple[native_flavors.Replacement, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def refusal(
        self, option: str, value: str, hint: str
    ) -> errors.ConfigurationError:
        """Return the error of a value, with the file that sets the option.

        :param hint: what is wrong with the value and what to write instead.
        """
        file = self.files.get(option, "default of")
        name = f"[{conf_options.GROUP.name}] {option}"
        return errors.ConfigurationError(name, value, hint, file)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [
        (
            conf_options.GROUP,
            [*conf_options.OPTIONS, *conf_options.SCHEDULER_OPTIONS],
        )
    ]


def read_weigher_settings(conf: cfg.ConfigOpts) -> WeigherSettings:
    """Return the weigher's settings from nova-scheduler's configuration.

    :param conf: parsed; the function registers the options.
    :raises ConfigurationError: a value is not valid.
    """
    group = _read_group(conf, conf_options.SCHEDULER_OPTIONS)
    return WeigherSettings(
        free=group.accelerator_free_weight_multiplier,
        function=group.accelerator_function_weight_multiplier,
        packing=group.accelerator_packing_weight_multiplier,
    )


def read_native_flavors(
    conf: cfg.ConfigOpts,
) -> tuple[native_flavors.Replacement, ...]:
    """Return the lines of ``native_flavors``.

    :param conf: parsed; the function registers the library's options.
    :raises ConfigurationError: a line is not valid.
    """
    return _parse_native_flavors(conf, _read_group(conf, conf_options.OPTIONS))


def _parse_native_flavors(
    conf: cfg.ConfigOpts, group: types.SimpleNamespace
) -> tuple[native_flavors.Replacement, ...]:
    try:
        return native_flavors.parse_lines(group.native_flavors)
    except errors.ConfigurationError as error:
        raise _refusal(
            conf, "native_flavors", error.value, error.hint
        ) from error


def read_settings(conf: cfg.ConfigOpts) -> Settings:
    """Return the library's settings from a parsed configuration.

    :raises ConfigurationError: a value is not valid.
    """
    group = _read_group(conf, conf_options.OPTIONS)
    for option, example in (
        ("state_dir", conf_options.DEFAULT_STATE_DIR),
        ("root", "/"),
    ):
        value = getattr(group, option)
        if not os.path.isabs(value):
            hint = f"write an absolute path, as {example}"
            raise _refusal(conf, option, value, hint)
    if invalid := conf_options.find_license_error(group):
        raise _refusal(conf, *invalid)
    try:
        rules = policy.parse_rules(
            group.device_spec, build_default_rule(group)
        )
    except errors.ConfigurationError as error:
        raise _refusal(conf, "device_spec", error.value, error.hint) from error
    return Settings(
        drivers=tuple(group.drivers),
        rules=rules,
        root=group.root,
        state_dir=group.state_dir,
        bitstreams=BitstreamSettings(
            images=frozenset(group.bitstream_images),
            owners=frozenset(group.bitstream_owners),
            cache_dir=os.path.join(group.state_dir, _CACHE),
            limit=group.bitstream_cache_mb * _MIB,
            seconds=group.program_timeout,
        ),
        sync=SyncSettings(
            interval=group.sync_interval,
            metrics_textfile=group.metrics_textfile,
            stats_interval=group.stats_interval,
        ),
        live_migration_link=group.live_migration_link,
        live_migration_without_iommufd=group.live_migration_without_iommufd,
        use_iommufd=group.use_iommufd,
        guest_topology=None
        if group.guest_topology == conf_options.AUTO
        else flavors.GuestTopology(group.guest_topology),
        license_dir=group.license_dir,
        replacements=_parse_native_flavors(conf, group),
        files=_find_files(conf),
    )


def _read_group(
    conf: cfg.ConfigOpts, options: Sequence[cfg.Opt]
) -> types.SimpleNamespace:
    """Return the values of options of the group.

    :raises ConfigurationError: a value has the wrong type, or is empty.
    """
    conf.register_group(conf_options.GROUP)
    conf.register_opts(options, group=conf_options.GROUP)
    values = {}
    for option in options:
        try:
            values[option.dest] = conf.nova_accel[option.dest]
        except cfg.Error as error:
            hint = _describe_type(option) or f"{error}; write it without $"
            raise _refusal(conf, option.dest, None, hint) from error
        # oslo.config returns None for an empty number.
        if values[option.dest] is None and option.default is not None:
            raise _refusal(conf, option.dest, None, _describe_type(option))
    return types.SimpleNamespace(**values)


def _describe_type(option: cfg.Opt) -> str:
    """Return a hint about valid values, empty if any text is valid."""
    choices = getattr(option.type, "choices", None)
    if choices:
        return f"write one of {', '.join(choices)}"
    if not isinstance(option, cfg.IntOpt | cfg.FloatOpt):
        return ""
    noun = "a whole number" if isinstance(option, cfg.IntOpt) else "a number"
    minimum = getattr(option.type, "min", None)
    maximum = getattr(option.type, "max", None)
    if maximum is not None:
        return f"write {noun} from {minimum} to {maximum}"
    if minimum is not None:
        return f"write {noun}, {minimum} or more"
    return f"write {noun}"


def _refusal(
    conf: cfg.ConfigOpts, option: str, value: str | None, hint: str
) -> errors.ConfigurationError:
    """Return the error of a value, with the file that sets it.

    :param value: None for the effective value, which is the last one.
    """
    file, effective = "nova.conf", ""
    for path, sections in read_sections(conf):
        for section, keys in sections.items():
            if section.lower() != conf_options.GROUP.name:
                continue
            for text in keys.get(option, ()):
                if value is None or text == value:
                    file, effective = path, text
    # The environment precedes files (oslo.config, use_env).
    variable = _environment_variable(option)
    if variable in os.environ:
        file, effective = f"environment {variable}", os.environ[variable]
    return errors.ConfigurationError(
        f"[{conf_options.GROUP.name}] {option}",
        (effective if value is None else value) or "(empty)",
        hint,
        file,
    )


def _environment_variable(option: str) -> str:
    return f"OS_{conf_options.GROUP.name}__{option}".upper()


def _find_files(conf: cfg.ConfigOpts) -> dict[str, str]:
    """Return the last file that sets each option of the group."""
    files: dict[str, str] = {}
    for path, sections in read_sections(conf):
        for section, keys in sections.items():
            if section.lower() == conf_options.GROUP.name:
                files |= dict.fromkeys(keys, path)
    for option in conf_options.OPTIONS:
        variable = _environment_variable(option.dest)
        if variable in os.environ:
            files[option.dest] = f"environment {variable}"
    return files


def read_sections(
    conf: cfg.ConfigOpts,
) -> Iterator[tuple[str, Mapping[str, Mapping[str, Sequence[str]]]]]:
    """Yield each configuration file with its sections, options and values.

    A configuration that was not read from files yields none.
    """
    # Only parsed configurations have these attributes.
    paths = list(getattr(conf, "config_file", None) or ())
    directories = conf.config_dirs or getattr(conf, "config_dir", None) or ()
    for directory in directories:
        pattern = os.path.join(os.path.expanduser(directory), "*.conf")
        paths += sorted(glob.glob(pattern))
    for path in paths:
        sections: dict[str, dict[str, Any]] = {}
        try:
            cfg.ConfigParser(path, sections).parse()
        except (OSError, UnicodeDecodeError, cfg.ParseError):
            continue  # oslo.config itself reports the file
        yield path, sections


def build_default_rule(group: types.SimpleNamespace) -> policy.Rule:
    """Return the rule of devices without a line, from the group's values."""
    sizes = group.vgpu_sizes
    return policy.Rule(
        is_mixed=None if sizes == conf_options.KEEP else sizes == policy.MIXED,
        is_dynamic=group.mig_instances == policy.DYNAMIC,
        series=frozenset(group.licensed_series),
    )
