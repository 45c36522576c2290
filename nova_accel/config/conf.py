# SPDX-License-Identifier: Apache-2.0
"""Options of ``[nova_accel]``, parsed into ``Settings``."""

import dataclasses
import glob
import itertools
import os
import pathlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oslo_config import cfg

from nova_accel import errors, model
from nova_accel.config import license_options, misspellings, policy
from nova_accel.model import actions

GROUP = cfg.OptGroup(
    "nova_accel",
    title="nova-accel",
    help="Accelerators of this compute host as Placement inventory.",
)

# Default of Nova's [libvirt] connection_uri (LibvirtDriver._uri).
LIBVIRT_URI = "qemu:///system"
# Nova's state_path in distributions; its own default is $pybasedir.
STATE_PATH = "/var/lib/nova"
_DEFAULT_STATE_DIR = f"{STATE_PATH}/accel"
# Directory of the cached bitstreams, below the state directory.
_CACHE = "bitstreams"
# Configuration files of nova-compute in distributions.
CONFIG_FILES = ("/etc/nova/nova.conf", "/etc/nova/nova-compute.conf")
# Their directories of further files (oslo.config, find_config_dirs).
CONFIG_DIRS = tuple(f"{path}.d" for path in CONFIG_FILES)
DEFAULT_FILES = f"{' and '.join(CONFIG_FILES)}, and *.conf in their .d"
_KEEP = "keep"
_MIB = 1 << 20

