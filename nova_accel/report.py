# SPDX-License-Identifier: Apache-2.0
"""A host and its provider tree, for people and for programs."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nova_accel import known_kinds, model, names, pci, providers

# PCI classes whose devices an operator expects to see mentioned: display,
# processing accelerator, co-processor.
_EXPECTED = (0x03, 0x12, 0x0B)
_WITH_BITSTREAM = " accelerator:fpga_bitstream=IMAGE_ID"
NOTHING = "No accelerator that can be offered was found on this host."


def as_dict(
    state: model.HostState, tree: providers.ProviderTree
) -> dict[str, Any]:
    """Return the report for programs; its keys are a stable interface."""
    return {
        "devices": [_device_dict(device) for device in state.devices],
        "providers": [
            {
                "name": node.name,
                "parent": _parent_name(tree, node),
                "inventories": {
                    name: record.as_dict()
                    for name, record in sorted(node.inventories.items())
                },
                "traits": sorted(node.traits),
            }
            for node in tree.nodes
        ],
        "problems": [
            {"where": p.where, "reason": p.reason} for p in state.problems
        ],
    }


def _parent_name(
    tree: providers.ProviderTree, node: providers.ProviderNode
) -> str:
    parent = tree.node(node.parent)
    return parent.name if parent else tree.root.name


def _device_dict(device: model.Device) -> dict[str, Any]:
    found = _common_dict(device)
    if device.parent:
        found["parent"] = device.parent
    if device.fault:
        found["fault"] = device.fault
    if device.drain:
        found["drain"] = device.drain
    if device.region is not None:
        found["region"] = {
            "number": device.region.number,
            "function": device.region.function,
            "interfaces": list(device.region.interfaces),
            "is_programmable": device.region.is_programmable,
            "given_as": [*device.slots, *device.members],
        }
    return found


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
            {"name": p.name, "available": p.available} for p in device.profiles
        ],
        "partitions": [
            {"profile": p.profile, "id": p.handle, "in_use": p.in_use}
            for p in device.partitions
        ],
    }


def as_text(
    state: model.HostState,
    tree: providers.ProviderTree,
    functions: Iterable[pci.PciFunction] = (),
) -> str:
    """Return the report for people.

    :param functions: all PCI functions of the host; accelerators among
        them that no device speaks for are listed as not offered.
    """
    lines = list(_headline(state, tree.root.name))
    for device in state.devices:
        lines += ["", *_device_lines(device)]
    if state.devices:
        lines += ["", f"Resource providers below {tree.root.name}"]
        for node in tree.nodes:
            lines += _provider_lines(node)
        lines += ["", "Flavor properties that ask for one of each profile"]
        lines += _flavor_lines(state.devices)
    lines += _section("Not offered", _unoffered(state, functions))
    lines += _section(
        "Problems", (f"{p.where}: {p.reason}" for p in state.problems)
    )
    return "\n".join(lines) + "\n"


def _headline(state: model.HostState, name: str) -> Iterator[str]:
    if not state.devices:
        yield NOTHING
        return
    partitions = sum(len(d.partitions) for d in state.devices)
    yield (
        f"{name}: {_count(len(state.devices), 'device')},"
        f" {_count(partitions, 'partition')},"
        f" {_count(len(state.problems), 'problem')}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    body = [f"  {line}" for line in lines]
    return ["", title, *body] if body else []


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
    for profile in device.profiles:
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
        known_free = "" if partition.in_use else "  free"
        yield (
            f"    {partition.handle}  {partition.profile}"
            f"  on {partition.parent}{known_free}"
        )


def _closed_lines(device: model.Device) -> Iterator[str]:
    """Yield why nothing of a device is offered now."""
    if device.fault:
        yield f"  set aside: {device.fault}"
    if device.drain:
        yield f"  drained: {device.drain}"


def _region_lines(
    device: model.Device, region: model.Region
) -> Iterator[str]:
    held = "unknown" if region.function is None else region.function
    yield f"  function: {held or 'none'}"
    for interface in region.interfaces:
        yield f"  interface: {interface}"
    if not region.is_programmable:
        yield "  not programmable"
    elif region.tool:
        yield f"  programmable with {region.tool}"
    else:
        yield "  programmable through the kernel"
    if device.slots and device.counters:
        given = ", ".join((*device.slots, *device.members))
        yield f"  given to a guest as {given}"


def columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows as lines, their cells one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (c.ljust(w) for c, w in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _provider_lines(node: providers.ProviderNode) -> Iterator[str]:
    yield f"  {node.name}  {node.uuid}"
    for name, record in sorted(node.inventories.items()):
        yield f"    {name}: total {record.total}, reserved {record.reserved}"
    for trait in sorted(node.traits):
        yield f"    {trait}"


def _flavor_lines(devices: Iterable[model.Device]) -> Iterator[str]:
    """Yield a line for each profile, however many devices have it.

    Regions are asked for by what they hold, or what fits into them.
    """
    devices = tuple(devices)
    seen: dict[str, model.Profile] = {}
    for device in devices:
        for profile in device.profiles if device.region is None else ():
            seen.setdefault(profile.trait, profile)
    for trait, profile in seen.items():
        yield _flavor_line(profile, trait)
    yield from sorted(_region_flavors(devices))


def _flavor_line(profile: model.Profile, trait: str, more: str = "") -> str:
    resources = (
        f"resources_ACCEL1:{k}={v}" for k, v in profile.charges.items()
    )
    return f"  {' '.join(resources)} trait_ACCEL1:{trait}=required{more}"


def _region_flavors(devices: Iterable[model.Device]) -> set[str]:
    """Return the lines for functions, and for what can be loaded."""
    found: set[str] = set()
    for device in devices:
        region = device.region
        if region is None or not device.counters:
            continue
        for profile in device.profiles:
            if region.function:
                trait = names.function_trait(region.function)
                found.add(_flavor_line(profile, trait))
            if region.is_programmable:
                found |= {
                    _flavor_line(
                        profile, names.interface_trait(one), _WITH_BITSTREAM
                    )
                    for one in region.interfaces
                }
    return found


def _unoffered(
    state: model.HostState, functions: Iterable[pci.PciFunction]
) -> Iterator[str]:
    offered = {p.where for p in state.problems}
    for device in state.devices:
        offered |= {device.address, *device.members}
    for function in functions:
        if (
            _is_expected(function)
            and function.physfn is None
            and str(function.address) not in offered
        ):
            yield _why(function)


def _is_expected(function: pci.PciFunction) -> bool:
    kind = known_kinds.find(function)
    return (
        function.base_class in _EXPECTED
        or function.is_vfio_bound
        or (kind is not None and not kind.is_common)
    )


def _why(function: pci.PciFunction) -> str:
    return (
        f"{function.address}  {function.vendor}:{function.product}"
        f"  class {function.class_code:06x}: {', '.join(_facts(function))}"
    )


def _facts(function: pci.PciFunction) -> Iterator[str]:
    """Yield what tells why nothing offers a function by itself."""
    yield f"bound to {function.driver or 'no driver'}"
    if function.num_vfs:
        yield f"{_count(function.num_vfs, 'virtual function')} enabled"
    if function.boot_vga:
        yield "the host's boot display"
    elif known_kinds.find_qat(function) and function.total_vfs:
        if not function.num_vfs:
            yield "offered as VFs if a device_spec line sets num_vfs"
    elif known_kinds.find(function):
        if function.driver and not function.num_vfs:
            yield "offered whole if a device_spec line says use passthrough"
    elif not function.is_display:
        yield "of a kind that is offered only if a device_spec line names it"
    elif function.driver and not function.num_vfs:
        yield "offered whole if a device_spec line says use passthrough"
