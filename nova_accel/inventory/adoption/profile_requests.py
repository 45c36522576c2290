# SPDX-License-Identifier: Apache-2.0
"""Extra specs of flavors for Nova's own vGPUs, rewritten to profiles.

A group without a suffix may get its classes from several providers, and
the memory of a vGPU must be of its own card: its vGPUs move to a group with
a suffix, together with the traits that Nova's provider has.
"""

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Mapping

from nova_accel.inventory.adoption import records
from nova_accel.model import flavors

_RESOURCE = re.compile(rf"resources(?P<suffix>{flavors.SUFFIX})?:(?P<name>.+)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """Request of the profile that a unit of a native class is."""

    trait: str
    charges: records.Amounts


def count_classes(
    specs: Mapping[str, str], classes: Collection[str]
) -> dict[str, int]:
    """Return the units of native classes that extra specs request.

    :raises ValueError: an amount is no number.
    """
    units: dict[str, int] = {}
    for key, value in specs.items():
        match = _RESOURCE.fullmatch(key)
        if match is not None and match["name"] in classes:
            units[match["name"]] = units.get(match["name"], 0) + int(value)
    return units


def rewrite(
    specs: Mapping[str, str],
    profiles: Mapping[str, ProfileRequest],
    native_traits: Collection[str] = (),
) -> dict[str, str]:
    """Return extra specs that request profiles in place of native classes.

    :param profiles: by native class.
    :param native_traits: those of Nova's providers.
    :raises ValueError: an amount is no number.
    """
    rewritten = dict(specs)
    moved: list[str] = []
    for key, value in specs.items():
        match = _RESOURCE.fullmatch(key)
        if match is None or match["name"] not in profiles:
            continue
        del rewritten[key]
        profile = profiles[match["name"]]
        suffix = match["suffix"] or find_suffix(rewritten, profile.charges)
        if not match["suffix"]:
            moved.append(suffix)
        for name, amount in profile.charges.items():
            rewritten[f"resources{suffix}:{name}"] = str(amount * int(value))
        rewritten[f"trait{suffix}:{profile.trait}"] = "required"
    if moved:
        _move_traits(rewritten, native_traits, moved[0])
    return rewritten


def find_suffix(specs: Iterable[str], classes: Iterable[str]) -> str:
    """Return the suffix of a new group."""
    base = f"_{flavors.group_name(classes)}"
    used = {
        match["suffix"]
        for key in specs
        if (match := _RESOURCE.fullmatch(key)) is not None
    }
    others = (f"{base}{number}" for number in itertools.count(2))
    return next(s for s in itertools.chain((base,), others) if s not in used)


def _move_traits(
    specs: dict[str, str], traits: Collection[str], suffix: str
) -> None:
    for trait in sorted(traits):
        if specs.get(f"trait:{trait}") == "required":
            del specs[f"trait:{trait}"]
            specs[f"trait{suffix}:{trait}"] = "required"
