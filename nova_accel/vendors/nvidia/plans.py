# SPDX-License-Identifier: Apache-2.0
"""Actions on NVIDIA cards, for both drivers."""

from collections.abc import Iterator

from nova_accel import model
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, pci
from nova_accel.vendors.nvidia import gpu_card

# NVIDIA's driver refuses writes to sriov_numvfs; NVIDIA's tool unbinds the
# driver, enables all VFs, and binds the driver again.
VF_TOOL = "sriov-manage"
# The uses of device_spec that these drivers serve.
USES = (policy.DeviceUse.AUTO, policy.DeviceUse.VGPU, policy.DeviceUse.MIG)
# The actions that create and remove a vGPU.
CreateVgpu = actions.CreateMdev | actions.SetVgpuType
RemoveVgpu = actions.RemoveMdev | actions.ClearVgpuType


def plan_prepare(
    claim: model.Claim, create: CreateVgpu
) -> Iterator[actions.Action]:
    """Yield the actions of a claim: GPU instance, vGPU, settings.

    Placement and parameters can be set only between the creation of the
    vGPU and its first use by a guest.
    """
    if claim.instance_start is not None:
        yield actions.CreateInstance(
            gpu=claim.device,
            kind=claim.instance,
            start=claim.instance_start,
        )
    yield create
    if claim.start is not None and isinstance(create, actions.SetVgpuType):
        yield actions.SetVgpuPlacementId(
            function=claim.handle, start=claim.start
        )
    if claim.vgpu_params:
        yield actions.SetVgpuParams(
            target=claim.handle, params=claim.vgpu_params
        )


def plan_release(
    claim: model.Claim, remove: RemoveVgpu
) -> Iterator[actions.Action]:
    """Yield the actions that remove a claim's vGPU and its GPU instance.

    The instance is destroyed only if the claim owns it.
    """
    yield remove
    if claim.owns_instance:
        yield actions.DestroyInstance(gpu=claim.device, kind=claim.instance)


def plan_arrange(
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    function: pci.PciFunction,
    *,
    is_empty: bool,
) -> Iterator[actions.Action]:
    """Yield the actions that put a card into the mode policy asks for.

    VFs come first: enabling them unbinds the driver, which resets the
    mixed-size mode.

    :param function: the PF.
    :param is_empty: whether the card is known to have no vGPU.
    """
    address = str(function.address)
    rule = rules.rule(address, function.vendor, function.product)
    if not is_empty or rule.use not in USES:
        return
    enables_vfs = bool(
        rule.num_vfs and function.total_vfs and not function.num_vfs
    )
    if enables_vfs:
        yield actions.SetVfCount(
            function=address, count=function.total_vfs, tool=VF_TOOL
        )
    nvml = gpu_card.get_nvml_gpu(host, address)
    catalog_gpu = gpu_card.find_catalog_gpu(function, ())
    if (
        rule.is_mixed is None
        or nvml.is_mixed is None
        or nvml.is_mig
        or (catalog_gpu is not None and not catalog_gpu.can_mix)
    ):
        return
    if rule.is_mixed != (nvml.is_mixed and not enables_vfs):
        yield actions.SetMixedSizes(gpu=address, is_mixed=rule.is_mixed)
