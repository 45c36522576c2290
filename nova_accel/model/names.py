# SPDX-License-Identifier: Apache-2.0
"""Names of traits, classes and providers; UUIDs of providers and mdevs.

Names and UUIDs are pure functions of addresses and slots, so a retry finds
the providers and mdevs of an earlier attempt.
"""

import re
import uuid

# Placement: traits and custom resource classes are at most 255 characters
# of A-Z, 0-9 and underscore (placement api-ref, "Traits").
MAX_NAME = 255

# Prefix of traits and resource classes that are not standard ones.
CUSTOM = "CUSTOM_"
OWNER_TRAIT = "CUSTOM_OWNER_NOVA_ACCEL"
NOVA_OWNER_TRAIT = "OWNER_NOVA"
# Compute nodes with this trait get no server (Nova's compute_status_filter).
DISABLED_TRAIT = "COMPUTE_STATUS_DISABLED"
MISSING_TRAIT = "CUSTOM_ACCELERATOR_MISSING"
FAULTED_TRAIT = "CUSTOM_ACCELERATOR_FAULTED"
# A faulted device also has a trait for each cause of its fault.
FAULT_PREFIX = "CUSTOM_ACCELERATOR_FAULT_"
DRAINED_TRAIT = "CUSTOM_ACCELERATOR_DRAINED"
UNKNOWN_TRAIT = "CUSTOM_ACCELERATOR_UNKNOWN"
# A device with one of them gets no new server.
UNAVAILABLE_TRAITS = frozenset(
    {
        DRAINED_TRAIT,
        FAULTED_TRAIT,
        MISSING_TRAIT,
        UNKNOWN_TRAIT,
    }
)
# Locality and geometry of a card. The scheduler has no other source of them.
NUMA_PREFIX = "CUSTOM_ACCELERATOR_NUMA_"
DEVICE_PREFIX = "CUSTOM_ACCELERATOR_DEVICE_"
PCIE_PREFIX = "CUSTOM_ACCELERATOR_PCIE_"
NVLINK_PREFIX = "CUSTOM_ACCELERATOR_NVLINK_"
# In place of one trait for each peer: all cards of a host that have it reach
# each other.
NVLINK_SWITCH = f"{NVLINK_PREFIX}SWITCH"
MODEL_PREFIX = "CUSTOM_ACCELERATOR_MODEL_"
VENDOR_PREFIX = "CUSTOM_ACCELERATOR_VENDOR_"
DRIVER_PREFIX = "CUSTOM_ACCELERATOR_DRIVER_"
# Standard traits of GPUs. An operator may set some too.
GPU_TRAIT_PREFIX = "HW_GPU_"
# Traits of a device that follow from its model and ids. Placement returns all
# traits of a host's providers for each server that the host could get, so
# providers have none of these.
IMPLIED_PREFIXES = (VENDOR_PREFIX, GPU_TRAIT_PREFIX)
# Profiles that a device supports and can't make now, as far as the catalog
# of vGPU types does not have them: a flavor can be created meanwhile.
SUPPORTED_PREFIX = "CUSTOM_ACCELERATOR_PROFILE_"
# Name of a card without a model, for people: no flavor requires it.
NAME_PREFIX = "CUSTOM_ACCELERATOR_NAME_"
LAYOUT_PREFIX = "CUSTOM_ACCELERATOR_LAYOUT_"
# Traits of devices that a flavor names. A pass handles them like traits of
# the operator and retains them.
PIN_PREFIX = "CUSTOM_DEVICE_AT_"
# Traits that store the operator's own ``reserved`` while the library
# reserves more: CUSTOM_ACCELERATOR_RESERVED_VGPU_2.
RESERVED_PREFIX = "CUSTOM_ACCELERATOR_RESERVED_"
GPU_CLASS = "VGPU"
WHOLE_GPU_CLASS = "PGPU"
GPU_MEMORY_CLASS = "CUSTOM_GPU_MEMORY_MB"
MIG_SLICE_CLASS = "CUSTOM_MIG_SLICE"
MDEV_CLASS = "CUSTOM_MDEV"
FPGA_CLASS = "FPGA"
QAT_VF_CLASS = "CUSTOM_QAT_VF"

# Classes of measured amounts; another class counts the partitions.
MEASURES = frozenset({GPU_MEMORY_CLASS, MIG_SLICE_CLASS})

