# SPDX-License-Identifier: Apache-2.0
"""Names of traits, classes and providers; UUIDs of providers and mdevs."""

import re
import uuid

# Placement: traits and custom resource classes are at most 255 characters
# of A-Z, 0-9 and underscore (placement api-ref, "Traits").
MAX_NAME = 255

# How everything begins in Placement that no standard names.
CUSTOM = "CUSTOM_"
OWNER_TRAIT = "CUSTOM_OWNER_NOVA_ACCEL"
NOVA_OWNER_TRAIT = "OWNER_NOVA"
MISSING_TRAIT = "CUSTOM_ACCELERATOR_MISSING"
FAULTED_TRAIT = "CUSTOM_ACCELERATOR_FAULTED"
DRAINED_TRAIT = "CUSTOM_ACCELERATOR_DRAINED"
UNKNOWN_TRAIT = "CUSTOM_ACCELERATOR_UNKNOWN"
# Where a card stands, and how its partitions share it: what a scheduler
# that never saw the host goes by.
NUMA_PREFIX = "CUSTOM_ACCELERATOR_NUMA_"
DEVICE_PREFIX = "CUSTOM_ACCELERATOR_DEVICE_"
PCIE_PREFIX = "CUSTOM_ACCELERATOR_PCIE_"
NVLINK_PREFIX = "CUSTOM_ACCELERATOR_NVLINK_"
MODEL_PREFIX = "CUSTOM_ACCELERATOR_MODEL_"
LAYOUT_PREFIX = "CUSTOM_ACCELERATOR_LAYOUT_"
# Of a device that a flavor names; an operator's own trait to Placement's
# passes, which so keep it.
PIN_PREFIX = "CUSTOM_DEVICE_AT_"
# Begins a trait that remembers an operator's own ``reserved``:
# CUSTOM_ACCELERATOR_RESERVED_VGPU_2.
RESERVED_PREFIX = "CUSTOM_ACCELERATOR_RESERVED_"
# The path of a command, of plain names and without "." and "..".
_COMMAND = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[0-9A-Za-z._+-]+)+")
GPU_CLASS = "VGPU"
WHOLE_GPU_CLASS = "PGPU"
GPU_MEMORY_CLASS = "CUSTOM_GPU_MEMORY_MB"
MIG_SLICE_CLASS = "CUSTOM_MIG_SLICE"
MDEV_CLASS = "CUSTOM_MDEV"
FPGA_CLASS = "FPGA"
QAT_VF_CLASS = "CUSTOM_QAT_VF"

# Classes that measure what partitions take, beside the one that counts them.
MEASURES = frozenset({GPU_MEMORY_CLASS, MIG_SLICE_CLASS})

# Of FPGA regions; the first one is the trait of their only profile.
REGION_TRAIT = "CUSTOM_FPGA_REGION"
PROGRAMMABLE_TRAIT = "CUSTOM_FPGA_PROGRAMMABLE"
FUNCTION_PREFIX = "CUSTOM_FPGA_FUNCTION_"
INTERFACE_PREFIX = "CUSTOM_FPGA_INTERFACE_"

# A trait under these prefixes names a profile that a device can make.
PROFILE_PREFIXES = ("CUSTOM_VGPU_", "CUSTOM_MDEV_", "CUSTOM_GPU_")

# Traits under these prefixes are ours to add and to remove on our
# providers; any other trait there was set by the operator and stays.
_OUR_PREFIXES = (
    "CUSTOM_VGPU_",
    "CUSTOM_GPU_",
    "CUSTOM_MDEV_",
    "CUSTOM_ACCELERATOR_",
    "CUSTOM_FPGA_",
    "CUSTOM_QAT_",
)

# In a provider's name, between the compute node's and the address.
PROVIDER_MARK = "_accel_"

