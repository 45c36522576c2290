# SPDX-License-Identifier: Apache-2.0
"""Rules for one device that a driver described."""

import re
from collections.abc import Callable, Iterator, Mapping

import os_resource_classes
import os_traits

from nova_accel import model
from nova_accel.geometry import device_capacity
from nova_accel.inventory import tree_builder
from nova_accel.model import names, providers

# Technologies that a guest can use (virt_hooks/guest/hostdev.py).
TECHNOLOGIES = frozenset({"mdev", "vendor-vfio"}) | model.UNDIVIDED

# The profile of a partition whose type is unknown.
UNKNOWN = "unknown"

_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+")
_HEX_ID = re.compile(r"[0-9a-f]{4}")
_CLASSES = frozenset(os_resource_classes.STANDARDS)
_TRAITS = frozenset(os_traits.get_traits())
# Nova stores slots in its database; 255 characters is a safe length.
_MAX_SLOT = 255


def _check_identity(device: model.Device) -> Iterator[str]:
    if not device.address or not device.address.isprintable():
        yield "address is empty or can't be printed"
    if device.technology not in TECHNOLOGIES:
        yield (
            f"technology is {device.technology!r}, which can't be handed to"
            f" a guest; write one of {', '.join(sorted(TECHNOLOGIES))}"
        )
    for name in ("vendor_id", "product_id"):
        value = getattr(device, name)
        if value and not _HEX_ID.fullmatch(value):
            yield f"{name} is {value!r}; write four hex digits or nothing"
    if device.numa_node is not None and device.numa_node < 0:
        yield "numa_node is negative; write None for no node"


def _check_names(device: model.Device) -> Iterator[str]:
    classes = {device.resource_class, *device.counters}
    for profile in device.profiles:
        classes |= profile.charges.keys()
    for name in sorted(classes):
        if name not in _CLASSES and not _is_custom(name):
            yield (
                f"{name!r} is no resource class: neither a standard one nor"
                f" CUSTOM_ and A-Z, 0-9, _ of at most {names.MAX_NAME}"
            )
    traits = device.traits | {p.trait for p in device.profiles}
    for trait in sorted(traits):
        if trait in _TRAITS:
            continue
        if not _is_custom(trait):
            yield (
                f"{trait!r} is no trait: neither a standard one nor CUSTOM_"
                f" and A-Z, 0-9, _ of at most {names.MAX_NAME}"
            )
        elif not names.is_managed_trait(trait):
            yield (
                f"trait {trait} is under none of the prefixes that this"
                " library removes again; make it with"
                ' names.custom_name("ACCELERATOR", ...)'
            )


def _is_custom(name: str) -> bool:
    return len(name) <= names.MAX_NAME and bool(_CUSTOM.fullmatch(name))


def _check_counters(device: model.Device) -> Iterator[str]:
    for name, total in device.counters.items():
        if not _is_integer(total, 0) or total > providers.MAX_TOTAL:
            yield (
                f"counter {name} is {total!r}; write a whole number up to"
                f" {providers.MAX_TOTAL}"
            )
    if device.counters and device.resource_class not in device.counters:
        yield (
            f"its resource class {device.resource_class} is not counted;"
            " slots are assigned by it"
        )


def _is_integer(number: object, least: int) -> bool:
    return (
        isinstance(number, int)
        and not isinstance(number, bool)
        and number >= least
    )


def _check_profiles(device: model.Device) -> Iterator[str]:
    for kind in ("name", "trait"):
        values = [getattr(profile, kind) for profile in device.profiles]
        for value in sorted({v for v in values if values.count(v) > 1}):
            yield f"two profiles have the {kind} {value!r}"
    for profile in device.profiles:
        if not profile.name:
            yield "a profile has no name"
        if profile.trait in device.traits:
            yield (
                f"the trait of profile {profile.name} is among the traits of"
                " the device too; it could not go when the profile no longer"
                " fits"
            )
        if not _is_integer(profile.available, 0):
            yield (
                f"profile {profile.name}: available is {profile.available!r};"
                " write a whole number from 0"
            )


