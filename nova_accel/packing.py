# SPDX-License-Identifier: Apache-2.0
"""What still fits on a device beside what has been cut from it."""

from collections.abc import Iterable, Mapping

from nova_accel import model


def remaining(
    device: model.Device, planned: Iterable[str] = ()
) -> Mapping[str, int]:
    """Return how many more of each profile a device can make.

    The device's own word (``Profile.available``) is the upper bound; what
    ``planned`` profiles will take of its counters is taken off first.

    :param planned: names of profiles about to be made, not yet visible in
        the device's partitions.
    """
    free = free_counters(device, planned)
    waiting = tuple(planned)
    return {
        profile.name: max(
            0,
            min(
                profile.available - waiting.count(profile.name),
                *(
                    free.get(name, 0) // amount
                    for name, amount in profile.charges.items()
                    if amount > 0
                ),
            ),
        )
        for profile in device.profiles
    }


def free_counters(
    device: model.Device, planned: Iterable[str] = ()
) -> dict[str, int]:
    """Return what partitions and plans leave of each counter."""
    free = dict(device.counters)
    names = [p.profile for p in device.partitions] + list(planned)
    for name in names:
        profile = device.profile(name)
        charges = profile.charges if profile else {device.resource_class: 1}
        for counter, amount in charges.items():
            free[counter] = free.get(counter, 0) - amount
    return free