# A PCI address, or that of a card's region, as provider_name spells it.
_PLACE = re.compile(
    r"(?P<domain>[0-9a-f]{4,8})_(?P<bus>[0-9a-f]{2})_(?P<slot>[0-9a-f]{2})"
    r"_(?P<function>[0-7])(?:_region_(?P<region>[0-9]+))?"
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")

# Vendors' short names by PCI vendor id (pci.ids), for traits and people.
# Identity is always the id: a vendor that is missing here goes by it.
_VENDORS = {
    "10de": "nvidia",
    "8086": "intel",
    "1002": "amd",
    "10ee": "xilinx",
    "19e5": "huawei",
    "1da3": "habana",
    "1ae0": "google",
}


def vendor_name(vendor_id: str) -> str:
    """Return the vendor's short name, or the id where none is known."""
    return _VENDORS.get(vendor_id, vendor_id)


def vendor_id(name: str) -> str:
    """Return the PCI vendor id of a vendor's name, as a trait spells it."""
    plain = name.lower()
    return next((i for i, n in _VENDORS.items() if n == plain), plain)


def custom(*parts: str) -> str:
    """Return ``CUSTOM_`` and the parts as one Placement name.

    Whatever is not a letter or digit becomes an underscore; runs of them
    become one.
    """
    text = re.sub(r"[^A-Z0-9]+", "_", "_".join(parts).upper())
    return f"{CUSTOM}{text.strip('_')}"[:MAX_NAME]


def provider_name(root: str, address: str) -> str:
    """Return the provider's name: ``<root>_accel_0000_41_00_0``."""
    return f"{root}{PROVIDER_MARK}{re.sub(r'[^0-9A-Za-z]', '_', address)}"


def provider_uuid(root_uuid: str, address: str) -> str:
    """Return the provider's uuid5 of compute node and device address."""
    return str(uuid.uuid5(uuid.UUID(root_uuid), address))


def is_our_provider(
    root: str, root_name: str, name: str, provider: str
) -> bool:
    """Return whether a provider's uuid is the one we give to its name.

    For a provider without traits: a service that died between creating
    and marking it left one. Names of devices off the PCI bus don't tell
    their address, so of those it can't be proved.

    :param root: uuid of the compute node's provider.
    :param provider: uuid of the one in question.
    """
    found = _PLACE.fullmatch(name.removeprefix(provider_name(root_name, "")))
    if found is None:
        return False
    part = f"/region-{found['region']}" if found["region"] else ""
    address = "{domain}:{bus}:{slot}.{function}".format(**found.groupdict())
    return provider_uuid(root, address + part) == provider


def mdev_uuid(provider: str, slot: str) -> str:
    """Return the uuid5 of the mdev that fills a slot of a provider.

    It depends on nothing but the slot, so a retry finds its own work and
    every mdev of ours can be proved to be ours.
    """
    return str(uuid.uuid5(uuid.UUID(provider), slot))


def is_ours(trait: str) -> bool:
    """Return whether this library sets and removes that trait."""
    return trait in (OWNER_TRAIT, NOVA_OWNER_TRAIT) or trait.startswith(
        _OUR_PREFIXES
    )


def identity_traits(
    vendor_id: str, product_id: str, numa_node: int | None
) -> frozenset[str]:
    """Return the traits that say what a device is and where it sits."""
    traits = set()
    if vendor_id:
        traits.add(custom("ACCELERATOR", "VENDOR", vendor_name(vendor_id)))
        traits.add(custom("ACCELERATOR", "DEVICE", vendor_id, product_id))
    if numa_node is not None:
        traits.add(custom("ACCELERATOR", "NUMA", str(numa_node)))
    return frozenset(traits)


def model_trait(vendor_id: str, model: str) -> str:
    """Return the trait of a card's model, as its vendor names it."""
    return custom("ACCELERATOR", "MODEL", vendor_name(vendor_id), model)


def pcie_trait(port: str) -> str:
    """Return the trait of the devices below one PCIe root port.

    :param port: the root port's address.
    """
    return custom("ACCELERATOR", "PCIE", port)


def nvlink_trait(peer: str) -> str:
    """Return the trait of a card that has an NVLink to another one.

    :param peer: the other card's address.
    """
    return custom("ACCELERATOR", "NVLINK", peer)


def layout_trait(layout: str) -> str:
    """Return the trait of a card whose partitions share it in that way."""
    return custom("ACCELERATOR", "LAYOUT", layout)


def pin_trait(host: str, address: str) -> str:
    """Return the trait of the one device that a flavor names."""
    return custom("DEVICE_AT", host, address)


def driver_trait(vendor_id: str, version: str) -> str:
    """Return the trait of the release of a card's host driver."""
    return custom("ACCELERATOR", "DRIVER", vendor_name(vendor_id), version)


def fpga_id(text: str) -> str:
    """Return the id of an FPGA function or interface as it is compared.

    Kernels and tools write the same UUID in upper or lower case, with
    dashes or without; what is no UUID (the name of a shell) keeps its own
    form, in lower case.
    """
    plain = text.strip().lower()
    return plain.replace("-", "") if _UUID.fullmatch(plain) else plain


def function_trait(function: str) -> str:
    """Return the trait of an FPGA region that holds a function."""
    return custom("FPGA_FUNCTION", fpga_id(function))


def interface_trait(interface: str) -> str:
    """Return the trait of a region that takes bitstreams of a kind."""
    return custom("FPGA_INTERFACE", fpga_id(interface))


def region_address(card: str, number: int) -> str:
    """Return the address of a card's region, which no kernel file has.

    The kernel's own numbers of regions change with each boot.
    """
    return f"{card}/region-{number}"


def slot_names(count: int) -> tuple[str, ...]:
    """Return the identifiers of ``count`` slots made on one parent."""
    return tuple(f"slot-{n}" for n in range(count))


def is_command(text: str) -> bool:
    """Return whether a text is the absolute path of a command."""
    return _COMMAND.fullmatch(text) is not None
