# SPDX-License-Identifier: Apache-2.0
"""Choices of a flavor with ``accelerator:profiles``, in order of preference.

The flavor's request groups are those of the first profile of the list, so
that all that does not know the extra spec sees this one.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from nova_accel import errors
from nova_accel.catalog import vgpu_types
from nova_accel.model import flavors, names

KEY = f"{flavors.NAMESPACE}{flavors.PROFILES}"
# Begins an item for all models, in the order of the catalog.
_ANY_MODEL = "*-"
# Each choice of a model that the cloud has may cost a query of Placement. An
# item for all models has up to 36 of the catalog.
_MOST_CHOICES = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A profile, and the extra specs of a flavor that requests only it.

    ``traits`` are those of the profile and of the flavor's other groups.
    """

    name: str
    specs: Mapping[str, str]

    @property
    def traits(self) -> frozenset[str]:
        return frozenset().union(
            *(group.required for group in flavors.parse_groups(self.specs))
        )


def list_choices(
    specs: Mapping[str, str], catalog: vgpu_types.Catalog
) -> tuple[Choice, ...]:
    """Return the choices of a flavor, none without the extra spec.

    :raises MalformedError: the list has an unknown profile or too many, or
        no group of the flavor requires the first one.
    """
    value = specs.get(KEY)
    if value is None:
        return ()
    types = list(dict.fromkeys(_list_types(value, catalog)))
    first = types[0]
    groups = [
        group
        for group in flavors.parse_groups(specs)
        if first.trait in group.required
        and group.resources.get(names.GPU_CLASS)
    ]
    if not groups or len(types) > _MOST_CHOICES:
        raise _refusal(
            value,
            f"at most {_MOST_CHOICES} profiles, of which a group of the flavor"
            " requests the first; see `openstack accel flavor set"
            " --or-profile`",
        )
    plain = {key: text for key, text in specs.items() if key != KEY}
    packing = flavors.parse_selection_policy(specs).packing
    is_exclusive = packing is flavors.Packing.EXCLUSIVE
    return tuple(
        Choice(
            name=each.name,
            specs=_remove(plain, groups, first, catalog)
            | _request(
                groups, each.trait, catalog.charges(each, is_exclusive)
            ),
        )
        for each in types
    )


def _list_types(
    value: str, catalog: vgpu_types.Catalog
) -> Iterator[vgpu_types.CatalogVgpuType]:
    for index, item in enumerate(value.split(",")):
        name = item.strip()
        if name.startswith(_ANY_MODEL) and index:
            keys = [gpu.key for gpu in catalog.gpus()]
            listed = [name.replace("*", key, 1) for key in keys]
        else:
            listed = [name]
        types = [each for each in map(catalog.find, listed) if each]
        if not types:
            raise _refusal(
                value,
                f"vGPU types of NVIDIA's catalog, which has no {name!r}; after"
                " the first also *-SIZE for all models",
            )
        yield from types


def _remove(
    specs: Mapping[str, str],
    groups: list[flavors.RequestGroup],
    vgpu_type: vgpu_types.CatalogVgpuType,
    catalog: vgpu_types.Catalog,
) -> dict[str, str]:
    """Return extra specs without the requests for a type."""
    removed = {
        key
        for group in groups
        for key in (
            f"trait{group.suffix}:{vgpu_type.trait}",
            *(
                f"resources{group.suffix}:{name}"
                for name in catalog.charges(vgpu_type)
            ),
        )
    }
    return {key: text for key, text in specs.items() if key not in removed}


def _request(
    groups: list[flavors.RequestGroup],
    trait: str,
    charges: Mapping[str, int],
) -> dict[str, str]:
    """Return the extra specs of groups that request a type."""
    added = {}
    for group in groups:
        count = group.resources[names.GPU_CLASS]
        added[f"trait{group.suffix}:{trait}"] = "required"
        for name, amount in charges.items():
            added[f"resources{group.suffix}:{name}"] = str(amount * count)
    return added


def _refusal(value: str, expected: str) -> errors.MalformedError:
    return errors.MalformedError(f"flavor extra spec {KEY}", value, expected)
