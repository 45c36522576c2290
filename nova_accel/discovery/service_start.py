# SPDX-License-Identifier: Apache-2.0
"""Options of Nova that name devices which nova-accel offers.

nova-compute does not start with some, and logs others; ``nova-accel doctor``
prints them before.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from oslo_config import cfg

from nova_accel import errors, model
from nova_accel.config import conf, policy
from nova_accel.discovery import plugin
from nova_accel.host.sysfs import host_reader
from nova_accel.inventory import conditions
from nova_accel.model import json_codec, pci

MDEV_TYPES = "[devices] enabled_mdev_types"
PCI_SPEC = "[pci] device_spec"
_ALIAS = "[pci] alias"
# As Nova registers them (nova/conf/pci.py, nova/conf/devices.py).
_DEVICE_SPEC = cfg.MultiStrOpt(
    "device_spec",
    default=[],
    deprecated_opts=[
        cfg.DeprecatedOpt("passthrough_whitelist", group="pci"),
        cfg.DeprecatedOpt("pci_passthrough_whitelist", group="DEFAULT"),
    ],
)
_ALIASES = cfg.MultiStrOpt("alias", default=[])
_ENABLED_TYPES = cfg.ListOpt(
    "enabled_mdev_types",
    default=[],
    deprecated_name="enabled_vgpu_types",
    deprecated_group="devices",
)
_ADDRESSES = cfg.ListOpt("device_addresses", default=[])

# Returns the functions of a host that a line of ``[pci] device_spec`` names:
# ``nova_devices.list_matches`` in nova-compute. Raises ConfigurationError if
# Nova refuses the line, UnreadableError if the bus can't be listed.
ListMatches = Callable[
    [str, host_reader.HostReader], tuple[pci.PciFunction, ...]
]


def register(options: cfg.ConfigOpts) -> None:
    """Register Nova's options, where Nova itself does not."""
    options.register_opt(_DEVICE_SPEC, group="pci")
    options.register_opt(_ALIASES, group="pci")
    options.register_opt(_ENABLED_TYPES, group="devices")
    for type_id in options.devices.enabled_mdev_types:
        options.register_opt(_ADDRESSES, group=f"mdev_{type_id}")


def _read_mdev_types(
    options: cfg.ConfigOpts,
) -> Mapping[str, tuple[str, ...]]:
    """Return the addresses of each type, none for a type without any.

    :param options: parsed, with Nova's options registered.
    """
    return {
        type_id: _read_addresses(options, type_id)
        for type_id in options.devices.enabled_mdev_types
    }


def _read_addresses(options: cfg.ConfigOpts, type_id: str) -> tuple[str, ...]:
    try:
        return tuple(options[f"mdev_{type_id}"][_ADDRESSES.name])
    except (cfg.NoSuchOptError, cfg.NoSuchGroupError):
        return ()  # Nova registers them when its driver is constructed


def load(
    options: cfg.ConfigOpts,
) -> tuple[conf.Settings, Mapping[str, plugin.Driver]]:
    """Return the settings, and the vendor drivers that they name.

    :param options: nova-compute's parsed ``oslo_config.cfg.ConfigOpts``.
    :raises ConfigurationError: a value is not valid.
    :raises BrokenDriverError: a driver can't be loaded.
    """
    settings = conf.read_settings(options)
    return settings, plugin.load_named(settings)


def find_conflicts(
    options: cfg.ConfigOpts,
    reader: host_reader.HostReader,
    state: model.HostState,
    rules: policy.DeviceRules,
    list_matches: ListMatches,
) -> Iterator[errors.ConfigurationError]:
    """Yield an error for each value of Nova that names an offered device.

    A line that Nova itself refuses names none.

    :param options: parsed, with Nova's options registered
        (``register``).
    :param state: the devices that nova-accel offers by these rules.
    :raises UnreadableError: the PCI bus or the mdev parents can't be listed.
    """
    for line in options.pci.device_spec:
        try:
            functions = list_matches(line, reader)
        except errors.ConfigurationError:
            continue  # Nova's own error follows
        addresses = [str(function.address) for function in functions]
        yield from _refuse(PCI_SPEC, line, addresses, state, rules)
    parents = _list_mdev_parents(options, reader)
    for type_id, names in parents.items():
        yield from _refuse(MDEV_TYPES, type_id, names, state, rules)


