# SPDX-License-Identifier: Apache-2.0
"""Causes why a card under NVIDIA's driver makes no vGPUs.

vGPU types exist only where NVIDIA's vGPU manager is loaded, supports the
model, and has the function itself: a VF that another driver has, shows none.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.catalog import loader, mdev_names, vgpu_types
from nova_accel.config import policy, remedy
from nova_accel.host.sysfs import host_reader, links, modules
from nova_accel.inventory import wording
from nova_accel.model import pci
from nova_accel.vendors.common import vf_card
from nova_accel.vendors.nvidia import gpu_card

_MANAGER = "nvidia_vgpu_vfio"
_PRODUCT = "NVIDIA's vGPU manager"
_LOG = "see the kernel's log for NVRM messages"
# Series of the models that only NVIDIA's product for Compute supports
# ("NVIDIA AI Enterprise", Virtual GPU types).
_COMPUTE_ONLY = frozenset({"C"})
_COMPUTE_PRODUCT = "vGPU for Compute (NVIDIA AI Enterprise)"
# Boards with a mode for displays, in which they have no vGPUs (Virtual GPU
# Software User Guide, "Switching the Mode of a GPU that Supports Multiple
# Display Modes"), by key of the catalog.
_DISPLAY_BOARDS = frozenset(
    {
        *("A40", "RTXA5000", "RTXA5500", "RTXA6000"),
        *("L20", "L40", "L40S"),
        *("RTX5000-Ada", "RTX5880-Ada", "RTX6000-Ada"),
    }
)
# A card without displays is a 3D controller (0302).
_VGA = 0x0300


def describe_stray_vfs(
    function: pci.PciFunction, host: host_reader.HostReader
) -> Iterator[model.Problem]:
    """Yield the VFs of a card that other VFs of it differ from by driver.

    The other VFs have vGPU types, under NVIDIA's driver.
    """
    for driver, addresses in _group_vfs(function, host).items():
        if driver == gpu_card.MODULE:
            continue
        # Of the card: the problem ends with a new reading of the card.
        subject = f"{len(addresses)} of its VFs"
        if len(addresses) == 1:
            subject = f"its VF {addresses[0]}"
        yield model.Problem.of_device(
            function.address,
            f"{subject}: {_name(driver)}, unlike the card's other VFs, which"
            f" {gpu_card.MODULE} has, so that no vGPU is made on it; unless a"
            f" guest has it, {_bind(function, driver, addresses)}",
        )


def explain(
    function: pci.PciFunction,
    rule: policy.Rule,
    host: host_reader.HostReader,
    makes_vgpus: bool,
) -> str:
    """Return why a card can't have vGPUs, "" if it is no vGPU card.

    The card has NVIDIA's driver, and neither it nor its VFs have types.

    :param makes_vgpus: whether another card of the host has vGPU types,
        so that the vGPU manager is loaded.
    """
    gpu = gpu_card.find_catalog_gpu(function, ())
    is_known = gpu is not None and gpu.is_complete
    if not is_known and not function.total_vfs:
        return ""  # a compute card of the host
    if not function.total_vfs and links.is_virtual_machine(host):
        return (
            "makes no vGPU: this is a virtual machine, and a card makes vGPUs"
            " on its physical host only"
        )
    is_loaded = makes_vgpus or modules.is_loaded(
        host.files, _MANAGER, gpu_card.MODULE
    )
    if is_loaded is False:
        return f"makes no vGPU: {_explain_manager(gpu, host)}"
    if function.num_vfs:
        reason = _explain_vfs(function, host) or _explain_types(gpu, is_loaded)
    elif function.total_vfs:
        reason = _explain_disabled(function, rule, gpu)
    else:
        reason = _explain_no_sriov(function, gpu, is_loaded, host)
    return f"makes no vGPU: {reason}"


def _group_vfs(
    function: pci.PciFunction, host: host_reader.HostReader
) -> Mapping[str, Sequence[str]]:
    """Return the addresses of VFs by driver, which is empty for none."""
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for address in function.virtual_functions:
        vf = host.function(str(address))
        if vf is not None:
            groups[vf.driver or ""].append(str(address))
    return groups


def _name(driver: str) -> str:
    return f"bound to {driver}" if driver else "without a driver"


def _bind(
    function: pci.PciFunction, driver: str, addresses: Sequence[str]
) -> str:
    return remedy.describe_binding(
        addresses, str(function.address), driver, gpu_card.MODULE
    )


def _explain_manager(
    gpu: vgpu_types.CatalogGpu | None, host: host_reader.HostReader
) -> str:
    if modules.is_installed(host.files, _MANAGER):
        return (
            f"{_PRODUCT} is installed and not loaded;"
            f" {remedy.LoadModule(module=_MANAGER)}"
        )
    product = f"{_PRODUCT}, product {_COMPUTE_PRODUCT},"
    install = remedy.InstallModule(
        package=f"{product if _is_compute_only(gpu) else _PRODUCT} in place"
        " of the data centre driver",
        module=_MANAGER,
    )
    return f"its driver is the data centre driver; {install}"


def _explain_vfs(
    function: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return that none of the VFs has NVIDIA's driver, or ""."""
    groups = _group_vfs(function, host)
    if gpu_card.MODULE in groups or not groups:
        return ""
    counts = " and ".join(
        f"{wording.count_of(len(addresses), 'VF')} {_name(driver)}"
        for driver, addresses in groups.items()
    )
    steps = ", then ".join(
        _bind(function, driver, addresses)
        for driver, addresses in groups.items()
    )
    return (
        f"it has {counts}, and a VF has vGPU types under"
        f" {gpu_card.MODULE} only; unless a guest has them, {steps}"
    )


