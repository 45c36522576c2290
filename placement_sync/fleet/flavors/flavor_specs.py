# SPDX-License-Identifier: Apache-2.0
"""Conversion between device requests and extra specs of a flavor."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping

from nova_accel import errors
from nova_accel.catalog import pci_ids
from nova_accel.model import flavors, names

# Nova applies it to all groups of a flavor, and requires it for two or more
# (nova/scheduler/utils.py, ResourceRequest).
POLICY = "group_policy"
NO_POLICY = "none"
ISOLATE = "isolate"
_BITSTREAM = f"{flavors.NAMESPACE}fpga_bitstream"
# Characters that Nova allows in suffixes, without a digit at the end: the
# number of the group follows.
_GROUP = re.compile(r"[A-Za-z0-9_-]{0,31}[A-Za-z_-]")
_GROUP_KEY = re.compile(
    r"(?P<kind>resources|trait)(?P<suffix>[a-zA-Z0-9_-]{0,64}):(?P<name>.+)"
)
# Begins the classes of nodes that the inspection suggests.
_NODE_CLASS = "resources:CUSTOM_BAREMETAL"
_OWN_CLASSES = names.MEASURES | {names.MDEV_CLASS, names.QAT_VF_CLASS}
_NODE_ZEROS = ("VCPU", "MEMORY_MB", "DISK_GB")
SETTINGS = (
    "numa_policy",
    "locality",
    "packing",
    "display",
    "ramfb",
    "rom",
    flavors.GUEST_TOPOLOGY,
    flavors.MEMORY_NODES,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """Request for ``count`` equal devices, each in a request group.

    ``bitstream`` is the id of a Glance image, empty for none. With
    ``is_bare_metal`` it is a whole node of Ironic, without a group.
    """

    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    bitstream: str = ""
    count: int = 1
    is_bare_metal: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorRequest:
    """Change request for a flavor.

    ``devices`` is None to request none; ``settings`` are values of the
    extra specs in SETTINGS. ``group`` is the name of the groups, and only
    groups of that name are replaced; if empty, the name is that of the kind
    of device, and all accelerator groups are replaced. Settings without
    devices leave the groups unchanged.
    """

    devices: DeviceRequest | None = None
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    group: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpecsChange:
    """Change of a flavor's extra specs; ``specs`` are all of them after."""

    specs: Mapping[str, str]
    added: Mapping[str, str]
    removed: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorContents:
    """Accelerators that a flavor requests.

    ``groups`` are the groups of accelerators; of the group without a suffix
    only its accelerators. ``is_isolated`` is true if no two groups may use
    the same provider. ``numa_cells`` is the number of the guest's NUMA
    nodes, None if the flavor does not set it.
    """

    groups: tuple[flavors.RequestGroup, ...] = ()
    policy: flavors.SelectionPolicy = flavors.DEFAULT_POLICY
    options: flavors.Options = dataclasses.field(
        default_factory=flavors.Options
    )
    is_isolated: bool = False
    numa_cells: int | None = None


# -- to extra specs ---------------------------------------------------------


def check_group(name: str) -> None:
    """Check the name of request groups.

    :raises MalformedError: Nova does not allow it in suffixes.
    """
    if not _GROUP.fullmatch(name):
        raise errors.MalformedError(
            "--group",
            name,
            "up to 32 letters, digits, _ and -, with no digit at the end",
        )


def plan(old: Mapping[str, str], request: FlavorRequest) -> SpecsChange:
    """Return the change of a flavor's extra specs for a request.

    Extra specs that are not about accelerators stay. Without a group's name
    all others are replaced; with one the groups of that name and the given
    settings are.
    """
    retained = {
        k: v for k, v in old.items() if not _is_replaced(k, old, request)
    }
    specs = _set_group_policy({**retained, **dict(_build_keys(request))})
    return SpecsChange(
        specs=specs,
        added={k: v for k, v in specs.items() if old.get(k) != v},
        removed=tuple(sorted(old.keys() - specs.keys())),
    )


