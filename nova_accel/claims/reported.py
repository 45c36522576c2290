# SPDX-License-Identifier: Apache-2.0
"""Claims of the partitions that a source of figures reports."""

from collections.abc import Iterable

from nova_accel import model
from nova_accel.catalog import mdev_names


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
