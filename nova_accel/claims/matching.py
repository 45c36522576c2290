# SPDX-License-Identifier: Apache-2.0
"""Assignment of a flavor's groups to devices, by backtracking."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.fpga import regions
from nova_accel.model import flavors, names

Wanted = tuple[flavors.RequestGroup, str, int]
Choice = tuple[flavors.RequestGroup, model.Device, str, int]
HasRoom = Callable[[str, Sequence[Wanted]], bool]


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
    has_room: HasRoom = lambda provider, groups: True,
) -> Iterator[list[Choice]]:
    """Yield the ways to serve every group and to use up every slot.

    Neighbours that ask for the same are not tried in each other's place;
    of their providers the uuids decide the order. What was searched in
    vain is not searched again, so failing takes no more steps than there
    are sets of groups.

    :param has_room: returns whether a device can make what all of its
        slots stand for, by provider and groups in order.
    """
    search = _GroupSearch(wanted, free, devices, booked, has_room)
    for way in search.run(0, 0):
        yield [
            (group, devices[provider], provider, count)
            for (group, _, count), provider in zip(
                wanted, _in_order(way, search.kinds), strict=True
            )
        ]


class _GroupSearch:
    """Backtracking over the providers that may serve each group.

    ``kinds`` has a number for each group, one for those that ask for the
    same. ``served`` are the numbers of the groups on each provider so far,
    ``left`` its slots that are not used yet, ``unspent`` what is booked
    beyond: it pays for all groups on a device together.
    """

    def __init__(
        self,
        wanted: Sequence[Wanted],
        free: Mapping[str, set[str]],
        devices: Mapping[str, model.Device],
        booked: model.Booked,
        has_room: HasRoom,
    ) -> None:
        self.wanted = wanted
        self.devices = devices
        self.has_room = has_room
        self.fitting = [
            _candidates(group, name, free, devices)
            for group, name, _ in wanted
        ]
        self.kinds = _number_alike(wanted, self.fitting, devices)
        self.left = {provider: len(slots) for provider, slots in free.items()}
        self.unspent = {p: dict(amounts) for p, amounts in booked.items()}
        self.served: dict[str, tuple[int, ...]] = dict.fromkeys(free, ())
        self.rooms: dict[tuple[str, tuple[int, ...]], bool] = {}
        self.failed: set[tuple[object, ...]] = set()

    def run(self, index: int, before: int) -> Iterator[list[str]]:
        """Yield the providers of the groups from one on, in each way.

        :param before: the place, among the providers that fit, of the one
            that serves the group before.
        """
        if index == len(self.wanted):
            if not any(self.left.values()):
                yield []
            return
        is_repeated = index and self.kinds[index] == self.kinds[index - 1]
        first = before if is_repeated else 0
        state = self._state(index, first)
        if state in self.failed:
            return
        is_found = False
        for place in range(first, len(self.fitting[index])):
            provider = self.fitting[index][place]
            if not self._can_take(index, provider):
                continue
            self.served[provider] += (index,)
            self._take(index, provider, 1)
            if self._has_room(provider):
                for rest in self.run(index + 1, place):
                    is_found = True
                    yield [provider, *rest]
            self._take(index, provider, -1)
            self.served[provider] = self.served[provider][:-1]
        if not is_found:
            self.failed.add(state)

    def _state(self, index: int, first: int) -> tuple[object, ...]:
        """Return all that the ways from a group on depend on.

        Used up devices make no difference.
        """
        return (
            index,
            first,
            *(
                self._kinds_on(provider) if slots else None
                for provider, slots in self.left.items()
            ),
        )

    def _kinds_on(self, provider: str) -> tuple[int, ...]:
        return tuple(self.kinds[index] for index in self.served[provider])

    def _can_take(self, index: int, provider: str) -> bool:
        group, _, count = self.wanted[index]
        return self.left[provider] >= count and _is_covered(
            group, self.devices[provider], self.unspent.get(provider)
        )

    def _take(self, index: int, provider: str, times: int) -> None:
        group, _, count = self.wanted[index]
        self.left[provider] -= times * count
        funds = self.unspent.get(provider)
        _spend(group, self.devices[provider], funds, times)

    def _has_room(self, provider: str) -> bool:
        """Return whether a device has room, once its slots are used up."""
        if self.left[provider]:
            return True
        key = provider, self._kinds_on(provider)
        if key not in self.rooms:
            groups = [self.wanted[index] for index in self.served[provider]]
            self.rooms[key] = self.has_room(provider, groups)
        return self.rooms[key]


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


def _spend(
    group: flavors.RequestGroup,
    device: model.Device,
    funds: dict[str, int] | None,
    times: int,
) -> None:
    """Take from what is booked on a device what a group costs."""
    for name, amount in group.resources.items():
        if funds is not None and name in device.counters:
            funds[name] = funds.get(name, 0) - times * amount


def _number_alike(
    wanted: Sequence[Wanted],
    fitting: Sequence[Sequence[str]],
    devices: Mapping[str, model.Device],
) -> list[int]:
    """Return a number for each group, one for those that ask for the same.

    They get the same profile of each device, so the same claims.
    """
    numbers: dict[object, int] = {}
    return [
        numbers.setdefault(
            (
                name,
                count,
                tuple(sorted(group.resources.items())),
                group.bitstream,
                regions.wanted_functions(group),
                tuple(
                    (provider, profile.name)
                    for provider in providers
                    if (profile := profile_of(group, devices[provider]))
                ),
            ),
            len(numbers),
        )
        for (group, name, count), providers in zip(
            wanted, fitting, strict=True
        )
    ]


def _in_order(way: Sequence[str], kinds: Sequence[int]) -> Iterator[str]:
    """Yield the providers of a way, those of alike neighbours sorted.

    A guest finds its devices in the same order every time.
    """
    pairs = zip(kinds, way, strict=True)
    for _, alike in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield from sorted(provider for _, provider in alike)