def _build_keys(request: FlavorRequest) -> Iterator[tuple[str, str]]:
    for name, value in request.settings.items():
        yield f"{flavors.NAMESPACE}{name}", value
    devices = request.devices
    if devices is None:
        return
    if devices.is_bare_metal:
        yield from _build_node_keys(devices)
        return
    group = request.group or flavors.group_name(devices.resources)
    for number in range(1, devices.count + 1):
        suffix = f"_{group}{number}"
        for name, amount in devices.resources.items():
            yield f"resources{suffix}:{name}", str(amount)
        for trait in sorted(devices.required):
            yield f"trait{suffix}:{trait}", "required"
        if devices.bitstream:
            yield f"{_BITSTREAM}{suffix}", devices.bitstream


def _build_node_keys(devices: DeviceRequest) -> Iterator[tuple[str, str]]:
    """Yield the keys of a flavor of bare-metal nodes.

    Such a node has no inventory of the flavor's own resources (Nova's
    "Ironic" driver guide, "Flavors").
    """
    for name in _NODE_ZEROS:
        yield f"resources:{name}", "0"
    for name, amount in devices.resources.items():
        yield f"resources:{name}", str(amount)
    for trait in sorted(devices.required):
        yield f"trait:{trait}", "required"


def _is_replaced(
    key: str, old: Mapping[str, str], request: FlavorRequest
) -> bool:
    if request.devices is None and request.settings:
        return False
    if request.group:
        own = re.compile(rf"_{re.escape(request.group)}[0-9]+")
        if key.startswith(_BITSTREAM):
            return bool(own.fullmatch(key.removeprefix(_BITSTREAM)))
        match = _GROUP_KEY.fullmatch(key)
        return bool(match and own.fullmatch(match["suffix"]))
    is_node = request.devices is not None and request.devices.is_bare_metal
    if is_node and key.startswith(_NODE_CLASS):
        return True
    return is_accelerator_key(key, old)


def is_accelerator_key(key: str, specs: Mapping[str, str]) -> bool:
    """Return whether an extra spec of a flavor is about accelerators."""
    if key.startswith(flavors.NAMESPACE):
        return True
    match = _GROUP_KEY.fullmatch(key)
    if match is None:
        return False
    if not match["suffix"]:
        return _is_accelerator_name(match["name"])
    return match["suffix"] in _list_own_suffixes(specs)


def _list_own_suffixes(specs: Mapping[str, str]) -> frozenset[str]:
    return frozenset(
        match["suffix"]
        for match in map(_GROUP_KEY.fullmatch, specs)
        if match and match["suffix"] and _is_accelerator_name(match["name"])
    )


def _is_accelerator_name(name: str) -> bool:
    """Return whether a class or trait is used for accelerators only."""
    if name == names.NOVA_OWNER_TRAIT:
        return False
    return (
        pci_ids.is_accelerator(name)
        or name.startswith(names.PIN_PREFIX)
        or names.is_managed_trait(name)
    )


def plan_removal(old: Mapping[str, str]) -> SpecsChange:
    """Return the change that removes the requests for this library's devices.

    Groups for Nova's own vGPU support stay, such as ``resources:VGPU=1``: a
    group is this library's if it names a class or trait that only it has.
    """
    suffixes = {
        match["suffix"]
        for match in map(_GROUP_KEY.fullmatch, old)
        if match
        and old[match.string] != "forbidden"
        and is_own_name(match["name"])
    }
    retained = {
        key: value
        for key, value in old.items()
        if not _is_own_key(key, old, suffixes)
    }
    specs = _set_group_policy(retained) if retained != old else retained
    return SpecsChange(
        specs=specs,
        added={k: v for k, v in specs.items() if old.get(k) != v},
        removed=tuple(
            sorted(
                old.keys() - specs.keys(),
                # A removal that is killed still finds the group by these.
                key=lambda key: (is_own_name(key.partition(":")[2]), key),
            )
        ),
    )


