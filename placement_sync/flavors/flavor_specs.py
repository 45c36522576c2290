# SPDX-License-Identifier: Apache-2.0
"""Conversion between a profile request and extra specs."""

import dataclasses
import re
from collections.abc import Iterator, Mapping

from nova_accel import errors
from nova_accel.catalog import pci_ids
from nova_accel.model import flavors, names

# Nova reads it for all groups of a flavor, and wants it with two or more
# (nova/scheduler/utils.py, ResourceRequest).
POLICY = "group_policy"
NO_POLICY = "none"
ISOLATE = "isolate"
_BITSTREAM = f"{flavors.NAMESPACE}fpga_bitstream"
# As Nova allows in suffixes, and no digit at the end: numbers follow.
_GROUP = re.compile(r"[A-Za-z0-9_-]{0,31}[A-Za-z_-]")
_KEY = re.compile(
    r"(?P<kind>resources|trait)(?P<suffix>[a-zA-Z0-9_-]{0,64}):(?P<name>.+)"
)
_WORDS = {
    names.FPGA_CLASS: "FPGA",
    names.MDEV_CLASS: "MDEV",
    names.GPU_CLASS: "GPU",
    names.WHOLE_GPU_CLASS: "GPU",
}
SETTINGS = (
    "numa_policy",
    "locality",
    "packing",
    "display",
    "ramfb",
    "rom",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """Some devices of one sort, each in a group of its own.

    ``bitstream`` is the id of a Glance image, empty for none.
    """

    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    bitstream: str = ""
    count: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorRequest:
    """What a flavor is to ask for.

    ``want`` is None for nothing at all; ``settings`` are values of the
    extra specs in SETTINGS. ``group`` names the groups, and only those of
    that name are replaced; empty for a name of their kind, in place of
    all groups of ours. Settings without a want leave the groups alone.
    """

    want: DeviceRequest | None = None
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    group: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpecsChange:
    """What becomes of a flavor's extra specs; ``specs`` are those after."""

    specs: Mapping[str, str]
    added: Mapping[str, str]
    removed: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorContents:
    """What a flavor asks of accelerators.

    ``groups`` are those of ours; of the one without a suffix only what
    belongs to accelerators. ``is_isolated`` tells that no two groups may
    have one provider, ``cells`` how many NUMA nodes the guest has, None
    where the flavor says nothing of it.
    """

    groups: tuple[flavors.RequestGroup, ...] = ()
    placing: flavors.PlacementPolicy = flavors.USUAL_PLACING
    options: flavors.Options = dataclasses.field(
        default_factory=flavors.Options
    )
    is_isolated: bool = False
    cells: int | None = None


# -- to extra specs ---------------------------------------------------------


def check_group(name: str) -> None:
    """Check what is to name groups.

    :raises MalformedError: it can't.
    """
    if not _GROUP.fullmatch(name):
        raise errors.MalformedError(
            "--group",
            name,
            "up to 32 letters, digits, _ and -, with no digit at the end",
        )


def group_word(want: DeviceRequest) -> str:
    """Return what groups of a kind are called: ``GPU``."""
    own = min(want.resources, key=lambda n: n not in _WORDS, default="")
    return _WORDS.get(own, "ACCEL")


def plan(old: Mapping[str, str], wish: FlavorRequest) -> SpecsChange:
    """Return what becomes of a flavor's extra specs.

    What is not of ours stays. Without a group's name all of ours is
    replaced, with one the groups of that name, and settings that are
    given.
    """
    kept = {k: v for k, v in old.items() if not _is_replaced(k, old, wish)}
    made = dict(_keys(wish))
    specs = {**kept, **made}
    specs = _with_policy(specs)
    return SpecsChange(
        specs=specs,
        added={k: v for k, v in specs.items() if old.get(k) != v},
        removed=tuple(sorted(old.keys() - specs.keys())),
    )


def _keys(wish: FlavorRequest) -> Iterator[tuple[str, str]]:
    for name, value in wish.settings.items():
        yield f"{flavors.NAMESPACE}{name}", value
    want = wish.want
    if want is None:
        return
    word = wish.group or group_word(want)
    for number in range(1, want.count + 1):
        suffix = f"_{word}{number}"
        for name, amount in want.resources.items():
            yield f"resources{suffix}:{name}", str(amount)
        for trait in sorted(want.required):
            yield f"trait{suffix}:{trait}", "required"
        if want.bitstream:
            yield f"{_BITSTREAM}{suffix}", want.bitstream


def _is_replaced(
    key: str, old: Mapping[str, str], wish: FlavorRequest
) -> bool:
    if wish.want is None and wish.settings:
        return False
    if wish.group:
        own = re.compile(rf"_{re.escape(wish.group)}[0-9]+")
        if key.startswith(_BITSTREAM):
            return bool(own.fullmatch(key.removeprefix(_BITSTREAM)))
        found = _KEY.fullmatch(key)
        return bool(found and own.fullmatch(found["suffix"]))
    return is_ours(key, old)


def is_ours(key: str, specs: Mapping[str, str]) -> bool:
    """Return whether an extra spec of a flavor is about accelerators."""
    if key.startswith(flavors.NAMESPACE):
        return True
    found = _KEY.fullmatch(key)
    if found is None:
        return False
    if not found["suffix"]:
        return _is_ours(found["name"])
    return found["suffix"] in _our_suffixes(specs)


def _our_suffixes(specs: Mapping[str, str]) -> frozenset[str]:
    return frozenset(
        found["suffix"]
        for found in map(_KEY.fullmatch, specs)
        if found and found["suffix"] and _is_ours(found["name"])
    )


def _is_ours(name: str) -> bool:
    """Return whether a class or trait is of accelerators only."""
    if name == names.NOVA_OWNER_TRAIT:
        return False
    return (
        pci_ids.is_accelerator(name)
        or name.startswith(names.PIN_PREFIX)
        or names.is_ours(name)
    )


def _with_policy(specs: dict[str, str]) -> dict[str, str]:
    """Return extra specs with a policy for groups where Nova wants one.

    It is ``none``: which devices go together the filter knows better, and
    ``isolate`` would part others' groups, too. What somebody else chose
    stays.
    """
    suffixes = {
        found["suffix"]
        for found in map(_KEY.fullmatch, specs)
        if found and found["suffix"]
    }
    if len(suffixes) > 1:
        return {POLICY: NO_POLICY, **specs}
    if specs.get(POLICY) == NO_POLICY:
        return {k: v for k, v in specs.items() if k != POLICY}
    return specs


# -- from extra specs -------------------------------------------------------


def read(specs: Mapping[str, str]) -> FlavorContents:
    """Return what a flavor's extra specs ask of accelerators.

    :raises MalformedError: an ``accelerator:`` key has a value that is not
        allowed.
    """
    ours = _our_suffixes(specs)
    groups = (
        group if group.suffix else _only_ours(group)
        for group in flavors.parse_groups(specs)
        if not group.suffix or group.suffix in ours
    )
    return FlavorContents(
        groups=tuple(g for g in groups if any(g.resources.values())),
        placing=flavors.parse_placing(specs),
        options=flavors.parse_options(specs),
        is_isolated=specs.get(POLICY) == ISOLATE,
        cells=_cells(specs),
    )


def _only_ours(group: flavors.RequestGroup) -> flavors.RequestGroup:
    return dataclasses.replace(
        group,
        resources={n: a for n, a in group.resources.items() if _is_ours(n)},
        required=frozenset(filter(_is_ours, group.required)),
        forbidden=frozenset(filter(_is_ours, group.forbidden)),
    )


def _cells(specs: Mapping[str, str]) -> int | None:
    """Return how many NUMA nodes the guest gets, None if it is not said.

    The keys are those of nova/virt/hardware.py, numa_get_constraints.
    """
    said = str(specs.get("hw:numa_nodes", ""))
    if said.isdecimal() and int(said):
        return int(said)
    return None


def pins(specs: Mapping[str, str]) -> frozenset[str]:
    """Return the traits of the devices that a flavor names."""
    return frozenset(
        found["name"]
        for found in map(_KEY.fullmatch, specs)
        if found and found["name"].startswith(names.PIN_PREFIX)
    )


def wants(asked: FlavorContents) -> tuple[tuple[str, DeviceRequest], ...]:
    """Return groups as they were wished for, each name with its want.

    Groups that differ in nothing but their numbers are one.
    """
    found: dict[tuple[str, str], DeviceRequest] = {}
    for group in asked.groups:
        word = group.suffix.removeprefix("_").rstrip("0123456789")
        want = DeviceRequest(
            resources=group.resources,
            required=group.required,
            bitstream=group.bitstream,
        )
        key = word, repr((sorted(group.resources.items()), *_told(want)))
        if key in found:
            want = dataclasses.replace(want, count=found[key].count + 1)
        found[key] = want
    return tuple((word, want) for (word, _), want in found.items())


def _told(want: DeviceRequest) -> tuple[object, ...]:
    return sorted(want.required), want.bitstream