OPTIONS = [
    cfg.ListOpt(
        "drivers",
        default=[],
        help="Vendor drivers to use, by the names under which they are"
        " installed in the entry point group nova_accel.drivers. Empty:"
        " every installed driver. A name that is not installed stops the"
        " service.",
    ),
    cfg.MultiStrOpt(
        "device_spec",
        default=[],
        help="Which devices are offered and how: one JSON object per line,"
        " in the style of [pci] device_spec; the first line that matches a"
        " device is its rule. Without a line each device is offered for the"
        " use that needs no change of its mode, unless the host itself uses"
        " it. Keys: address (glob over the PCI address, or over"
        " the sysfs name of a device off the PCI bus; or an object of globs"
        " over domain, bus, slot and function), vendor_id, product_id, use"
        " (auto, vgpu, mig, vf, mdev, fpga, passthrough, off), max_slots,"
        " profiles (glob or list of globs), max_instances (object: maximal"
        " number by profile name), sizes (equal, mixed), num_vfs,"
        " mig_instances (static, dynamic), vgpu_params (name=value,...),"
        " services, blank, scrub (reset, none), scrub_command (path)."
        ' Example: device_spec = {"address": "0000:41:*", "use": "off"}',
    ),
    cfg.StrOpt(
        "vgpu_sizes",
        default=_KEEP,
        choices=[
            (_KEEP, "leave each GPU in the mode it is in"),
            (policy.EQUAL, "vGPUs of one size at a time on each GPU"),
            (policy.MIXED, "vGPUs of several sizes on one GPU"),
        ],
        help="Whether vGPUs of different sizes may share an NVIDIA GPU, for"
        " devices without the key sizes in device_spec. The mode is set when"
        " the service starts, on GPUs without vGPUs, and only where the GPU"
        " supports it and NVML is installed.",
    ),
    cfg.StrOpt(
        "mig_instances",
        default=policy.STATIC,
        choices=[
            (policy.STATIC, "offer the GPU instances that exist"),
            (
                policy.DYNAMIC,
                "create a GPU instance for a server, and destroy it after",
            ),
        ],
        help="Whether the GPU instances of NVIDIA GPUs in MIG mode are"
        " created for servers, for devices without the key mig_instances in"
        " device_spec. With dynamic, each empty instance of a card is"
        " destroyed, also one that an operator created.",
    ),
    *license_options.OPTIONS,
    cfg.ListOpt(
        "bitstream_images",
        default=[],
        help="Ids of the Glance images that may be loaded into FPGA regions,"
        " besides those of bitstream_owners. Any other image that a flavor"
        " names is refused.",
    ),
    cfg.ListOpt(
        "bitstream_owners",
        default=[],
        help="Ids of the projects all of whose Glance images may be loaded"
        " into FPGA regions.",
    ),
    cfg.StrOpt(
        "state_dir",
        default=_DEFAULT_STATE_DIR,
        help="Directory of the service's own files: bitstreams of Glance"
        " (bitstreams/), notes on devices that failed (faulted/) or are"
        " drained (drained/), acknowledged errors (acknowledged/), scrubs in"
        " progress (scrubbing/), functions not verified clean after their"
        " last server (unreleased/), serial numbers of whole functions"
        " (serials/), allocations of servers whose rebuild failed (booked/),"
        " claims (book.json), results of passes (status/), and locks"
        " (nova-compute.lock, nova-compute.next, sync.lock). It must survive"
        " a restart. It is created if it is missing.",
    ),
    cfg.IntOpt(
        "bitstream_cache_mb",
        default=2048,
        min=1,
        help="Maximal size of the bitstream cache, in MiB; the least recently"
        " used bitstreams are removed first. A larger bitstream is refused.",
    ),
    cfg.IntOpt(
        "program_timeout",
        default=300,
        min=1,
        max=actions.MAX_PROGRAM_S,
        help="Time limit for loading a bitstream into an FPGA, in seconds."
        " After that the region is marked as faulted.",
    ),
    cfg.IntOpt(
        "sync_interval",
        default=60,
        min=0,
        help="Seconds between two passes. A pass compares this host with"
        " Placement and corrects Placement. Up to a tenth is added at random."
        " Kernel events of devices, and servers that are created or deleted,"
        " start a pass at once. 0: nova-compute makes no passes; its periodic"
        " task only updates what it has changed itself.",
    ),
    cfg.StrOpt(
        "metrics_textfile",
        default="",
        help="File for the metrics of each pass, in the format of"
        " Prometheus, for the textfile collector of its node exporter. The"
        " name must end in .prom. Empty: none. Needs prometheus_client.",
    ),
    cfg.IntOpt(
        "metrics_port",
        default=0,
        min=0,
        max=65535,
        help="Port of the loopback interface on which Prometheus can scrape"
        " the metrics. 0: none. Needs prometheus_client.",
    ),
    cfg.IntOpt(
        "stats_interval",
        default=0,
        min=0,
        help="Seconds between two samples of the utilisation, memory, power"
        " and temperature of this host's devices and of their partitions,"
        " for the status of passes and the metrics. nova-compute reads them"
        " in a thread of its own while it makes passes (sync_interval). 0:"
        " none.",
    ),
    cfg.IntOpt(
        "live_migration_link",
        default=0,
        min=0,
        help="Throughput of a live migration between hosts, in MiB/s. With"
        " it and the framebuffer of a server's vGPUs, a migration that would"
        " exceed [libvirt] live_migration_downtime is refused beforehand."
        " [libvirt] live_migration_bandwidth is used if it is lower. 0, and"
        " no such bandwidth: the downtime is not checked.",
    ),
    cfg.BoolOpt(
        "live_migration_without_iommufd",
        default=False,
        help="Permit live migrations from this host though its kernel has no"
        " IOMMUFD. Set it only where QEMU is started with the options of the"
        " documentation's page on live migration: with QEMU's defaults such a"
        " migration fails after it has begun.",
    ),
    cfg.BoolOpt(
        "use_iommufd",
        default=False,
        help="Assign the PCI functions of all guests by IOMMUFD of the kernel."
        " It needs libvirt 12.1, QEMU 9.0 and /dev/iommu; without them such a"
        " server fails. Those of guests with encrypted memory"
        " (hw:mem_encryption) are assigned so in any case.",
    ),
    cfg.StrOpt(
        "root",
        default="/",
        advanced=True,
        help="Directory below which the kernel's files are read and"
        " written; for tests with a simulated kernel.",
    ),
]

