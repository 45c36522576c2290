# SPDX-License-Identifier: Apache-2.0
"""Actions on NVIDIA's cards, for both kinds of vGPUs."""

from collections.abc import Iterator

from nova_accel import model
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, pci
from nova_accel.vendors.nvidia import gpu_card

# NVIDIA's host driver refuses a plain write to sriov_numvfs; its own tool
# takes the driver off, enables all VFs and gives the driver back.
_VF_TOOL = "sriov-manage"
# The uses of device_spec by which a card is ours.
USES = (policy.DeviceUse.AUTO, policy.DeviceUse.VGPU, policy.DeviceUse.MIG)
# What a vGPU is made by, and unmade by.
Making = actions.CreateMdev | actions.SetVgpuType
Unmaking = actions.RemoveMdev | actions.ClearVgpuType


def prepare(claim: model.Claim, making: Making) -> Iterator[actions.Action]:
    """Yield what makes a claim's vGPU: its instance, itself, its settings.

    Place and parameters can be set only after it is made and before a
    guest opens it.
    """
    if claim.instance_start is not None:
        yield actions.CreateInstance(
            gpu=claim.device,
            kind=claim.instance,
            start=claim.instance_start,
        )
    yield making
    if claim.start is not None and isinstance(making, actions.SetVgpuType):
        yield actions.SetPlacement(function=claim.handle, start=claim.start)
    if claim.vgpu_params:
        yield actions.SetVgpuParams(
            target=claim.handle, params=claim.vgpu_params
        )


def release(
    claim: model.Claim, unmaking: Unmaking
) -> Iterator[actions.Action]:
    """Yield what unmakes a claim's vGPU, and its instance if it is ours."""
    yield unmaking
    if claim.owns_instance:
        yield actions.DestroyInstance(gpu=claim.device, kind=claim.instance)


def arrange(
    host: host_reader.HostReader,
    rules: policy.Policy,
    function: pci.PciFunction,
    *,
    is_empty: bool,
) -> Iterator[actions.Action]:
    """Yield what brings a card into the mode that policy asks for.

    VFs first: enabling them takes the driver off the card, and with it
    the mixed-size mode.

    :param function: the PF.
    :param is_empty: whether no vGPU is on the card, for certain.
    """
    address = str(function.address)
    rule = rules.rule(address, function.vendor, function.product)
    if not is_empty or rule.use not in USES:
        return
    wants_vfs = bool(
        rule.num_vfs and function.total_vfs and not function.num_vfs
    )
    if wants_vfs:
        yield actions.SetVfCount(
            function=address, count=function.total_vfs, tool=_VF_TOOL
        )
    told = gpu_card.told_of(host, address)
    facts = gpu_card.model_of(function, ())
    if (
        rule.is_mixed is None
        or told.is_mixed is None
        or told.is_mig
        or (facts is not None and not facts.can_mix)
    ):
        return
    if rule.is_mixed != (told.is_mixed and not wants_vfs):
        yield actions.SetMixedSizes(gpu=address, is_mixed=rule.is_mixed)