NVIDIA_VGPU_PREFIX = "CUSTOM_VGPU_NVIDIA_"
# Traits of FPGA regions; REGION_TRAIT is that of their only profile.
REGION_TRAIT = "CUSTOM_FPGA_REGION"
PROGRAMMABLE_TRAIT = "CUSTOM_FPGA_PROGRAMMABLE"
FUNCTION_PREFIX = "CUSTOM_FPGA_FUNCTION_"
#: Property of a bitstream's image.
FUNCTION_PROPERTY = "accelerator_function_id"
INTERFACE_PREFIX = "CUSTOM_FPGA_INTERFACE_"

# Traits of profiles that a device can make.
PROFILE_PREFIXES = ("CUSTOM_VGPU_", "CUSTOM_MDEV_", "CUSTOM_GPU_")

# The library adds and removes traits with these prefixes on its providers;
# any other trait belongs to the operator and is retained.
_MANAGED_PREFIXES = (
    "CUSTOM_VGPU_",
    "CUSTOM_GPU_",
    "CUSTOM_MDEV_",
    "CUSTOM_ACCELERATOR_",
    "CUSTOM_FPGA_",
    "CUSTOM_QAT_",
)

# Separates the compute node's name and the address in a provider's name.
PROVIDER_MARK = "_accel_"

# The address of a function or region, as provider_name spells it.
_NAME_SUFFIX = re.compile(
    r"(?P<domain>[0-9a-f]{4,8})_(?P<bus>[0-9a-f]{2})_(?P<slot>[0-9a-f]{2})"
    r"_(?P<function>[0-7])(?:_region_(?P<region>[0-9]+))?"
)
_MDEV_SLOT = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")

# Short names by PCI vendor id (pci.ids), for traits and users. A vendor
# without an entry is named by its id.
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
    """Return the vendor's short name, or its id without one."""
    return _VENDORS.get(vendor_id, vendor_id)


def vendor_id(name: str) -> str:
    """Return the PCI vendor id of a name in the spelling of traits."""
    short = name.lower()
    return next((i for i, n in _VENDORS.items() if n == short), short)


def custom_name(*parts: str) -> str:
    """Return ``CUSTOM_`` and the parts as one Placement name.

    Each run of other characters than letters and digits becomes one
    underscore.
    """
    text = re.sub(r"[^A-Z0-9]+", "_", "_".join(parts).upper())
    return f"{CUSTOM}{text.strip('_')}"[:MAX_NAME]


def provider_name(root: str, address: str) -> str:
    """Return the name of a device's provider: ``cn1_accel_0000_41_00_0``.

    :param root: the name of the compute node's provider.
    """
    return f"{root}{PROVIDER_MARK}{re.sub(r'[^0-9A-Za-z]', '_', address)}"


def provider_uuid(root_uuid: str, address: str) -> str:
    """Return the uuid5 of a device's provider below a compute node."""
    return str(uuid.uuid5(uuid.UUID(root_uuid), address))


def is_own_provider(
    root: str, root_name: str, name: str, provider: str
) -> bool:
    """Return whether this library chose the provider's UUID.

    For a provider without the owner trait, left by a service that died
    between creating and marking it. False for devices off the PCI bus:
    their address can't be derived from the provider's name.

    :param root: UUID of the compute node's provider.
    :param provider: UUID of the provider in question.
    """
    suffix = name.removeprefix(provider_name(root_name, ""))
    address = _parse_suffix(suffix)
    return bool(address) and provider_uuid(root, address) == provider


def provider_address(root_name: str, name: str) -> str:
    """Return the address of a device by its provider's name.

    The end of the name for a device off the PCI bus: its address can't be
    derived.

    :param root_name: the name of the compute node's provider.
    """
    suffix = name.removeprefix(provider_name(root_name, ""))
    return _parse_suffix(suffix) or suffix


def find_root_name(name: str) -> str:
    """Return the name of a compute node by the name of its device's provider.

    Empty for a device off the PCI bus: its address may contain the mark.
    """
    root_name, _, suffix = name.rpartition(PROVIDER_MARK)
    return root_name if _parse_suffix(suffix) else ""


def is_of_other_host(root_name: str, name: str) -> bool:
    """Return whether a provider's name is that of another host's device.

    A tree has several hosts if an operator gave a compute node a parent, or
    moved a device's provider. A name that an operator chose has no host.

    :param root_name: the name of this host's compute node.
    :param name: of a provider with the owner trait.
    """
    is_own = name.startswith(provider_name(root_name, ""))
    return PROVIDER_MARK in name and not is_own


def is_address(text: str) -> bool:
    """Return whether a text is the address of a PCI function."""
    return bool(_parse_suffix(re.sub(r"[:.]", "_", text)))


