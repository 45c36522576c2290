# SPDX-License-Identifier: Apache-2.0
"""Extra specs of flavors with PCI aliases of Nova's, and of profiles.

``pci_passthrough:alias`` has names of ``[pci] alias`` with counts, such as
``gpu:2,nic:1``. Nova gives each function by itself, so that each partition
has a request group of its own.
"""

import collections
import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from nova_accel.config.lines import native_flavors as lines
from nova_accel.inventory.adoption import profile_requests
from nova_accel.model import flavors

_POLICY = "group_policy"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NovaFunction:
    """Function that ``[pci] device_spec`` names.

    ``kind`` is Nova's device type. ``resource_class`` is the tag of the
    line, empty without one. ``is_network`` is True where the line has a
    ``physical_network``, ``line_count`` the number of lines that name it.
    """

    address: str
    vendor_id: str
    product_id: str
    kind: str
    resource_class: str = ""
    is_network: bool = False
    line_count: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """One line of ``[pci] alias``; empty fields match any function."""

    name: str
    vendor_id: str = ""
    product_id: str = ""
    kind: str = ""
    resource_class: str = ""

    def matches(self, function: NovaFunction) -> bool:
        """Return whether Nova may give a function by the alias."""
        return (
            self.vendor_id in ("", function.vendor_id)
            and self.product_id in ("", function.product_id)
            and self.kind in ("", function.kind)
            and (
                not self.resource_class
                or _normalize(self.resource_class)
                == _normalize(function.resource_class)
            )
        )


def build(names: Iterable[str]) -> dict[str, str]:
    """Return the extra spec that requests some aliases."""
    specs: dict[str, str] = {}
    _set_aliases(specs, collections.Counter(names))
    return specs


def assign(
    requested: Sequence[str],
    functions: Iterable[NovaFunction],
    aliases: Iterable[Alias],
) -> dict[str, str]:
    """Return the alias of each function, by address.

    :param requested: names of aliases, each as often as requested.
    :raises ValueError: a function was requested by none.
    """
    by_name: dict[str, list[Alias]] = collections.defaultdict(list)
    for alias in aliases:
        by_name[alias.name].append(alias)
    holders: dict[int, NovaFunction] = {}

    def find_place(function: NovaFunction, tried: set[int]) -> bool:
        for place, name in enumerate(requested):
            if place in tried or not any(
                alias.matches(function) for alias in by_name[name]
            ):
                continue
            tried.add(place)
            if place not in holders or find_place(holders[place], tried):
                holders[place] = function
                return True
        return False

    for function in functions:
        if not find_place(function, set()):
            raise ValueError(
                f"no alias of it, with a line of [pci] alias on this host,"
                f" is for {function.address} of {function.vendor_id}:"
                f"{function.product_id}; it has"
                f" {', '.join(requested) or 'none'}"
            )
    return {f.address: requested[place] for place, f in holders.items()}


def rewrite(
    specs: Mapping[str, str],
    used: Iterable[str],
    profiles: Iterable[profile_requests.ProfileRequest],
) -> dict[str, str]:
    """Return extra specs that request profiles in place of aliases.

    :param used: names of the replaced aliases, as often as they are.
    :raises ValueError: the aliases have another form.
    """
    rewritten = dict(specs)
    remaining = collections.Counter(lines.parse_aliases(specs))
    remaining.subtract(collections.Counter(used))
    _set_aliases(rewritten, +remaining)
    for profile in profiles:
        suffix = profile_requests.find_suffix(rewritten, profile.charges)
        for name, amount in profile.charges.items():
            rewritten[f"resources{suffix}:{name}"] = str(amount)
        rewritten[f"trait{suffix}:{profile.trait}"] = "required"
    if _count_groups(rewritten) > 1:
        # Placement refuses several groups without it.
        rewritten.setdefault(_POLICY, "none")
    return rewritten


def restore(
    specs: Mapping[str, str], names: Mapping[str, str]
) -> dict[str, str]:
    """Return extra specs that request aliases in place of profiles.

    :param names: names of aliases by the trait of a profile.
    :raises ValueError: the aliases have another form.
    """
    requested = collections.Counter(lines.parse_aliases(specs))
    replaced: set[str] = set()
    for group in flavors.parse_groups(specs):
        traits = group.required & names.keys()
        if traits and group.suffix:
            replaced.add(group.suffix)
            requested[names[min(traits)]] += 1
    restored = {
        key: value
        for key, value in specs.items()
        if not _is_of_group(key, replaced)
    }
    _set_aliases(restored, requested)
    if replaced and _count_groups(restored) <= 1:
        restored.pop(_POLICY, None)
    return restored


def _set_aliases(specs: dict[str, str], requested: Mapping[str, int]) -> None:
    value = ",".join(f"{name}:{count}" for name, count in requested.items())
    if value:
        specs[lines.PCI_ALIAS] = value
    else:
        specs.pop(lines.PCI_ALIAS, None)


def _count_groups(specs: Mapping[str, str]) -> int:
    return sum(bool(g.suffix) for g in flavors.parse_groups(specs))


def _is_of_group(key: str, suffixes: Collection[str]) -> bool:
    kind = key.partition(":")[0]
    return any(
        kind in (f"resources{suffix}", f"trait{suffix}") for suffix in suffixes
    )


def _normalize(resource_class: str) -> str:
    """Return a class in one spelling, as Nova normalizes those of lines."""
    name = re.sub(r"[^A-Z0-9]+", "_", resource_class.upper())
    return name.removeprefix("CUSTOM_")
