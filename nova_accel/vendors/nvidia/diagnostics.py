# SPDX-License-Identifier: Apache-2.0
"""Problems of NVIDIA cards that an operator can solve."""

from collections.abc import Iterator

from nova_accel import model
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci
from nova_accel.vendors.nvidia import gpu_card, missing_types


def describe(
    card: gpu_card.NvidiaCard,
) -> Iterator[model.Device | model.Problem]:
    """Yield the card as a device, and its problems.

    A card in another mode than policy asks for is a device only if it has
    vGPUs, to account for them.
    """
    yield from _list_type_problems(card)
    yield from _list_policy_problems(card)
    if card.has_requested_mode or card.partitions:
        yield gpu_card.build_device(card)


def is_reserved_for_host(function: pci.PciFunction, rule: policy.Rule) -> bool:
    """Return whether a card is the boot display and policy names no use."""
    return function.boot_vga and rule.use is policy.DeviceUse.AUTO


def describe_boot_display(
    function: pci.PciFunction, rule: policy.Rule
) -> model.Problem:
    """Return the problem that a vGPU card is the boot display."""
    line = rule.amend(str(function.address), use=policy.DeviceUse.VGPU.value)
    return model.Problem.of_device(
        function.address,
        "could make vGPUs, but is the host's boot display: let the"
        f" firmware use another one, or write {line}",
    )


def find_untyped_vfs(
    card: gpu_card.NvidiaCard, host: host_reader.HostReader
) -> Iterator[model.Problem]:
    """Yield the VFs of an mdev card that have no mdev types."""
    typed = {p for offer, _ in card.types.values() for p in offer.handles}
    other = typed | {p.parent for p in card.partitions} | host.unknown()
    if not (card.on_vfs and typed):
        return
    yield from missing_types.describe_stray_vfs(card.function, host)
    untyped = [
        slot
        for slot in card.slots
        if slot not in other
        and (vf := host.function(slot)) is not None
        and vf.driver == gpu_card.MODULE
    ]
    if untyped:
        prefix = ""
        if len(untyped) > 1:
            prefix = f"{len(untyped)} of its VFs ({untyped[0]} and on): "
        yield model.Problem.of_device(
            card.address if prefix else untyped[0],
            f"{prefix}without vGPU types, unlike the card's other VFs;"
            " enable the VFs anew",
        )


def _list_type_problems(card: gpu_card.NvidiaCard) -> Iterator[model.Problem]:
    for name, (offer, properties) in card.types.items():
        if offer.gap:
            yield model.Problem(
                where=f"{card.address} {name}",
                reason=f"{offer.gap}; not offered",
                address=card.address,
            )
        elif not properties.size:
            yield model.Problem(
                where=f"{card.address} {name}",
                reason="its framebuffer is unknown: it is counted as"
                " VGPU only; NVML, which knows it, is not read (see"
                " nova-accel doctor --only nv.nvml)",
                address=card.address,
            )
    for partition in card.partitions:
        if partition.profile not in (model.UNKNOWN, *card.types):
            yield model.Problem(
                where=f"{card.address} {partition.handle}",
                reason=f"its type {partition.profile!r} has no name in"
                " any source on this host: it is counted as one VGPU",
                address=card.address,
            )


def _list_policy_problems(
    card: gpu_card.NvidiaCard,
) -> Iterator[model.Problem]:
    for reason in (
        _check_use(card),
        _check_idle(card),
        _check_vf_count(card),
        _check_mixed_mode(card),
        _check_dynamic_mig(card),
        *_check_max_instances(card),
    ):
        if reason:
            yield model.Problem.of_device(card.address, reason)


def _check_use(card: gpu_card.NvidiaCard) -> str:
    if card.has_requested_mode:
        return ""
    if card.is_mig:
        return (
            "is not offered: device_spec says use vgpu, and the card is in"
            f" MIG mode; disable its VFs, run `nvidia-smi -i {card.address}"
            ' -mig 0`, or write "use": "mig"'
        )
    if not card.can_mig:
        return (
            "is not offered: device_spec says use mig, and the card has no"
            ' MIG; write "use": "vgpu"'
        )
    return (
        "is not offered: device_spec says use mig, and the card is not in"
        f" MIG mode; run `nvidia-smi -i {card.address} -mig 1`, enable its"
        " VFs again and make GPU instances (nvidia-smi mig -cgi ... -C),"
        ' or write "use": "vgpu"'
    )


def _check_idle(card: gpu_card.NvidiaCard) -> str:
    """Return what to do about an empty card that can't create vGPUs."""
    if (
        card.partitions
        or card.is_dynamic
        or card.is_blocked
        or any(offer.ready for offer, _ in card.types.values())
    ):
        return ""
    hint = "see the kernel's log for NVRM messages"
    if card.can_mig and card.nvml.is_mig is not False:
        hint = (
            "in MIG mode make GPU instances (nvidia-smi mig -i"
            f" {card.address} -cgi <profile> -C), else {hint}"
        )
    return f"holds no vGPU, and its driver can't make one now: {hint}"


def _check_vf_count(card: gpu_card.NvidiaCard) -> str:
    """Return the problem with the number of VFs, or ""."""
    function, requested = card.function, card.rule.num_vfs
    present = len(function.virtual_functions)
    if function.num_vfs != present:
        return (
            f"says that {function.num_vfs} VFs are enabled, and {present} are"
            " to be found; if that stays so, remove its vGPUs and enable them"
            f" anew (sriov-manage -d {card.address}, then -e)"
        )
    if requested is None or not present or requested == present:
        return ""
    return (
        f"device_spec asks for {requested} VFs, and {present} are enabled:"
        " NVIDIA's tool enables all of them or none; remove num_vfs, and"
        " write max_slots to offer fewer"
    )


def _check_mixed_mode(card: gpu_card.NvidiaCard) -> str:
    requested = card.rule.is_mixed
    if requested is None or card.is_mig or requested == card.is_mixed:
        return ""
    if requested and not card.can_mix:
        return (
            "device_spec asks for mixed sizes, and a card without SR-IOV"
            " has no such mode: it is offered with equal sizes"
        )
    words = ("mixed", "equal") if requested else ("equal", "mixed")
    return (
        f"device_spec asks for {words[0]} sizes, and the card is in"
        f" {words[1]}-size mode: that changes when the service starts while"
        f" no vGPU is on it, or by nvidia-smi vgpu -i {card.address}"
        f" -shm {int(requested)}"
    )


def _check_dynamic_mig(card: gpu_card.NvidiaCard) -> str:
    if not card.rule.is_dynamic or not card.is_mig or card.nvml.kinds:
        return ""
    return (
        "device_spec asks for GPU instances made for claims (mig_instances"
        " dynamic), and without NVML the possible ones are unknown: see"
        " nova-accel doctor --only nv.nvml; instances that exist are offered"
    )


def _check_max_instances(card: gpu_card.NvidiaCard) -> Iterator[str]:
    """Yield a reason for each type in policy that the card lacks."""
    for name in sorted(card.rule.max_instances.keys() - card.types.keys()):
        yield (
            f"device_spec max_instances names {name}, which the card"
            f" doesn't have; it has {', '.join(card.types) or 'none'}"
        )