def _parse_suffix(suffix: str) -> str:
    """Return the address that provider_name has spelled, or ""."""
    match = _NAME_SUFFIX.fullmatch(suffix)
    if match is None:
        return ""
    part = f"/region-{match['region']}" if match["region"] else ""
    address = "{domain}:{bus}:{slot}.{function}".format(**match.groupdict())
    return address + part


def mdev_uuid(provider: str, slot: str) -> str:
    """Return the uuid of the mdev of a provider's slot.

    It depends only on provider and slot: a retry finds the mdev of an
    earlier attempt, and an mdev can be proved to be the library's. A slot
    that is the uuid of an mdev itself is that of an adopted one.
    """
    if _MDEV_SLOT.fullmatch(slot):
        return slot
    return str(uuid.uuid5(uuid.UUID(provider), slot))


def is_managed_trait(trait: str) -> bool:
    """Return whether this library adds and removes the trait."""
    return trait in (OWNER_TRAIT, NOVA_OWNER_TRAIT) or trait.startswith(
        _MANAGED_PREFIXES
    )


def identity_traits(
    vendor_id: str, product_id: str, numa_node: int | None
) -> frozenset[str]:
    """Return the traits of a device's vendor, product and NUMA node."""
    traits = set()
    if vendor_id:
        traits.add(
            custom_name("ACCELERATOR", "VENDOR", vendor_name(vendor_id))
        )
        traits.add(custom_name("ACCELERATOR", "DEVICE", vendor_id, product_id))
    if numa_node is not None:
        traits.add(custom_name("ACCELERATOR", "NUMA", str(numa_node)))
    return frozenset(traits)


def model_trait(vendor_id: str, model: str) -> str:
    """Return the trait of a card's model."""
    return custom_name("ACCELERATOR", "MODEL", vendor_name(vendor_id), model)


def supported_trait(profile: str) -> str:
    """Return the trait of a profile that can't be made now.

    :param profile: the trait of the profile.
    """
    return SUPPORTED_PREFIX + profile.removeprefix(CUSTOM)


def name_trait(vendor_id: str, name: str) -> str:
    """Return the trait of a card's name in pci.ids."""
    return custom_name("ACCELERATOR", "NAME", vendor_name(vendor_id), name)


def pcie_trait(port: str) -> str:
    """Return the trait of the devices below one PCIe root port.

    :param port: the root port's address.
    """
    return custom_name("ACCELERATOR", "PCIE", port)


def nvlink_trait(peer: str) -> str:
    """Return the trait of a card with an NVLink to a peer.

    :param peer: the peer's address.
    """
    return custom_name("ACCELERATOR", "NVLINK", peer)


def layout_trait(layout: str) -> str:
    """Return the trait of a card's ``model.Layout`` value."""
    return custom_name("ACCELERATOR", "LAYOUT", layout)


def pin_trait(host: str, address: str) -> str:
    """Return the trait of a single device that a flavor names."""
    return custom_name("DEVICE_AT", host, address)


def driver_trait(vendor_id: str, version: str) -> str:
    """Return the trait of the version of a card's host driver."""
    return custom_name(
        "ACCELERATOR", "DRIVER", vendor_name(vendor_id), version
    )


def normalize_fpga_id(text: str) -> str:
    """Return the canonical form of an FPGA function or interface id.

    Kernels and tools write the same UUID in upper or lower case, with or
    without dashes. An id of another form (the name of a shell) is only
    converted to lower case.
    """
    lower = text.strip().lower()
    return lower.replace("-", "") if _UUID.fullmatch(lower) else lower


def fpga_function_trait(function: str) -> str:
    """Return the trait of an FPGA region with a loaded function."""
    return custom_name("FPGA_FUNCTION", normalize_fpga_id(function))


def fpga_function_traits(function: str | None) -> frozenset[str]:
    """Return the traits of a region's function, none without a function."""
    return frozenset({fpga_function_trait(function)} if function else ())


def interface_trait(interface: str) -> str:
    """Return the trait of a region that accepts an interface id."""
    return custom_name("FPGA_INTERFACE", normalize_fpga_id(interface))


def region_address(card: str, number: int) -> str:
    """Return the address of a card's region.

    The library chooses it: the kernel's region numbers change at boot.
    """
    return f"{card}/region-{number}"


def card_address(address: str) -> str:
    """Return the card of a region's address; other addresses are unchanged."""
    return address.partition("/")[0]


def slot_names(count: int) -> tuple[str, ...]:
    """Return the identifiers of the slots of one parent."""
    return tuple(f"slot-{n}" for n in range(count))
