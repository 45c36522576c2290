# SPDX-License-Identifier: Apache-2.0
"""Licences and drivers of the guests that have vGPUs.

NVML names the guest of a vGPU by the uuid of its domain, which is that of
the server. A guest has one licence for all its vGPUs.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.catalog import mdev_names
from nova_accel.host import nvml_gpus


def find_claims(
    claims: Iterable[model.Claim],
    device: str,
    handle: str,
    server: str,
    profile: str = "",
) -> tuple[model.Claim, ...]:
    """Return the claims that a reported partition can be of.

    NVML has no handle of a VF with a vendor-specific VFIO driver. It is of
    one of its server's claims on the device: of several equal ones it is
    not known which.

    :param handle: the mdev's uuid or the VF's address; "" if not reported.
    :param profile: without its brand; "" if it is not reported.
    """
    if handle:
        return tuple(claim for claim in claims if claim.handle == handle)
    return tuple(
        claim
        for claim in claims
        if (claim.consumer, claim.device) == (server, device)
        and profile in ("", mdev_names.strip_brand(claim.profile))
    )


# States in which NVIDIA's driver limits the guest, now or after some time.
UNLICENSED = "unlicensed"
# From the worst state to the best one.
_STATES = (
    "unlicensed_restricted",
    UNLICENSED,
    "unlicensed_unrestricted",
    "uninitialized",
    "licensed",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VgpuGuest:
    """Guest of a claimed vGPU; empty fields are unknown.

    ``license`` is a name of ``nvml_library.license_name``, ``expires`` the
    end of the licence, ``driver`` the version of the driver in the guest.
    """

    server: str
    device: str
    profile: str
    handle: str
    license: str = ""
    expires: str = ""
    driver: str = ""


def is_unlicensed(state: str) -> bool:
    """Return whether a state of a licence limits the guest."""
    return state.startswith(UNLICENSED)


def list_guests(
    claims: Iterable[model.Claim], gpus: Mapping[str, nvml_gpus.NvmlGpu]
) -> tuple[VgpuGuest, ...]:
    """Return the guests of the claims whose vGPUs run.

    Of several vGPUs of a server on one GPU, the worst state counts for each:
    NVML does not say which of its VFs a vGPU is.
    """
    all_claims = tuple(claims)
    by_claim: dict[model.Claim, list[nvml_gpus.NvmlVgpu]] = {}
    for address, gpu in gpus.items():
        for vgpu in gpu.vgpus or ():
            for claim in find_claims(
                all_claims, address, vgpu.mdev, vgpu.server
            ):
                by_claim.setdefault(claim, []).append(vgpu)
    return tuple(
        _build_guest(claim, min(by_claim[claim], key=_rank))
        for claim in all_claims
        if claim in by_claim
    )


def _rank(vgpu: nvml_gpus.NvmlVgpu) -> int:
    state = vgpu.license
    return _STATES.index(state) if state in _STATES else len(_STATES)


def _build_guest(claim: model.Claim, vgpu: nvml_gpus.NvmlVgpu) -> VgpuGuest:
    return VgpuGuest(
        server=claim.consumer,
        device=claim.device,
        profile=claim.profile,
        handle=claim.handle,
        license=vgpu.license,
        expires=vgpu.expires,
        driver=vgpu.driver,
    )