def _check_charges(device: model.Device) -> Iterator[str]:
    free = device_capacity.free_counters(device)
    for profile in device.profiles:
        where = f"profile {profile.name}"
        if not profile.charges.get(device.resource_class):
            yield f"{where} charges no {device.resource_class}"
        for name, amount in profile.charges.items():
            if not _is_integer(amount, 1):
                yield (
                    f"{where} charges {amount!r} of {name}; write a whole"
                    " number from 1"
                )
            elif profile.available < 1:
                continue  # no partition can be created
            elif name not in device.counters:
                yield f"{where} charges {name}, which the device has not"
            elif amount > device.counters[name]:
                yield (
                    f"{where} charges {amount} of {name}, and the device has"
                    f" {device.counters[name]}"
                )
            elif profile.available * amount > free[name]:
                yield (
                    f"{where} is available {profile.available} times, and"
                    f" {free[name]} of {name} are left;"
                    " device_capacity.recalculate(device) makes them agree"
                )


def _check_slots(device: model.Device) -> Iterator[str]:
    for slot in sorted(set(map(str, device.slots))):
        if not slot or len(slot) > _MAX_SLOT:
            yield f"slot {slot!r} is no identifier"
        if device.slots.count(slot) > 1:
            yield f"slot {slot} is there twice"
    total = device.counters.get(device.resource_class, 0)
    least = min(
        (p.charges.get(device.resource_class, 1) for p in device.profiles),
        default=1,
    )
    most = total // max(least, 1)
    if len(device.slots) < most:
        yield (
            f"{len(device.slots)} slots for {most} partitions; Nova hands a"
            " slot out for each"
        )


def _check_partitions(device: model.Device) -> Iterator[str]:
    for partition in device.partitions:
        if not partition.handle:
            yield f"a partition of {partition.profile} has no handle"
        is_listed = device.profile(partition.profile) is not None
        has_type = is_listed or partition.profile == UNKNOWN
        if not has_type and not partition.is_nameless:
            yield (
                f"partition {partition.handle} is a {partition.profile},"
                f" which is none of the profiles; write {UNKNOWN}, or set"
                " is_nameless where its type's number is all that is known"
            )


def _check_region(device: model.Device) -> Iterator[str]:
    region = device.region
    if region is None:
        return
    expected = names.region_address(region.card, region.number)
    if device.address != expected:
        yield f"a region's address is made by names.region_address: {expected}"
    if device.parent != region.card:
        yield f"its parent is {device.parent!r}, its card {region.card}"
    ids = [i for i in (region.function, *region.interfaces) if i]
    yield from (
        f"id {region_id} is not spelled as it is compared; use"
        " names.normalize_fpga_id"
        for region_id in ids
        if region_id != names.normalize_fpga_id(region_id)
    )
    expected_traits = {names.interface_trait(i) for i in region.interfaces}
    if region.function:
        expected_traits.add(names.fpga_function_trait(region.function))
    if region.is_programmable:
        expected_traits.add(names.PROGRAMMABLE_TRAIT)
    fpga_traits = {t for t in device.traits if t.startswith("CUSTOM_FPGA_")}
    missing_traits = sorted(expected_traits - fpga_traits)
    if missing_traits:
        yield f"traits {', '.join(missing_traits)} are missing"
    for trait in sorted(fpga_traits - expected_traits):
        if trait.startswith(tree_builder.FPGA_TRAITS):
            yield f"trait {trait} says what region does not"


_Rule = Callable[[model.Device], Iterator[str]]
RULES: Mapping[str, tuple[_Rule, ...]] = {
    "identity": (_check_identity,),
    "name": (_check_names,),
    "counter": (_check_counters,),
    "profile": (_check_profiles,),
    "charge": (_check_charges,),
    "slot": (_check_slots,),
    "partition": (_check_partitions,),
    "region": (_check_region,),
}
