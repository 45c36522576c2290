# SPDX-License-Identifier: Apache-2.0
"""Assignment of a flavor's request groups to devices, by backtracking.

``free`` are the identifiers of a server's slots by provider, ``devices`` the
devices by provider.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.model import flavors, names

# A group, one of its resource classes, and the number of slots.
SlotRequest = tuple[flavors.RequestGroup, str, int]
# A group, the device for it, the device's provider, and the number of slots.
Assignment = tuple[flavors.RequestGroup, model.Device, str, int]
HasRoom = Callable[[str, Sequence[SlotRequest]], bool]


def list_slot_requests(
    groups: Iterable[flavors.RequestGroup],
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
) -> Iterator[SlotRequest]:
    """Yield the slots that each group requests.

    Slots exist of the resource classes of the assigned slots, and of the
    class of a device whose profile the group requires: Nova should have
    assigned a slot of that too.
    """
    classes = {devices[provider].resource_class for provider in free}
    for group in sorted(groups, key=lambda g: g.suffix):
        required = {
            device.resource_class
            for device in devices.values()
            if any(p.trait in group.required for p in device.profiles)
        }
        for name in sorted((classes | required) & group.resources.keys()):
            if group.resources[name]:
                yield group, name, group.resources[name]


def match(
    requests: Sequence[SlotRequest],
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
    allocated: model.Allocations,
    has_room: HasRoom = lambda provider, requests: True,
) -> Iterator[list[Assignment]]:
    """Yield the assignments of all groups that use up all slots.

    Adjacent requests of the same kind are interchangeable: only one order
    is tried, and the providers' UUIDs decide it. States without a solution
    are cached, so a failing search takes at most as many steps as there
    are sets of groups.

    :param has_room: returns whether a device can make all partitions of
        its slots, by provider and its requests in order.
    """
    search = _GroupSearch(requests, free, devices, allocated, has_room)
    for match_providers in search.run(0, 0):
        yield [
            (group, devices[provider], provider, count)
            for (group, _, count), provider in zip(
                requests,
                _sort_providers(match_providers, search.kinds),
                strict=True,
            )
        ]


class _GroupSearch:
    """Backtracking over the providers for each request.

    ``kinds`` has a number per request, equal for interchangeable ones.
    ``assigned`` are the indexes of the requests on each provider,
    ``unused_slots`` the number of its other slots, ``unspent`` its
    allocated amounts that no assigned group needs.
    """

    def __init__(
        self,
        requests: Sequence[SlotRequest],
        free: Mapping[str, set[str]],
        devices: Mapping[str, model.Device],
        allocated: model.Allocations,
        has_room: HasRoom,
    ) -> None:
        self.requests = requests
        self.devices = devices
        self.has_room = has_room
        self.candidates = [
            _list_candidates(group, name, free, devices)
            for group, name, _ in requests
        ]
        self.kinds = _number_kinds(requests, self.candidates, devices)
        self.unused_slots = {
            provider: len(slots) for provider, slots in free.items()
        }
        self.unspent = {p: dict(amounts) for p, amounts in allocated.items()}
        self.assigned: dict[str, tuple[int, ...]] = dict.fromkeys(free, ())
        self.room_cache: dict[tuple[str, tuple[int, ...]], bool] = {}
        self.failed_states: set[tuple[object, ...]] = set()

    def run(self, index: int, previous: int) -> Iterator[list[str]]:
        """Yield the providers of the requests from an index on.

        :param previous: position of the previous request's provider among
            its candidates.
        """
        if index == len(self.requests):
            if not any(self.unused_slots.values()):
                yield []
            return
        is_repeated = index and self.kinds[index] == self.kinds[index - 1]
        first = previous if is_repeated else 0
        state = self._state(index, first)
        if state in self.failed_states:
            return
        has_match = False
        for position in range(first, len(self.candidates[index])):
            provider = self.candidates[index][position]
            if not self._can_assign(index, provider):
                continue
            self.assigned[provider] += (index,)
            self._spend(index, provider, 1)
            if self._has_room(provider):
                for others in self.run(index + 1, position):
                    has_match = True
                    yield [provider, *others]
            self._spend(index, provider, -1)
            self.assigned[provider] = self.assigned[provider][:-1]
        if not has_match:
            self.failed_states.add(state)

    def _state(self, index: int, first: int) -> tuple[object, ...]:
        """Return the state that the remaining search depends on.

        Devices without unused slots don't matter.
        """
        return (
            index,
            first,
            *(
                self._kinds_on(provider) if slots else None
                for provider, slots in self.unused_slots.items()
            ),
        )

    def _kinds_on(self, provider: str) -> tuple[int, ...]:
        return tuple(self.kinds[index] for index in self.assigned[provider])

    def _can_assign(self, index: int, provider: str) -> bool:
        group, _, count = self.requests[index]
        return self.unused_slots[provider] >= count and _is_covered(
            group, self.devices[provider], self.unspent.get(provider)
        )

    def _spend(self, index: int, provider: str, times: int) -> None:
        group, _, count = self.requests[index]
        self.unused_slots[provider] -= times * count
        unspent = self.unspent.get(provider)
        if unspent is None:
            return
        for name, amount in group.resources.items():
            if name in self.devices[provider].counters:
                unspent[name] = unspent.get(name, 0) - times * amount

    def _has_room(self, provider: str) -> bool:
        """Return whether a device has room, once its slots are used up."""
        if self.unused_slots[provider]:
            return True
        key = provider, self._kinds_on(provider)
        if key not in self.room_cache:
            requests = [self.requests[i] for i in self.assigned[provider]]
            self.room_cache[key] = self.has_room(provider, requests)
        return self.room_cache[key]


def explain_mismatch(
    requests: Sequence[SlotRequest],
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
) -> str:
    """Return why the slots don't match the groups, and what to do."""
    requested = "; ".join(
        f"group {group.suffix or '(unsuffixed)'} wants {count} {name} with"
        f" {', '.join(sorted(group.required)) or 'any profile'}"
        for group, name, count in requests
    )
    assigned = "; ".join(
        f"{len(slots)} slots of {devices[provider].address}"
        f" ({_describe(devices[provider])})"
        for provider, slots in sorted(free.items())
    )
    return (
        f"the flavor requests: {requested or 'nothing'}; Nova claimed:"
        f" {assigned}. Name one profile in each group of the flavor"
        " (trait_GROUP:<profile trait>=required), and for an FPGA region its"
        " function or a bitstream"
    )


