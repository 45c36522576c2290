# SPDX-License-Identifier: Apache-2.0
"""Options of the ``[nova_accel]`` group."""

import dataclasses
import difflib
import glob
import os
import pathlib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oslo_config import cfg

from nova_accel import errors, model
from nova_accel.config import policy
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
# Where a distribution's packages and nova-compute have their settings.
CONFIG_FILES = ("/etc/nova/nova.conf", "/etc/nova/nova-compute.conf")
# Sections at least so similar to the group's name are taken for it,
# misspelt: [nova-accel] and [nova_acel] are, [nova] and [accel] are not.
_LIKENESS = 0.8
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
        help="Which devices are offered and how: one JSON object a line,"
        " in the style of [pci] device_spec; the first line that matches a"
        " device counts. Without any line every device is offered for what"
        " it can do now without changing its mode, and none that the host"
        " itself uses. Keys: address (glob over the PCI address, or over"
        " the sysfs name of a device off the PCI bus; or an object of globs"
        " over domain, bus, slot and function), vendor_id, product_id, use"
        " (auto, vgpu, mig, vf, mdev, passthrough, off), max_slots,"
        " profiles (glob or list of globs), max_instances (object: how many"
        " at most, by profile name), sizes (equal, mixed), num_vfs,"
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
        help="Whether vGPUs of different sizes may share an NVIDIA GPU,"
        " where device_spec does not say it by the key sizes. The mode is"
        " set when the service starts, on GPUs that hold no vGPU, and only"
        " where the GPU can do it and NVML is installed.",
    ),
    cfg.StrOpt(
        "mig_instances",
        default=policy.STATIC,
        choices=[
            (policy.STATIC, "offer the GPU instances that exist"),
            (
                policy.DYNAMIC,
                "make a GPU instance for a server, and unmake it after",
            ),
        ],
        help="What becomes of the GPU instances of NVIDIA GPUs in MIG mode,"
        " where device_spec does not say it by the key mig_instances."
        " Under dynamic empty instances of a card are unmade, whoever made"
        " them.",
    ),
    cfg.ListOpt(
        "bitstream_images",
        default=[],
        help="Ids of the Glance images that may be loaded into FPGA regions,"
        " beside those of bitstream_owners. Any other image that a flavor"
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
        default=f"{STATE_PATH}/accel",
        help="Directory of this service's own files: bitstreams of Glance"
        " (bitstreams/), notes on devices that failed (faulted/), on those"
        " that were drained (drained/) and on errors that somebody has seen"
        " to (acknowledged/), which outlive a restart,"
        " functions that were not seen clean since a server had them"
        " (unreleased/), serial numbers of whole functions (serials/),"
        " what its servers hold (book.json), how the last pass went"
        " (status/), and the locks of the service (nova-compute.lock and"
        " nova-compute.next). It is made if it is missing.",
    ),
    cfg.IntOpt(
        "bitstream_cache_mb",
        default=2048,
        min=1,
        help="How many MiB of bitstreams are kept; the ones used longest ago"
        " go first. A bitstream that is larger is refused.",
    ),
    cfg.IntOpt(
        "program_timeout",
        default=300,
        min=1,
        max=actions.MOST_PROGRAM_S,
        help="How many seconds loading a bitstream into an FPGA may take."
        " After that the region is set aside as faulted.",
    ),
    cfg.IntOpt(
        "sync_interval",
        default=60,
        min=0,
        help="How many seconds after a pass that compares this host with"
        " Placement, and mends what differs there, the next one begins; each"
        " waits up to a tenth longer. What the kernel tells of devices, and"
        " servers that come and go, wake it at once. 0: nova-compute makes"
        " no such pass, and mends only with its own periodic task what it"
        " has changed itself.",
    ),
    cfg.StrOpt(
        "metrics_textfile",
        default="",
        help="File that each pass leaves its metrics in, in the format of"
        " Prometheus, for the textfile collector of its node exporter: its"
        " name must end in .prom. Empty: none. Needs prometheus_client.",
    ),
    cfg.IntOpt(
        "metrics_port",
        default=0,
        min=0,
        max=65535,
        help="Port of the loopback interface at which the metrics are given"
        " to Prometheus. 0: none. Needs prometheus_client.",
    ),
    cfg.IntOpt(
        "live_migration_link",
        default=0,
        min=0,
        help="How many MiB a second the network carries between hosts in a"
        " live migration. From it and the framebuffer of a server's vGPUs"
        " it is told beforehand whether [libvirt] live_migration_downtime"
        " can be kept. [libvirt] live_migration_bandwidth counts if it is"
        " less. 0, and no such bandwidth: nothing is told.",
    ),
    cfg.StrOpt(
        "root",
        default="/",
        advanced=True,
        help="Directory below which the kernel's files are read and"
        " written; for tests with a simulated kernel.",
    ),
]

