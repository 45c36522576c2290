# SPDX-License-Identifier: Apache-2.0
"""Problems of NVIDIA's cards that operators should know."""

from collections.abc import Iterator

from nova_accel import model
from nova_accel.config import policy
from nova_accel.model import pci
from nova_accel.vendors.nvidia import gpu_card


def describe(
    card: gpu_card.NvidiaCard,
) -> Iterator[model.Device | model.Problem]:
    """Yield the card as a device, and what is wrong with it.

    A card that policy wants in another mode is no device, unless vGPUs
    are on it: those stay accounted for.
    """
    yield from _type_problems(card)
    yield from _policy_problems(card)
    if card.is_wanted or card.partitions:
        yield gpu_card.build(card)


def is_left_alone(function: pci.PciFunction, rule: policy.Rule) -> bool:
    """Return whether a card is the host's own, unless policy names a use."""
    return function.boot_vga and rule.use is policy.DeviceUse.AUTO


def left_alone(function: pci.PciFunction) -> model.Problem:
    """Return why a card that could make vGPUs is left to the host."""
    return model.Problem(
        where=str(function.address),
        reason="could make vGPUs, but is the host's boot display: let the"
        " firmware use another one, or say use vgpu in a device_spec line",
    )


def untyped(
    card: gpu_card.NvidiaCard, unknown: frozenset[str]
) -> Iterator[model.Problem]:
    """Yield the VFs of an mdev card on which no mdev can be made.

    :param unknown: those of which the reader has told.
    """
    typed = {p for offer, _ in card.types.values() for p in offer.handles}
    known = typed | {p.parent for p in card.partitions} | unknown
    bare = [slot for slot in card.slots if slot not in known]
    if card.on_vfs and typed and bare:
        who = ""
        if len(bare) > 1:
            who = f"{len(bare)} of its VFs ({bare[0]} and on): "
        yield model.Problem(
            where=card.address if who else bare[0],
            reason=f"{who}without vGPU types, unlike the card's other VFs;"
            " bind them to the nvidia driver, or enable the VFs anew",
        )


def _type_problems(card: gpu_card.NvidiaCard) -> Iterator[model.Problem]:
    for name, (offer, facts) in card.types.items():
        if offer.gap:
            yield model.Problem(
                where=f"{card.address} {name}",
                reason=f"{offer.gap}; not offered",
            )
        elif not facts.size:
            yield model.Problem(
                where=f"{card.address} {name}",
                reason="nothing tells its framebuffer: it is counted as"
                " VGPU only; install nvidia-ml-py, so that the driver can",
            )
    for partition in card.partitions:
        if partition.profile not in (model.UNKNOWN, *card.types):
            yield model.Problem(
                where=f"{card.address} {partition.handle}",
                reason=f"its type {partition.profile!r} has no name that"
                " anything on this host tells: it is counted as one VGPU",
            )


def _policy_problems(card: gpu_card.NvidiaCard) -> Iterator[model.Problem]:
    for reason in (
        _use_objection(card),
        _idleness(card),
        _miscount(card),
        _mix_objection(card),
        _dynamic_objection(card),
        *_name_objections(card),
    ):
        if reason:
            yield model.Problem(where=card.address, reason=reason)


def _use_objection(card: gpu_card.NvidiaCard) -> str:
    if card.is_wanted:
        return ""
    if card.is_mig:
        return (
            "is not offered: device_spec says use vgpu, and the card is in"
            f" MIG mode; disable its VFs, run `nvidia-smi -i {card.address}"
            " -mig 0`, or say use mig"
        )
    if not card.can_mig:
        return (
            "is not offered: device_spec says use mig, and the card has no"
            " MIG; say use vgpu"
        )
    return (
        "is not offered: device_spec says use mig, and the card is not in"
        f" MIG mode; run `nvidia-smi -i {card.address} -mig 1`, enable its"
        " VFs again and make GPU instances (nvidia-smi mig -cgi ... -C),"
        " or say use vgpu"
    )


def _idleness(card: gpu_card.NvidiaCard) -> str:
    """Return what to do about a card that is empty and makes nothing."""
    if (
        card.partitions
        or card.is_dynamic
        or card.is_barred
        or any(offer.ready for offer, _ in card.types.values())
    ):
        return ""
    mend = "see the kernel's log for NVRM messages"
    if card.can_mig and card.told.is_mig is not False:
        mend = (
            "in MIG mode make GPU instances (nvidia-smi mig -i"
            f" {card.address} -cgi <profile> -C), else {mend}"
        )
    return f"holds no vGPU, and its driver can't make one now: {mend}"


def _miscount(card: gpu_card.NvidiaCard) -> str:
    """Return what is wrong with how many VFs there are."""
    function, asked = card.function, card.rule.num_vfs
    present = len(function.virtual_functions)
    if function.num_vfs != present:
        return (
            f"says that {function.num_vfs} VFs are enabled, and {present} are"
            " to be found; if that stays so, remove its vGPUs and enable them"
            f" anew (sriov-manage -d {card.address}, then -e)"
        )
    if asked is None or not present or asked == present:
        return ""
    return (
        f"device_spec asks for {asked} VFs, and {present} are enabled:"
        " NVIDIA's tool enables all of them or none; remove num_vfs, and"
        " write max_slots to offer fewer"
    )


def _mix_objection(card: gpu_card.NvidiaCard) -> str:
    wanted = card.rule.is_mixed
    if wanted is None or card.is_mig or wanted == card.is_mixed:
        return ""
    if wanted and not card.can_mix:
        return (
            "device_spec asks for mixed sizes, and a card without SR-IOV"
            " has no such mode: it is offered with equal sizes"
        )
    words = ("mixed", "equal") if wanted else ("equal", "mixed")
    return (
        f"device_spec asks for {words[0]} sizes, and the card is in"
        f" {words[1]}-size mode: that changes when the service starts while"
        f" no vGPU is on it, or by nvidia-smi vgpu -i {card.address}"
        f" -shm {int(wanted)}"
    )


def _dynamic_objection(card: gpu_card.NvidiaCard) -> str:
    if not card.rule.is_dynamic or not card.is_mig or card.told.kinds:
        return ""
    return (
        "device_spec asks for GPU instances made for claims (mig_instances"
        " dynamic), and without NVML nothing tells what can be made: install"
        " nvidia-ml-py; instances that exist are offered"
    )


def _name_objections(card: gpu_card.NvidiaCard) -> Iterator[str]:
    """Yield what policy says of types that the card doesn't have."""
    for name in sorted(card.rule.max_instances.keys() - card.types.keys()):
        yield (
            f"device_spec max_instances names {name}, which the card"
            f" doesn't have; it has {', '.join(card.types) or 'none'}"
        )