def _describe(device: model.Device) -> str:
    if device.region is None:
        return ", ".join(profile.name for profile in device.profiles)
    function = device.region.function
    if function is None:
        return "its function can't be read now"
    return f"holds function {function}" if function else "holds nothing"


def required_functions(group: flavors.RequestGroup) -> frozenset[str]:
    """Return the traits of the functions that a group requires."""
    return _filter_required(group, names.FUNCTION_PREFIX)


def _filter_required(
    group: flavors.RequestGroup, prefix: str
) -> frozenset[str]:
    return frozenset(t for t in group.required if t.startswith(prefix))


def can_serve(group: flavors.RequestGroup, device: model.Device) -> bool:
    """Return whether a device can serve a group.

    A region whose function can't be read now is assumed to have the right
    one; a group with a bitstream can use any.
    """
    region = device.region
    if region is None:
        return True
    required = _filter_required(group, names.INTERFACE_PREFIX)
    interfaces = {names.interface_trait(i) for i in region.interfaces}
    if interfaces and not required <= interfaces:
        return False
    if group.bitstream or region.function is None:
        return True
    return required_functions(group) <= names.fpga_function_traits(
        region.function
    )


def find_profile(
    group: flavors.RequestGroup, device: model.Device
) -> model.Profile | None:
    """Return the profile that a group requires of a device, or None.

    A group without a profile uses the only profile of a device. An FPGA
    region without the required function has none.
    """
    profiles = [p for p in device.profiles if p.trait in group.required]
    if not can_serve(group, device):
        return None
    if len(profiles) == 1:
        return profiles[0]
    has_other_profile = any(
        trait.startswith(names.PROFILE_PREFIXES) and trait not in device.traits
        for trait in group.required
    )
    if profiles or has_other_profile or len(device.profiles) != 1:
        return None
    return device.profiles[0]


def slot_handle(device: model.Device, provider: str, identifier: str) -> str:
    """Return the handle of the partition of a slot, which may not exist.

    It is the UUID of an mdev, or else the address of a function. A slot that
    is a VF has the mdev on this VF, whatever its UUID: it may be adopted.
    """
    if device.technology != "mdev":
        return identifier
    return next(
        (p.handle for p in device.partitions if p.parent == identifier),
        names.mdev_uuid(provider, identifier),
    )


def is_in_own_slot(claim: model.Claim) -> bool:
    """Return whether a claim's partition is that which its slot names.

    An mdev on a VF may have any uuid: another program made it, or it was
    adopted.
    """
    return claim.technology != "mdev" or claim.handle == names.mdev_uuid(
        claim.provider, claim.slot
    )


def _list_candidates(
    group: flavors.RequestGroup,
    name: str,
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
) -> list[str]:
    """Return the providers that have a group's profile.

    Those come first whose slots have most existing partitions of it.
    """

    def key(provider: str) -> tuple[int, str]:
        device = devices[provider]
        profile = find_profile(group, device)
        handles = {slot_handle(device, provider, i) for i in free[provider]}
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
            and find_profile(group, devices[provider]) is not None
        ),
        key=key,
    )


def _is_covered(
    group: flavors.RequestGroup,
    device: model.Device,
    allocated: Mapping[str, int] | None,
) -> bool:
    """Return whether the amounts cover a group; None covers any."""
    return allocated is None or all(
        allocated.get(name, 0) >= amount
        for name, amount in group.resources.items()
        if name in device.counters
    )


def _number_kinds(
    requests: Sequence[SlotRequest],
    candidates: Sequence[Sequence[str]],
    devices: Mapping[str, model.Device],
) -> list[int]:
    """Return a number per request, equal for interchangeable ones.

    These have the same profile on each device, so the same claims.
    """
    numbers: dict[object, int] = {}
    return [
        numbers.setdefault(
            (
                name,
                count,
                tuple(sorted(group.resources.items())),
                group.bitstream,
                required_functions(group),
                tuple(
                    (provider, profile.name)
                    for provider in providers
                    if (profile := find_profile(group, devices[provider]))
                ),
            ),
            len(numbers),
        )
        for (group, name, count), providers in zip(
            requests, candidates, strict=True
        )
    ]


def _sort_providers(
    providers: Sequence[str], kinds: Sequence[int]
) -> Iterator[str]:
    """Yield the providers of a match, sorted within adjacent equal kinds.

    So a guest has its devices in the same order every time.
    """
    pairs = zip(kinds, providers, strict=True)
    for _, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield from sorted(provider for _, provider in group)