def find_idle_aliases(
    aliases: Iterable[str],
    lines: Iterable[str],
    reader: host_reader.HostReader,
    state: model.HostState,
    list_matches: ListMatches,
) -> Iterator[str]:
    """Yield why an alias of Nova gets no device, of devices offered here.

    Nova gives servers the functions of ``[pci] device_spec`` only. An alias
    does no harm, but a flavor with it never gets an offered device.

    :param aliases: values of ``[pci] alias``.
    :param lines: values of ``[pci] device_spec``.
    :raises UnreadableError: the PCI bus can't be listed.
    """
    functions = reader.all_functions()
    assigned: set[str] = set()
    for line in lines:
        with contextlib.suppress(errors.ConfigurationError):
            matches = list_matches(line, reader)
            assigned.update(str(function.address) for function in matches)
    for alias in aliases:
        name, ids = _parse_alias(alias)
        addresses = [
            str(f.address) for f in functions if (f.vendor, f.product) == ids
        ]
        devices = (conditions.find_device(state, a) for a in addresses)
        offered = [d.address for d in devices if d and d.counters]
        if offered and assigned.isdisjoint(addresses):
            yield (
                f"{_ALIAS} = {alias}: names {offered[0]}, which nova-accel"
                f" offers, and no line of {PCI_SPEC}: a flavor"
                f" with pci_passthrough:alias={name}:1 gets no device of this"
                " host; request it with a flavor of `openstack accel flavor"
                " create` instead"
            )


def _parse_alias(alias: str) -> tuple[str, tuple[str, str]]:
    """Return name, vendor and product of an alias; empty for an invalid one.

    Nova's own error follows for that (nova/pci/request.py, _ALIAS_SCHEMA).
    """
    try:
        fields = json_codec.loads(alias)
        vendor, product = fields["vendor_id"], fields["product_id"]
        return str(fields["name"]), (vendor.lower(), product.lower())
    except (ValueError, TypeError, KeyError, AttributeError):
        return "", ("", "")


def _list_mdev_parents(
    options: cfg.ConfigOpts, reader: host_reader.HostReader
) -> Mapping[str, list[str]]:
    """Return the mdev parents on which Nova uses each of its types.

    A type without device_addresses is that of all other parents, and only
    the first one (LibvirtDriver._get_supported_vgpu_types). Nova fails in
    each pass for a parent off the PCI bus that has the type.
    """
    addresses: dict[str, str] = {}
    default = ""
    for type_id, named in _read_mdev_types(options).items():
        addresses |= dict.fromkeys(named, type_id)
        if not named:
            default = default or type_id
    parents: dict[str, list[str]] = {}
    for parent in reader.mdev_parents():
        type_id = next(
            (
                type_id
                for address, type_id in addresses.items()
                # libvirt's name of a parent off the PCI bus: mtty_mtty.
                if parent.name in (address, address.rpartition("_")[2])
            ),
            default,
        )
        if type_id in {mdev_type.type_id for mdev_type in parent.types}:
            parents.setdefault(type_id, []).append(parent.name)
    return parents


def _refuse(
    option: str,
    value: str,
    addresses: Iterable[str],
    state: model.HostState,
    rules: policy.DeviceRules,
) -> Iterator[errors.ConfigurationError]:
    """Yield the error of the first address that is offered, if any."""
    for address in addresses:
        device = conditions.find_device(state, address)
        if device is None or not device.counters:
            continue
        line = rules.of(device).line
        source = f"by {policy.OPTION} = {line}" if line else "by default"
        card = device.parent or device.address
        yield errors.ConfigurationError(
            option,
            value,
            f"names {address}, which nova-accel offers {source}; remove it"
            f" here, or write {policy.OPTION} ="
            f' {{"address": "{card}", "use": "off"}}',
        )
        return