# Of nova-scheduler. Larger than what the weighers that Nova enables by
# itself add up to when they all prefer another host, which is 7 (1.0 each
# for vCPUs, RAM, disk, PCI devices, the hypervisor's version, a server
# group and I/O; nova/conf/scheduler.py), and far below those that speak of
# failed builds and other cells (1,000,000). A function counts for more than
# packing and all those together.
SCHEDULER_OPTIONS = [
    cfg.FloatOpt(
        "accelerator_free_weight_multiplier",
        default=10.0,
        help="For servers that need no accelerator: how much hosts without"
        " any are preferred. Negative: hosts with accelerators are. 0: it"
        " does not matter. An aggregate's metadata of this name counts for"
        " its hosts instead. Of AcceleratorWeigher in nova-scheduler.",
    ),
    cfg.FloatOpt(
        "accelerator_function_weight_multiplier",
        default=20.0,
        help="For servers whose flavor names a bitstream: how much hosts are"
        " preferred where a free FPGA region holds its function already."
        " Negative: the other ones are. 0: it does not matter, and Glance is"
        " not asked. An aggregate's metadata of this name counts for its"
        " hosts instead. Of AcceleratorWeigher in nova-scheduler.",
    ),
    cfg.FloatOpt(
        "accelerator_packing_weight_multiplier",
        default=10.0,
        help="For servers that need accelerators: how much hosts are"
        " preferred whose accelerators of that kind are fuller, so that"
        " others stay free for large servers. Negative: emptier ones are, so"
        " that servers are spread. 0: it does not matter. An aggregate's"
        " metadata of this name counts for its hosts instead. Of"
        " AcceleratorWeigher in nova-scheduler.",
    ),
    cfg.IntOpt(
        "accelerator_weigher_cache_seconds",
        default=10,
        min=0,
        help="For how many seconds nova-scheduler's AcceleratorWeigher keeps"
        " what Placement says of all accelerators, how full they are and"
        " which functions they hold. 0: it asks anew, once, for each server"
        " that needs one.",
    ),
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeigherSettings:
    """What AcceleratorWeigher goes by, where no aggregate says otherwise.

    The first three are multipliers, ``cache_seconds`` is how long facts
    are kept.
    """

    free: float = 10.0
    function: float = 20.0
    packing: float = 10.0
    cache_seconds: int = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BitstreamSettings:
    """What may be loaded into FPGAs, and where it is kept.

    ``images`` and ``owners`` are ids; ``limit`` is in bytes, ``seconds``
    how long loading may take.
    """

    images: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()
    state_dir: str = f"{STATE_PATH}/accel"
    limit: int = 2048 * _MIB
    seconds: int = 300

    @property
    def cache_dir(self) -> str:
        """Return the directory that bitstreams are kept in."""
        return os.path.join(self.state_dir, "bitstreams")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """How Placement is kept true, and how that can be watched.

    ``interval`` is in seconds, 0 for no pass inside nova-compute;
    ``metrics_textfile`` a path, empty for none; ``metrics_port`` one of
    the loopback interface, 0 for none.
    """

    interval: int = 60
    metrics_textfile: str = ""
    metrics_port: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options, parsed and checked.

    ``problems`` are sections and options that were not read because they
    are misspelt; ``files`` is the file of each option that is written in
    one, or the environment variable that precedes it.
    """

    drivers: tuple[str, ...]
    rules: policy.Policy
    root: str
    bitstreams: BitstreamSettings = BitstreamSettings()
    sync: SyncSettings = SyncSettings()
    #: In MiB/s, 0 where it is not known.
    live_migration_link: int = 0
    problems: tuple[model.Problem, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def refusal(
        self, option: str, value: str, mend: str
    ) -> errors.ConfigurationError:
        """Return the error of a value, with the file that has the option.

        :param mend: what is wrong with the value, and what to write.
        """
        place = self.files.get(option, "default of")
        name = f"[{GROUP.name}] {option}"
        return errors.ConfigurationError(name, value, mend, place)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [(GROUP, [*OPTIONS, *SCHEDULER_OPTIONS])]


def read_weigher_settings(conf: cfg.ConfigOpts) -> WeigherSettings:
    """Return what nova-scheduler's configuration says of the weigher.

    :param conf: parsed. The options are made known in it.
    :raises ConfigurationError: a value can't be used.
    """
    group = _read_group(conf, SCHEDULER_OPTIONS)
    return WeigherSettings(
        free=group.accelerator_free_weight_multiplier,
        function=group.accelerator_function_weight_multiplier,
        packing=group.accelerator_packing_weight_multiplier,
        cache_seconds=group.accelerator_weigher_cache_seconds,
    )


def read_settings(conf: cfg.ConfigOpts) -> Settings:
    """Return this library's settings from a parsed configuration.

    :raises ConfigurationError: a value can't be used.
    """
    group = _read_group(conf, OPTIONS)
    if not os.path.isabs(group.state_dir):
        raise _refusal(
            conf,
            "state_dir",
            group.state_dir,
            "write an absolute path, as /var/lib/nova/accel",
        )
    if not os.path.isabs(group.root):
        raise _refusal(
            conf, "root", group.root, "write an absolute path, as /"
        )
    try:
        rules = policy.parse_policy(group.device_spec, _usual(group))
    except errors.ConfigurationError as error:
        raise _refusal(conf, "device_spec", error.value, error.mend) from error
    return Settings(
        drivers=tuple(group.drivers),
        rules=rules,
        root=group.root,
        bitstreams=BitstreamSettings(
            images=frozenset(group.bitstream_images),
            owners=frozenset(group.bitstream_owners),
            state_dir=group.state_dir,
            limit=group.bitstream_cache_mb * _MIB,
            seconds=group.program_timeout,
        ),
        sync=SyncSettings(
            interval=group.sync_interval,
            metrics_textfile=group.metrics_textfile,
            metrics_port=group.metrics_port,
        ),
        live_migration_link=group.live_migration_link,
        problems=tuple(_find_misspelt(conf)),
        files=_find_files(conf),
    )


def _read_group(
    conf: cfg.ConfigOpts, options: Sequence[cfg.Opt]
) -> types.SimpleNamespace:
    """Return the values of some options of the group.

    :raises ConfigurationError: a value is of the wrong type, or is empty.
    """
    conf.register_group(GROUP)
    conf.register_opts(options, group=GROUP)
    values = {}
    for option in options:
        try:
            values[option.dest] = conf.nova_accel[option.dest]
        except cfg.Error as error:
            expected = _describe_type(option) or f"{error}; write it without $"
            raise _refusal(conf, option.dest, None, expected) from error
        # oslo.config returns None for an empty number.
        if values[option.dest] is None and option.default is not None:
            raise _refusal(conf, option.dest, None, _describe_type(option))
    return types.SimpleNamespace(**values)


def _describe_type(option: cfg.Opt) -> str:
    """Return what to write as a value, empty if any text will do."""
    choices = getattr(option.type, "choices", None)
    if choices:
        return f"write one of {', '.join(choices)}"
    if not isinstance(option, cfg.IntOpt | cfg.FloatOpt):
        return ""
    noun = "a whole number" if isinstance(option, cfg.IntOpt) else "a number"
    least = getattr(option.type, "min", None)
    most = getattr(option.type, "max", None)
    if most is not None:
        return f"write {noun} from {least} to {most}"
    return f"write {noun}" + ("" if least is None else f", {least} or more")


def _refusal(
    conf: cfg.ConfigOpts, option: str, value: str | None, mend: str
) -> errors.ConfigurationError:
    """Return the error of a value, with the place where it is written.

    :param value: None for the value that applies, the last one written.
    """
    place, found = "nova.conf", ""
    for path, sections in _read_sections(conf):
        for section, keys in sections.items():
            if section.lower() != GROUP.name:
                continue
            for text in keys.get(option, ()):
                if value is None or text == value:
                    place, found = path, text
    # The environment goes before files (oslo.config, use_env).
    variable = _variable(option)
    if variable in os.environ:
        place, found = f"environment {variable}", os.environ[variable]
    return errors.ConfigurationError(
        f"[{GROUP.name}] {option}",
        (found if value is None else value) or "(empty)",
        mend,
        place,
    )


def _variable(option: str) -> str:
    """Return the environment variable of an option."""
    return f"OS_{GROUP.name}__{option}".upper()


def _find_files(conf: cfg.ConfigOpts) -> dict[str, str]:
    """Return the last file that has each option of the group."""
    files: dict[str, str] = {}
    for path, sections in _read_sections(conf):
        for section, keys in sections.items():
            if section.lower() == GROUP.name:
                files |= dict.fromkeys(keys, path)
    for variable, option in ((_variable(o.dest), o.dest) for o in OPTIONS):
        if variable in os.environ:
            files[option] = f"environment {variable}"
    return files


def _read_sections(
    conf: cfg.ConfigOpts,
) -> Iterator[tuple[str, Mapping[str, Mapping[str, Sequence[str]]]]]:
    """Yield each configuration file and its sections as they are written.

    A configuration that was not read from files has none.
    """
    # Attributes of a configuration that was parsed.
    paths = list(getattr(conf, "config_file", None) or ())
    for place in conf.config_dirs or getattr(conf, "config_dir", None) or ():
        pattern = os.path.join(os.path.expanduser(place), "*.conf")
        paths += sorted(glob.glob(pattern))
    for path in paths:
        sections: dict[str, dict[str, Any]] = {}
        try:
            cfg.ConfigParser(path, sections).parse()
        except (OSError, UnicodeDecodeError, cfg.ParseError):
            continue  # oslo.config itself refuses what the service reads
        yield path, sections


def _find_misspelt(conf: cfg.ConfigOpts) -> Iterator[model.Problem]:
    """Yield a problem for each unknown option of the group.

    And for each section whose name is nearly that of the group.
    """
    names = [option.name for option in (*OPTIONS, *SCHEDULER_OPTIONS)]
    for path, sections in _read_sections(conf):
        for section, keys in sections.items():
            if section.lower() == GROUP.name:
                for key in sorted(keys.keys() - {*names}):
                    where = f"{path} [{section}] {key}"
                    near = difflib.get_close_matches(key.lower(), names, 1)
                    yield _misspelt(where, "option", near)
            elif _is_like_group(section):
                yield _misspelt(
                    f"{path} [{section}]", "section", [f"[{GROUP.name}]"]
                )


def _is_like_group(section: str) -> bool:
    name, letters = (
        re.sub("[^a-z]", "", text.lower()) for text in (GROUP.name, section)
    )
    matcher = difflib.SequenceMatcher(None, name, letters)
    return letters.startswith(name) or matcher.ratio() >= _LIKENESS


def _misspelt(where: str, noun: str, nearest: Sequence[str]) -> model.Problem:
    hint = f"did you mean {nearest[0]}?" if nearest else "remove it"
    return model.Problem(
        where=where,
        reason=f"is ignored: nova-accel has no such {noun}; {hint}",
    )


def _usual(group: types.SimpleNamespace) -> policy.Rule:
    """Return what counts for devices of which no line speaks."""
    sizes = group.vgpu_sizes
    return policy.Rule(
        is_mixed=None if sizes == _KEEP else sizes == policy.MIXED,
        is_dynamic=group.mig_instances == policy.DYNAMIC,
    )


def read_own_root() -> str:
    """Return ``root`` of the configuration that this process was started with.

    Nova's privileged daemon reads the files of its command line, which a
    caller of its functions has no influence on.
    """
    cfg.CONF.register_group(GROUP)
    cfg.CONF.register_opts(OPTIONS, group=GROUP)
    return str(cfg.CONF.nova_accel.root)


def read_files(paths: Sequence[str]) -> Settings:
    """Return this library's settings from nova.conf files.

    :param paths: in the order in which the service reads them.
    :raises ConfigurationError: a file is missing or malformed, or a value
        in it can't be used.
    """
    return parse_files(paths)[1]


def parse_files(paths: Sequence[str]) -> tuple[cfg.ConfigOpts, Settings]:
    """Return nova.conf files as oslo.config has them, and our settings.

    For options of other groups, which whoever needs them registers.

    :raises ConfigurationError: see ``read_files``.
    """
    conf = cfg.ConfigOpts()
    try:
        conf([], default_config_files=list(paths), default_config_dirs=[])
    except (cfg.Error, OSError, UnicodeDecodeError) as error:
        raise _unreadable(paths, error) from error
    # A value may be written as $state_path/accel.
    conf.register_opt(cfg.StrOpt("state_path", default=STATE_PATH))
    return conf, read_settings(conf)


def _unreadable(
    paths: Sequence[str], error: Exception
) -> errors.ConfigurationError:
    """Return the error of configuration files that can't be parsed."""
    mend = str(error)
    if isinstance(error, OSError):
        paths = (str(error.filename),)
        mend = f"can't be read ({error.strerror})"
    elif isinstance(error, UnicodeDecodeError):
        paths = [path for path in paths if not _is_text(path)]
        mend = "is not UTF-8; convert it, or remove the odd characters"
    elif isinstance(error, cfg.ConfigFilesNotFoundError):
        paths, mend = tuple(error.config_files), "does not exist"
    elif isinstance(error, cfg.ConfigFilesPermissionDeniedError):
        paths = tuple(error.config_files)
        mend = "can't be read by this user; run this as root, or as nova"
    elif isinstance(error, cfg.ConfigFileParseError):
        paths = (error.config_file,)
        mend = str(error.msg).replace(f"at {error.config_file}:", "line ")
    return errors.ConfigurationError(
        "file", ", ".join(paths), mend, "configuration"
    )


def _is_text(path: str) -> bool:
    """Return whether a file can be decoded as oslo.config does it."""
    try:
        pathlib.Path(path).read_text()
    except UnicodeDecodeError:
        return False
    return True


def default_files() -> tuple[str, ...]:
    """Return those of CONFIG_FILES that exist."""
    return tuple(path for path in CONFIG_FILES if os.path.exists(path))


def libvirt_uri(conf: cfg.ConfigOpts | None) -> str:
    """Return the address of the libvirt that nova-compute asks.

    :param conf: nova.conf, parsed; None for a host without one.
    """
    if conf is None:
        return LIBVIRT_URI
    option = cfg.StrOpt("connection_uri", default="")
    conf.register_opt(option, group="libvirt")
    return str(conf.libvirt.connection_uri or LIBVIRT_URI)
