# SPDX-License-Identifier: Apache-2.0
"""The options of the ``[nova_accel]`` group."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from nova_accel import actions, errors, policy

GROUP = cfg.OptGroup(
    "nova_accel",
    title="nova-accel",
    help="Accelerators of this compute host as Placement inventory.",
)

# What Nova asks without [libvirt] connection_uri
# (nova/virt/libvirt/driver.py, _uri).
_WHOSE = "system"
LIBVIRT_URI = f"qemu:///{_WHOSE}"
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
        default="/var/lib/nova/accel",
        help="Directory of this service's own files: bitstreams of Glance"
        " (bitstreams/), notes on devices that failed (faulted/), on those"
        " that were drained (drained/) and on errors that somebody has seen"
        " to (acknowledged/), which outlive a restart,"
        " what its servers hold (book.json), and how the last pass went"
        " (status/). It is made if it is missing.",
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
    state_dir: str = "/var/lib/nova/accel"
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
    """The options, parsed and checked."""

    drivers: tuple[str, ...]
    rules: policy.Policy
    root: str
    bitstreams: BitstreamSettings = BitstreamSettings()
    sync: SyncSettings = SyncSettings()
    #: In MiB/s, 0 where it is not known.
    live_migration_link: int = 0


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [(GROUP, [*OPTIONS, *SCHEDULER_OPTIONS])]


def read_weigher_settings(conf: cfg.ConfigOpts) -> WeigherSettings:
    """Return what nova-scheduler's configuration says of the weigher.

    :param conf: parsed. The options are made known in it.
    """
    conf.register_group(GROUP)
    conf.register_opts(SCHEDULER_OPTIONS, group=GROUP)
    group = conf.nova_accel
    return WeigherSettings(
        free=group.accelerator_free_weight_multiplier,
        function=group.accelerator_function_weight_multiplier,
        packing=group.accelerator_packing_weight_multiplier,
        cache_seconds=group.accelerator_weigher_cache_seconds,
    )


def read_settings(conf: cfg.ConfigOpts) -> Settings:
    """Return this library's settings from a parsed configuration.

    :raises ConfigurationError: a device_spec line is malformed.
    """
    conf.register_group(GROUP)
    conf.register_opts(OPTIONS, group=GROUP)
    group = conf.nova_accel
    return Settings(
        drivers=tuple(group.drivers),
        rules=policy.parse_policy(group.device_spec, _usual(group)),
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
    )


def _usual(group: Any) -> policy.Rule:
    """Return what counts for devices of which no line speaks."""
    sizes = group.vgpu_sizes
    return policy.Rule(
        is_mixed=None if sizes == _KEEP else sizes == policy.MIXED,
        is_dynamic=group.mig_instances == policy.DYNAMIC,
    )


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
        return conf, read_settings(conf)
    except cfg.Error as error:
        raise errors.ConfigurationError(
            "files", ", ".join(paths), str(error)
        ) from error


def libvirt_uri(conf: cfg.ConfigOpts | None) -> str:
    """Return the address of the libvirt that nova-compute asks.

    :param conf: nova.conf, parsed; None for a host without one.
    """
    if conf is None:
        return LIBVIRT_URI
    option = cfg.StrOpt("connection_uri", default="")
    conf.register_opt(option, group="libvirt")
    return str(conf.libvirt.connection_uri or LIBVIRT_URI)
