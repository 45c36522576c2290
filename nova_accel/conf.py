# SPDX-License-Identifier: Apache-2.0
"""The options of the ``[nova_accel]`` group."""

import dataclasses
from collections.abc import Sequence

from oslo_config import cfg

from nova_accel import errors, policy

GROUP = cfg.OptGroup(
    "nova_accel",
    title="nova-accel",
    help="Accelerators of this compute host as Placement inventory.",
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
        help="Which devices are offered and how: one JSON object a line,"
        " in the style of [pci] device_spec; the first line that matches a"
        " device counts. Keys: address (glob over the PCI address, or over"
        " the sysfs name of a device off the PCI bus), vendor_id,"
        " product_id, use (auto, mdev, passthrough, off), max_slots."
        " Without any line every device is offered for what it can do now"
        " without changing its mode, and none that the host itself uses."
        ' Example: device_spec = {"address": "0000:41:*", "use": "off"}',
    ),
    cfg.StrOpt(
        "root",
        default="/",
        advanced=True,
        help="Directory below which the kernel's files are read and"
        " written; for tests with a simulated kernel.",
    ),
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options, parsed and checked."""

    drivers: tuple[str, ...]
    rules: policy.Policy
    root: str


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [(GROUP, OPTIONS)]


def read_settings(conf: cfg.ConfigOpts) -> Settings:
    """Return this library's settings from a parsed configuration.

    :raises ConfigurationError: a device_spec line is malformed.
    """
    conf.register_group(GROUP)
    conf.register_opts(OPTIONS, group=GROUP)
    group = conf.nova_accel
    return Settings(
        drivers=tuple(group.drivers),
        rules=policy.parse_policy(group.device_spec),
        root=group.root,
    )


def read_files(paths: Sequence[str]) -> Settings:
    """Return this library's settings from nova.conf files.

    :param paths: in the order in which the service reads them.
    :raises ConfigurationError: a file is missing or malformed, or a value
        in it can't be used.
    """
    conf = cfg.ConfigOpts()
    try:
        conf([], default_config_files=list(paths), default_config_dirs=[])
        return read_settings(conf)
    except cfg.Error as error:
        raise errors.ConfigurationError(
            "files", ", ".join(paths), str(error)
        ) from error
