# SPDX-License-Identifier: Apache-2.0
"""Options of ``[nova_accel]``, as nova.conf has them."""

import os
from typing import Any

from oslo_config import cfg

from nova_accel.catalog import mdev_names
from nova_accel.config import policy
from nova_accel.config.lines import native_flavors
from nova_accel.model import actions, flavors

GROUP = cfg.OptGroup(
    "nova_accel",
    title="nova-accel",
    help="Accelerators of this compute host as Placement inventory.",
)

# Nova's state_path in distributions; its own default is $pybasedir.
STATE_PATH = "/var/lib/nova"
DEFAULT_STATE_DIR = f"{STATE_PATH}/accel"
# Value of vgpu_sizes that changes no card.
KEEP = "keep"
# Value of guest_topology that depends on the guest.
AUTO = "auto"

_LICENSE_OPTIONS = (
    cfg.ListOpt(
        "licensed_series",
        default=[],
        help="Series of NVIDIA's vGPUs that you have licences for: Q, C, A, B."
        " Profiles of other series are not offered, and `openstack accel"
        " flavor` refuses them. Empty: all.",
    ),
    cfg.StrOpt(
        "license_dir",
        default="",
        help="Directory of the client configuration tokens of NVIDIA's licence"
        " servers: PROJECT.tok for the id of a project, Q.tok for a series,"
        " default.tok for the other servers; the first one that exists is"
        " used. Read by the vendordata service, and by nova-accel doctor"
        " --cloud. Only root and the user of the service may read it.",
    ),
)

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
        default=KEEP,
        choices=[
            (KEEP, "leave each GPU in the mode it is in"),
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
    *_LICENSE_OPTIONS,
    cfg.MultiStrOpt(
        "native_flavors",
        default=[],
        help="Flavors for Nova's own vGPUs that are served as flavors of"
        " profiles: one JSON object per line, the first one that applies"
        " counts. Keys, each an object of extra specs: replace (those of the"
        " flavor that go), by (those that take their place), when (others"
        " that the flavor must have). Set the same lines for nova-scheduler"
        " and nova-compute. Without a line such a flavor is served by hosts"
        " of Nova's own support only. Example: native_flavors ="
        f" {native_flavors.EXAMPLE}",
    ),
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
        default=DEFAULT_STATE_DIR,
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
        " Placement and corrects Placement. The first wait is a random part of"
        " it; the others vary by a tenth."
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
        "guest_topology",
        default=AUTO,
        choices=[
            (
                AUTO,
                "pcie for guests of machine type q35 with a NUMA topology or"
                " two or more devices, where libvirt and QEMU support it",
            ),
            (flavors.GuestTopology.NONE.value, "all devices on one bus"),
            (
                flavors.GuestTopology.NUMA.value,
                "one bus for each NUMA node of the host",
            ),
            (
                flavors.GuestTopology.PCIE.value,
                "the root complexes and switches of the host",
            ),
        ],
        help="PCIe topology of guests whose flavor has no"
        " accelerator:guest_topology. A guest that can't have it gets all"
        " devices on one bus, with a line in the log. Existing guests keep"
        " their topology until their next hard reboot, which may change the"
        " PCI addresses of their accelerators.",
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
]
NAMES = tuple(option.name for option in (*OPTIONS, *SCHEDULER_OPTIONS))


def find_license_error(group: Any) -> tuple[str, str, str] | None:
    """Return option, value and hint of a value that is not valid.

    :param group: object with the values as attributes.
    """
    series = ",".join(group.licensed_series)
    if not set(group.licensed_series) <= set(mdev_names.SERIES):
        letters = ", ".join(mdev_names.SERIES)
        return "licensed_series", series, f"write letters of {letters}"
    if group.license_dir and not os.path.isabs(group.license_dir):
        hint = "write an absolute path, as /etc/nova/licenses"
        return "license_dir", group.license_dir, hint
    return None