# Options of nova-scheduler. The multipliers exceed the sum of the weighers
# that Nova enables by default, which is 7 (1.0 each for vCPUs, RAM, disk,
# PCI devices, hypervisor version, server group and I/O;
# nova/conf/scheduler.py), and are far below those of failed builds and other
# cells (1,000,000). The function multiplier exceeds the sum of packing and
# all those.
SCHEDULER_OPTIONS = [
    cfg.FloatOpt(
        "accelerator_free_weight_multiplier",
        default=10.0,
        help="For servers that need no accelerator: preference for hosts"
        " without any. Negative: prefer hosts with accelerators. 0: no"
        " preference. An aggregate's metadata of this name takes precedence"
        " for its hosts. Read by AcceleratorWeigher in nova-scheduler.",
    ),
    cfg.FloatOpt(
        "accelerator_function_weight_multiplier",
        default=20.0,
        help="For servers whose flavor names a bitstream: preference for"
        " hosts with a free FPGA region that already has its function."
        " Negative: prefer other hosts. 0: no preference, and no request to"
        " Glance. An aggregate's metadata of this name takes precedence for"
        " its hosts. Read by AcceleratorWeigher in nova-scheduler.",
    ),
    cfg.FloatOpt(
        "accelerator_packing_weight_multiplier",
        default=10.0,
        help="For servers that need accelerators: preference for hosts whose"
        " accelerators of that kind are fuller, so that others remain free"
        " for large servers. Negative: prefer emptier ones, to spread"
        " servers. 0: no preference. An aggregate's metadata of this name"
        " takes precedence for its hosts. Read by AcceleratorWeigher in"
        " nova-scheduler.",
    ),
    cfg.IntOpt(
        "accelerator_weigher_cache_seconds",
        default=10,
        min=0,
        help="Time in seconds for which AcceleratorWeigher in nova-scheduler"
        " caches the usage and functions of all accelerators from Placement."
        " 0: it reads them once for each server that needs an accelerator.",
    ),
]
NAMES = tuple(option.name for option in (*OPTIONS, *SCHEDULER_OPTIONS))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeigherSettings:
    """Settings of AcceleratorWeigher; aggregates can override them.

    The first three are multipliers, ``cache_seconds`` is the lifetime of
    cached facts.
    """

    free: float = 10.0
    function: float = 20.0
    packing: float = 10.0
    cache_seconds: int = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BitstreamSettings:
    """Allowed bitstreams and their cache.

    ``images`` are ids of images, ``owners`` of projects; ``limit`` is the
    size of the cache in bytes, ``seconds`` the time limit for loading.
    """

    images: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()
    cache_dir: str = os.path.join(_DEFAULT_STATE_DIR, _CACHE)
    limit: int = 2048 * _MIB
    seconds: int = 300


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """Passes that correct Placement, and their metrics.

    ``interval`` is in seconds, 0 for no passes in nova-compute, and so is
    ``stats_interval``, 0 for no samples of usage;
    ``metrics_textfile`` is a path, empty for none; ``metrics_port`` is on
    the loopback interface, 0 for none.
    """

    interval: int = 60
    metrics_textfile: str = ""
    metrics_port: int = 0
    stats_interval: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options, parsed and checked.

    ``problems`` are misspelt sections and options, which are ignored;
    ``files`` has the file or environment variable that sets an option.
    """

    drivers: tuple[str, ...]
    rules: policy.DeviceRules
    root: str
    state_dir: str = _DEFAULT_STATE_DIR
    bitstreams: BitstreamSettings = BitstreamSettings()
    sync: SyncSettings = SyncSettings()
    #: In MiB/s, 0 where it is unknown.
    live_migration_link: int = 0
    #: Whether guests may leave a host whose kernel has no IOMMUFD.
    live_migration_without_iommufd: bool = False
    #: Whether all PCI functions are assigned by IOMMUFD.
    use_iommufd: bool = False
    #: Path of the licence tokens, empty for none.
    license_dir: str = ""
    problems: tuple[model.Problem, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def refusal(
        self, option: str, value: str, hint: str
    ) -> errors.ConfigurationError:
        """Return the error of a value, with the file that sets the option.

        :param hint: what is wrong with the value and what to write instead.
        """
        file = self.files.get(option, "default of")
        name = f"[{GROUP.name}] {option}"
        return errors.ConfigurationError(name, value, hint, file)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [(GROUP, [*OPTIONS, *SCHEDULER_OPTIONS])]


def read_weigher_settings(conf: cfg.ConfigOpts) -> WeigherSettings:
    """Return the weigher's settings from nova-scheduler's configuration.

    :param conf: parsed; the function registers the options.
    :raises ConfigurationError: a value is not valid.
    """
    group = _read_group(conf, SCHEDULER_OPTIONS)
    return WeigherSettings(
        free=group.accelerator_free_weight_multiplier,
        function=group.accelerator_function_weight_multiplier,
        packing=group.accelerator_packing_weight_multiplier,
        cache_seconds=group.accelerator_weigher_cache_seconds,
    )


def read_settings(conf: cfg.ConfigOpts) -> Settings:
    """Return the library's settings from a parsed configuration.

    :raises ConfigurationError: a value is not valid.
    """
    group = _read_group(conf, OPTIONS)
    for option, example in (("state_dir", _DEFAULT_STATE_DIR), ("root", "/")):
        value = getattr(group, option)
        if not os.path.isabs(value):
            hint = f"write an absolute path, as {example}"
            raise _refusal(conf, option, value, hint)
    if invalid := license_options.find_error(group):
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
            metrics_port=group.metrics_port,
            stats_interval=group.stats_interval,
        ),
        live_migration_link=group.live_migration_link,
        live_migration_without_iommufd=group.live_migration_without_iommufd,
        use_iommufd=group.use_iommufd,
        license_dir=group.license_dir,
        problems=tuple(
            misspellings.find(read_sections(conf), GROUP.name, NAMES)
        ),
        files=_find_files(conf),
    )


def _read_group(
    conf: cfg.ConfigOpts, options: Sequence[cfg.Opt]
) -> types.SimpleNamespace:
    """Return the values of options of the group.

    :raises ConfigurationError: a value has the wrong type, or is empty.
    """
    conf.register_group(GROUP)
    conf.register_opts(options, group=GROUP)
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
            if section.lower() != GROUP.name:
                continue
            for text in keys.get(option, ()):
                if value is None or text == value:
                    file, effective = path, text
    # The environment precedes files (oslo.config, use_env).
    variable = _environment_variable(option)
    if variable in os.environ:
        file, effective = f"environment {variable}", os.environ[variable]
    return errors.ConfigurationError(
        f"[{GROUP.name}] {option}",
        (effective if value is None else value) or "(empty)",
        hint,
        file,
    )


def _environment_variable(option: str) -> str:
    return f"OS_{GROUP.name}__{option}".upper()


def _find_files(conf: cfg.ConfigOpts) -> dict[str, str]:
    """Return the last file that sets each option of the group."""
    files: dict[str, str] = {}
    for path, sections in read_sections(conf):
        for section, keys in sections.items():
            if section.lower() == GROUP.name:
                files |= dict.fromkeys(keys, path)
    for option in OPTIONS:
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
        is_mixed=None if sizes == _KEEP else sizes == policy.MIXED,
        is_dynamic=group.mig_instances == policy.DYNAMIC,
        series=frozenset(group.licensed_series),
    )


def read_files(paths: Sequence[str]) -> Settings:
    """Return the library's settings from nova.conf files.

    :param paths: in the order in which the service reads them.
    :raises ConfigurationError: a file is missing or malformed, or has a
        value that is not valid.
    """
    return parse_files(paths)[1]


def parse_files(paths: Sequence[str]) -> tuple[cfg.ConfigOpts, Settings]:
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
    conf.register_opt(cfg.StrOpt("state_path", default=STATE_PATH))
    return conf, read_settings(conf)


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
