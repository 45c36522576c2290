# SPDX-License-Identifier: Apache-2.0
"""Output of ``nova-accel inspect``: a host and its provider tree.

The keys of the JSON are a stable interface.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_accel import model
from nova_accel.catalog import pci_ids
from nova_accel.inventory import unoffered, wording
from nova_accel.model import flavors, names, providers

_WITH_NODES = f" accelerator:memory_nodes={pci_ids.MEMORY_NODES}"
_WITH_BITSTREAM = " accelerator:fpga_bitstream=IMAGE_ID"
NOTHING = "No accelerator that can be offered was found on this host."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostContext:
    """State of a host besides its devices.

    ``claims`` are those of its servers. ``is_registered`` is True if
    Placement has the tree's providers under the tree's uuids.
    """

    claims: tuple[model.Claim, ...] = ()
    is_registered: bool = False


def as_dict(
    state: model.HostState,
    tree: providers.ProviderTree,
    use: HostContext,
    rest: Iterable[unoffered.Unoffered] = (),
) -> dict[str, Any]:
    """Return the report as a JSON object.

    :param rest: accelerators of the host that are not offered.
    """
    used = _count_used(state, tree, use)
    return {
        "devices": [_device_dict(device) for device in state.devices],
        "providers": [
            {
                "name": node.name,
                "parent": _parent_name(tree, node),
                "inventories": providers.as_dicts(node.inventories),
                "traits": sorted(node.traits),
            }
            | ({"uuid": node.uuid} if use.is_registered else {})
            | ({"used": used[node.uuid]} if node.uuid in used else {})
            for node in tree.nodes
        ],
        "not_offered": [function.as_dict() for function in rest],
        "problems": [
            {"where": p.where, "reason": p.reason} for p in state.problems
        ],
    }


def _count_used(
    state: model.HostState, tree: providers.ProviderTree, use: HostContext
) -> dict[str, dict[str, int]]:
    """Return the claimed amounts by provider uuid and resource class."""
    used: dict[str, collections.Counter[str]] = {}
    for claim in use.claims:
        device = state.device(claim.device)
        if device is None:
            continue
        charges = device.charges(claim.profile)
        uuid = names.provider_uuid(tree.root.uuid, device.address)
        used.setdefault(uuid, collections.Counter()).update(charges)
    return {uuid: dict(counts) for uuid, counts in used.items()}


def _parent_name(
    tree: providers.ProviderTree, node: providers.ProviderNode
) -> str:
    parent = tree.node(node.parent)
    return parent.name if parent else tree.root.name


def _device_dict(device: model.Device) -> dict[str, Any]:
    fields = _common_dict(device)
    if device.parent:
        fields["parent"] = device.parent
    if device.fault:
        fields["fault"] = device.fault
    if device.drain:
        fields["drain"] = device.drain
    if device.marks_unknown:
        fields["marks_unknown"] = device.marks_unknown
    if device.unnoted:
        fields["unnoted"] = device.unnoted
    if device.region is not None:
        fields["region"] = {
            "number": device.region.number,
            "function": device.region.function,
            "interfaces": list(device.region.interfaces),
            "is_programmable": device.region.is_programmable,
            "given_as": [*device.slots, *device.members],
        }
    return fields


def _common_dict(device: model.Device) -> dict[str, Any]:
    return {
        "address": device.address,
        "vendor": device.vendor,
        "vendor_id": device.vendor_id,
        "product_id": device.product_id,
        "model": device.model,
        "driver": device.driver,
        "numa_node": device.numa_node,
        "technology": device.technology,
        "profiles": [
            {"name": p.name, "available": p.available}
            for p in _sort(device.profiles)
        ],
        "partitions": [
            {"profile": p.profile, "id": p.handle, "in_use": p.in_use}
            for p in device.partitions
        ],
    }


def as_text(
    state: model.HostState,
    tree: providers.ProviderTree,
    use: HostContext,
    rest: Iterable[unoffered.Unoffered] = (),
) -> str:
    """Return the report as text.

    :param rest: accelerators of the host that are not offered; those with
        a problem are listed as problems only.
    """
    lines = list(_headline(state, tree.root.name))
    for device in state.devices:
        lines += ["", *_device_lines(device)]
    if state.devices:
        lines += ["", f"Resource providers below {tree.root.name}"]
        used = _count_used(state, tree, use)
        for node in tree.nodes:
            uuid = f"  {node.uuid}" if use.is_registered else ""
            lines.append(f"  {node.name}{uuid}")
            lines += _provider_lines(node, used.get(node.uuid, {}))
        lines += ["", "Flavor properties that ask for one of each profile"]
        lines += _flavor_lines(state.devices)
    lines += _section(
        "Not offered",
        (function.as_text() for function in rest if not function.is_problem),
    )
    lines += _section("Problems", _problem_lines(state.problems))
    return "\n".join(lines) + "\n"


def _headline(state: model.HostState, name: str) -> Iterator[str]:
    if not state.devices:
        yield NOTHING
        return
    partitions = sum(len(d.partitions) for d in state.devices)
    yield (
        f"{name}: {wording.count_of(len(state.devices), 'device')},"
        f" {wording.count_of(partitions, 'partition')},"
        f" {wording.count_of(len(state.problems), 'problem')}"
    )


def _section(title: str, lines: Iterable[str]) -> list[str]:
    body = [f"  {line}" for line in lines]
    return ["", title, *body] if body else []


def _problem_lines(problems: Iterable[model.Problem]) -> Iterator[str]:
    """Yield a line for each problem; drivers with the same one share it."""
    places: dict[tuple[str, str], list[str]] = {}
    for problem in problems:
        key = problem.address, problem.reason
        places.setdefault(key, []).append(problem.where)
    for (_, reason), names_of_places in places.items():
        yield f"{', '.join(names_of_places)}: {reason}"


def _device_lines(device: model.Device) -> Iterator[str]:
    ids = f"{device.vendor_id}:{device.product_id}"
    facts = [device.technology]
    if device.vendor_id and device.model != ids:
        facts.append(ids)
    facts.append(f"driver {device.driver or 'none'}")
    if device.numa_node is not None:
        facts.append(f"NUMA node {device.numa_node}")
    title = f"{device.vendor} {device.model}".strip()
    yield f"{device.address}  {title}  ({', '.join(facts)})"
    yield from _closed_lines(device)
    if device.region is not None:
        yield from _region_lines(device, device.region)
    elif device.members:
        yield f"  together with {', '.join(device.members)}"
    if not device.profiles:
        return
    rows = [("PROFILE", "AVAILABLE", "EXISTING", "CHARGES")]
    for profile in _sort(device.profiles):
        existing = [p for p in device.partitions if p.profile == profile.name]
        charges = (f"{k}={v}" for k, v in profile.charges.items())
        rows.append(
            (
                profile.name,
                str(profile.available),
                str(len(existing)),
                " ".join(charges),
            )
        )
    yield from (f"  {line}" for line in columns(rows))
    if device.partitions:
        yield "  Partitions"
    for partition in device.partitions:
        free = "" if partition.in_use else "  free"
        yield (
            f"    {partition.handle}  {partition.profile}"
            f"  on {partition.parent}{free}"
        )


def _sort(profiles: Iterable[model.Profile]) -> list[model.Profile]:
    return sorted(profiles, key=lambda p: wording.natural_key(p.name))


def _closed_lines(device: model.Device) -> Iterator[str]:
    """Yield the reasons why a device takes no new server."""
    if device.fault:
        yield f"  set aside: {device.fault}"
    if device.drain:
        yield f"  drained: {device.drain}"
    if device.marks_unknown:
        yield f"  takes no new server, notes unknown: {device.marks_unknown}"
    if device.unnoted:
        yield f"  takes no new server: {device.unnoted}"


def _region_lines(device: model.Device, region: model.Region) -> Iterator[str]:
    function = "unknown" if region.function is None else region.function
    yield f"  function: {function or 'none'}"
    for interface in region.interfaces:
        yield f"  interface: {interface}"
    if not region.is_programmable:
        yield "  not programmable"
    elif region.tool:
        yield f"  programmable with {region.tool}"
    else:
        yield "  programmable through the kernel"
    if device.slots and device.counters:
        functions = ", ".join((*device.slots, *device.members))
        yield f"  given to a guest as {functions}"


def columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (c.ljust(w) for c, w in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _provider_lines(
    node: providers.ProviderNode, used: Mapping[str, int]
) -> Iterator[str]:
    for name, record in sorted(node.inventories.items()):
        amounts = f"total {record.total}, reserved {record.reserved}"
        if name in used:
            amounts += f", used {used[name]}"
        yield f"    {name}: {amounts}"
    for trait in sorted(node.traits):
        yield f"    {trait}"


def _flavor_lines(devices: Iterable[model.Device]) -> Iterator[str]:
    """Yield a line of flavor properties for each profile.

    Regions are requested by their function, or by their interface and a
    bitstream.
    """
    devices = tuple(devices)
    by_trait: dict[str, tuple[model.Profile, str]] = {}
    for device in devices:
        suffix = _WITH_NODES if _needs_memory_nodes(device) else ""
        for profile in device.profiles if device.region is None else ():
            by_trait.setdefault(profile.trait, (profile, suffix))
    for trait in sorted(by_trait, key=wording.natural_key):
        profile, suffix = by_trait[trait]
        yield _flavor_line(profile, trait, suffix)
    yield from sorted(_region_flavors(devices))


def _needs_memory_nodes(device: model.Device) -> bool:
    """Return whether flavors need NUMA nodes for a device's memory."""
    return device.technology == "passthrough" and pci_ids.has_coherent_memory(
        device.vendor_id, device.product_id, device.driver
    )


def _flavor_line(profile: model.Profile, trait: str, suffix: str = "") -> str:
    group = f"_{flavors.group_name(profile.charges)}1"
    resources = (
        f"resources{group}:{k}={v}" for k, v in profile.charges.items()
    )
    return f"  {' '.join(resources)} trait{group}:{trait}=required{suffix}"


def _region_flavors(devices: Iterable[model.Device]) -> set[str]:
    """Return the lines for loaded functions and for bitstreams."""
    lines: set[str] = set()
    for device in devices:
        region = device.region
        if region is None or not device.counters:
            continue
        for profile in device.profiles:
            if region.function:
                trait = names.fpga_function_trait(region.function)
                lines.add(_flavor_line(profile, trait))
            if region.is_programmable:
                lines |= {
                    _flavor_line(
                        profile,
                        names.interface_trait(interface),
                        _WITH_BITSTREAM,
                    )
                    for interface in region.interfaces
                }
    return lines
