# SPDX-License-Identifier: Apache-2.0
"""Running vGPUs are matched with claims of servers."""

from nova_accel import model
from nova_accel.discovery import vgpu_guests
from nova_accel.host import nvml_gpus

GPU = "0000:41:00.0"
MDEV = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"


def claim(
    server: str, handle: str = "0000:41:00.4", device: str = GPU
) -> model.Claim:
    return model.Claim(
        consumer=server,
        provider="p",
        device=device,
        profile="L40S-8Q",
        slot="slot-0",
        parent=device,
        handle=handle,
        technology="vendor-vfio",
    )


def states(
    claims: list[model.Claim], *vgpus: nvml_gpus.NvmlVgpu
) -> list[tuple[str, str, str]]:
    gpus = {GPU: nvml_gpus.NvmlGpu(address=GPU, vgpus=vgpus)}
    return [
        (guest.server, guest.handle, guest.license)
        for guest in vgpu_guests.list_guests(claims, gpus)
    ]


def test_a_vf_is_found_by_its_server() -> None:
    vgpu = nvml_gpus.NvmlVgpu(server="s1", license="licensed")
    claims = [claim("s1"), claim("s2"), claim("s1", device="0000:42:00.0")]
    assert states(claims, vgpu) == [("s1", "0000:41:00.4", "licensed")]


def test_an_mdev_is_found_by_its_uuid() -> None:
    vgpus = [
        nvml_gpus.NvmlVgpu(server="s1", mdev=MDEV, license="licensed"),
        nvml_gpus.NvmlVgpu(server="s1", mdev="x", license="unlicensed"),
    ]
    assert states([claim("s1", MDEV)], *vgpus) == [("s1", MDEV, "licensed")]


def test_the_worst_state_of_a_server_counts() -> None:
    vgpus = [
        nvml_gpus.NvmlVgpu(server="s1", license=license_state)
        for license_state in ("licensed", "", "unlicensed_restricted")
    ]
    ((_, _, state),) = states([claim("s1")], *vgpus)
    assert vgpu_guests.is_unlicensed(state)


def test_a_gpu_without_answers_has_no_guests() -> None:
    assert vgpu_guests.list_guests([claim("s1")], {}) == ()
    gpus = {GPU: nvml_gpus.NvmlGpu(address=GPU)}
    assert vgpu_guests.list_guests([claim("s1")], gpus) == ()
