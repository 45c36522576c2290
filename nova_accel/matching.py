# SPDX-License-Identifier: Apache-2.0
"""Which devices serve which groups of a flavor."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel import flavors, model, names, regions

Wanted = tuple[flavors.RequestGroup, str, int]
Choice = tuple[flavors.RequestGroup, model.Device, str, int]

# Technologies that give functions away as they are: nothing is cut, so a
# function that a server holds shows no partition.
WHOLE = frozenset({"passthrough", "vf", "fpga"})


def slot_groups(
    groups: Iterable[flavors.RequestGroup],
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
) -> Iterator[Wanted]:
    """Yield what each group asks of our classes.

    Ours are those that slots came from, and that of a device whose profile
    the group names: it was to get a slot too.
    """
    classes = {devices[provider].resource_class for provider in free}
    for group in sorted(groups, key=lambda g: g.suffix):
        named = {
            device.resource_class
            for device in devices.values()
            if any(p.trait in group.required for p in device.profiles)
        }
        for name in sorted((classes | named) & group.resources.keys()):
            if group.resources[name]:
                yield group, name, group.resources[name]


def match(
    wanted: Sequence[Wanted],
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
    booked: model.Booked,
) -> Iterator[list[Choice]]:
    """Yield the ways to serve every group and to use up every slot.

    A server has a handful of groups: plain backtracking serves. Groups
    that ask for the same are not tried in each other's place.
    """
    left = {provider: len(slots) for provider, slots in free.items()}
    fitting = [
        [
            provider
            for provider in _candidates(group, name, free, devices)
            if _is_covered(group, devices[provider], booked.get(provider))
        ]
        for group, name, _ in wanted
    ]

    def search(index: int, before: int) -> Iterator[list[Choice]]:
        if index == len(wanted):
            if not any(left.values()):
                yield []
            return
        group, _, count = wanted[index]
        first = before if _is_repeated(wanted, index) else 0
        for place, provider in enumerate(fitting[index]):
            if place < first or left[provider] < count:
                continue
            left[provider] -= count
            for rest in search(index + 1, place):
                yield [(group, devices[provider], provider, count), *rest]
            left[provider] += count

    yield from search(0, 0)


def mismatch(
    wanted: Sequence[Wanted],
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
) -> str:
    """Return why no way was found, and what to do about it."""
    asked = "; ".join(
        f"group {group.suffix or '(unsuffixed)'} wants {count} {name} with"
        f" {', '.join(sorted(group.required)) or 'any profile'}"
        for group, name, count in wanted
    )
    given = "; ".join(
        f"{len(slots)} slots of {devices[provider].address}"
        f" ({_in_words(devices[provider])})"
        for provider, slots in sorted(free.items())
    )
    return (
        f"the flavor asks: {asked or 'nothing'}; Nova claimed: {given}. Name"
        " one profile in each group of the flavor"
        " (trait_GROUP:<profile trait>=required), and of an FPGA region what"
        " it holds, or give it a bitstream"
    )


def _in_words(device: model.Device) -> str:
    if device.region is None:
        return ", ".join(profile.name for profile in device.profiles)
    held = device.region.function
    if held is None:
        return "its function can't be read now"
    return f"holds function {held}" if held else "holds nothing"


def profile_of(
    group: flavors.RequestGroup, device: model.Device
) -> model.Profile | None:
    """Return the profile a group names on a device, or None.

    A group that names none gets the only profile of a device that has one.
    An FPGA region that holds another function than is asked for has none.
    """
    named = [p for p in device.profiles if p.trait in group.required]
    if not regions.can_serve(group, device):
        return None
    if len(named) == 1:
        return named[0]
    unnamed = not any(
        trait.startswith(names.PROFILE_PREFIXES) and trait not in device.traits
        for trait in group.required
    )
    if not named and unnamed and len(device.profiles) == 1:
        return device.profiles[0]
    return None


def handle_of(device: model.Device, provider: str, identifier: str) -> str:
    """Return the handle of what stands in a slot, or will.

    An mdev has a uuid of its own; anything else is a function.
    """
    if device.technology == "mdev":
        return names.mdev_uuid(provider, identifier)
    return identifier


def _candidates(
    group: flavors.RequestGroup,
    name: str,
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
) -> list[str]:
    """Return the providers that have a group's profile.

    First those on which the slots hold most partitions of it.
    """

    def key(provider: str) -> tuple[int, str]:
        device = devices[provider]
        profile = profile_of(group, device)
        handles = {handle_of(device, provider, i) for i in free[provider]}
        made = sum(
            p.handle in handles
            for p in device.partitions
            if profile is not None and p.profile == profile.name
        )
        return -made, provider

    return sorted(
        (
            provider
            for provider in free
            if devices[provider].resource_class == name
            and profile_of(group, devices[provider]) is not None
        ),
        key=key,
    )


def _is_covered(
    group: flavors.RequestGroup,
    device: model.Device,
    booked: Mapping[str, int] | None,
) -> bool:
    """Return whether what was booked on a device can pay for a group."""
    return booked is None or all(
        booked.get(name, 0) >= amount
        for name, amount in group.resources.items()
        if name in device.counters
    )


def _is_repeated(wanted: Sequence[Wanted], index: int) -> bool:
    """Return whether a group asks for what the one before it does."""
    if not index:
        return False
    (group, *asked), (other, *other_asked) = wanted[index], wanted[index - 1]
    return asked == other_asked and group.required == other.required