def _is_own_key(
    key: str, specs: Mapping[str, str], suffixes: Collection[str]
) -> bool:
    if key.startswith(flavors.NAMESPACE):
        return True
    match = _GROUP_KEY.fullmatch(key)
    return match is not None and (
        is_own_name(match["name"])
        or (match["suffix"] in suffixes and is_accelerator_key(key, specs))
    )


def is_own_name(name: str) -> bool:
    """Return whether only this library has a class or trait."""
    return name != names.NOVA_OWNER_TRAIT and (
        names.is_managed_trait(name)
        or name.startswith(names.PIN_PREFIX)
        or name in _OWN_CLASSES
    )


def _set_group_policy(specs: dict[str, str]) -> dict[str, str]:
    """Return extra specs with the group policy that Nova requires.

    It is ``none``: AcceleratorFilter checks the locality of devices, and
    ``isolate`` would separate groups of other resources, too. A policy that
    an operator set stays.
    """
    suffixes = {
        match["suffix"]
        for match in map(_GROUP_KEY.fullmatch, specs)
        if match and match["suffix"]
    }
    if len(suffixes) > 1:
        return {POLICY: NO_POLICY, **specs}
    if specs.get(POLICY) == NO_POLICY:
        return {k: v for k, v in specs.items() if k != POLICY}
    return specs


# -- from extra specs -------------------------------------------------------


def read(specs: Mapping[str, str]) -> FlavorContents:
    """Return the accelerators that a flavor's extra specs request.

    :raises MalformedError: an ``accelerator:`` key has a value that is not
        allowed.
    """
    own_suffixes = _list_own_suffixes(specs)
    groups = (
        group if group.suffix else _select_own(group)
        for group in flavors.parse_groups(specs)
        if not group.suffix or group.suffix in own_suffixes
    )
    return FlavorContents(
        groups=tuple(g for g in groups if any(g.resources.values())),
        policy=flavors.parse_selection_policy(specs),
        options=flavors.parse_options(specs),
        is_isolated=specs.get(POLICY) == ISOLATE,
        numa_cells=_parse_numa_cells(specs),
    )


def _select_own(group: flavors.RequestGroup) -> flavors.RequestGroup:
    return dataclasses.replace(
        group,
        resources={
            n: a for n, a in group.resources.items() if _is_accelerator_name(n)
        },
        required=frozenset(filter(_is_accelerator_name, group.required)),
        forbidden=frozenset(filter(_is_accelerator_name, group.forbidden)),
    )


def _parse_numa_cells(specs: Mapping[str, str]) -> int | None:
    """Return the number of the guest's NUMA nodes, None if it is not set.

    The key is that of nova/virt/hardware.py, numa_get_constraints.
    """
    value = str(specs.get("hw:numa_nodes", ""))
    if value.isdecimal() and int(value):
        return int(value)
    return None


def list_pins(specs: Mapping[str, str]) -> frozenset[str]:
    """Return the pin traits of a flavor, each of one device."""
    return frozenset(
        match["name"]
        for match in map(_GROUP_KEY.fullmatch, specs)
        if match and match["name"].startswith(names.PIN_PREFIX)
    )


def list_requests(
    contents: FlavorContents,
) -> tuple[tuple[str, DeviceRequest], ...]:
    """Return the device requests of groups, each with the groups' name.

    Groups that differ in nothing but their numbers are one request.
    """
    requests: dict[tuple[str, str], DeviceRequest] = {}
    for group in contents.groups:
        name = group.suffix.removeprefix("_").rstrip("0123456789")
        devices = DeviceRequest(
            resources=group.resources,
            required=group.required,
            bitstream=group.bitstream,
        )
        content = (
            sorted(group.resources.items()),
            sorted(group.required),
            group.bitstream,
        )
        key = name, repr(content)
        if key in requests:
            count = requests[key].count + 1
            devices = dataclasses.replace(devices, count=count)
        requests[key] = devices
    return tuple((name, devices) for (name, _), devices in requests.items())