def _explain_types(
    gpu: vgpu_types.CatalogGpu | None, is_loaded: bool | None
) -> str:
    if is_loaded is None:
        return (
            "its VFs have no vGPU types, and these files do not show whether"
            f" {_PRODUCT} is loaded; {_LOG}"
        )
    hint = f"{_LOG}, and whether the service nvidia-vgpud has run"
    if _is_compute_only(gpu):
        hint = (
            f"this model has vGPUs with the product {_COMPUTE_PRODUCT} only,"
            f" not with vGPU's for graphics; else {hint}"
        )
    return f"{_PRODUCT} is loaded, and its VFs have no vGPU types: {hint}"


def _explain_disabled(
    function: pci.PciFunction,
    rule: policy.Rule,
    gpu: vgpu_types.CatalogGpu | None,
) -> str:
    if rule.num_vfs:
        hint = "they will be when the service starts, as num_vfs asks"
    else:
        line = vf_card.build_line(function, rule, function.total_vfs)
        hint = f"{line} has nova-compute do it at its start"
    text = (
        f"none of its VFs is enabled; {hint}, or run sriov-manage -e"
        f" {function.address}"
    )
    if _shows_display(function, gpu):
        text += f"; if that fails: {_describe_display_mode(function)}"
    return text


def _explain_no_sriov(
    function: pci.PciFunction,
    gpu: vgpu_types.CatalogGpu | None,
    is_loaded: bool | None,
    host: host_reader.HostReader,
) -> str:
    if gpu is not None and not gpu.has_sriov:
        start = f"{_PRODUCT} is loaded, and " if is_loaded else ""
        return (
            f"{start}it has no vGPU types: {_LOG}, and whether the service"
            " nvidia-vgpud has run"
        )
    if gpu is not None and gpu.key in _DISPLAY_BOARDS:
        return f"it has no SR-IOV: {_describe_display_mode(function)}"
    reason = vf_card.explain_no_sriov(function, host, has_sriov=True)
    return f"this model has vGPUs on VFs only, and {reason}"


def _shows_display(
    function: pci.PciFunction, gpu: vgpu_types.CatalogGpu | None
) -> bool:
    return (
        gpu is not None
        and gpu.key in _DISPLAY_BOARDS
        and function.class_code >> 8 == _VGA
    )


def _describe_display_mode(function: pci.PciFunction) -> str:
    state = "may be" if function.class_code >> 8 != _VGA else "is"
    return (
        f"the board {state} in the mode for displays, which has no vGPUs; run"
        " NVIDIA's displaymodeselector --gpumode physical_display_disabled,"
        " and reboot"
    )


def _is_compute_only(gpu: vgpu_types.CatalogGpu | None) -> bool:
    if gpu is None:
        return False
    series = {
        mdev_names.parse_series(vgpu_type.name)
        for vgpu_type in loader.load().profiles_of(gpu.key)
    }
    return bool(series) and series <= _COMPUTE_ONLY
