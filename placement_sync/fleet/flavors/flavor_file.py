# SPDX-License-Identifier: Apache-2.0
"""Flavors in a file, as commands and Nova's API print them in JSON.

The formats, one object or a list of them:

- ``openstack flavor show`` and ``openstack flavor list --long``, and Nova's
  ``flavors/detail``: names, sizes and extra specs;
- ``flavor show`` of this project: groups and settings, without sizes;
- ``profile list`` of this project: a profile for each flavor, without names
  and sizes.

Keys are read in any case, with spaces as "_".
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from nova_accel import errors
from nova_accel.cli import command_manager
from nova_accel.model import flavors, json_codec
from placement_sync.fleet.flavors import flavor_specs

_WRAPPERS = ("flavors", "profiles", "flavor")
_SPECS = ("properties", "extra_specs")
_PUBLIC = ("os-flavor-access:is_public", "is_public")
_EPHEMERAL = ("os-flv-ext-data:ephemeral", "ephemeral")
_MAX_QUOTED = 80
_EXPECTED = (
    "JSON of `openstack flavor list --long`, of `flavor show` or of `profile"
    " list`"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorEntry:
    """Flavor of a file.

    ``profile`` is the profile that it requests, empty if ``specs``, all of
    its extra specs, have the request. ``name`` is empty if only the profile
    is known. Sizes that the file does not have are None.
    """

    name: str = ""
    specs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    profile: str = ""
    vcpus: int | None = None
    ram_mb: int | None = None
    disk_gb: int | None = None
    has_other_disks: bool = False
    is_public: bool = True

    @property
    def sizes(self) -> tuple[int | None, int | None, int | None]:
        """Return CPUs, memory in MB and root disk in GB."""
        return self.vcpus, self.ram_mb, self.disk_gb


def parse(text: str) -> tuple[FlavorEntry, ...]:
    """Return the flavors of a file, in its order.

    :raises MalformedError: it has another format.
    :raises UsageError: it is no JSON, or has a name twice.
    """
    try:
        content = json_codec.loads(text)
    except ValueError as error:
        raise command_manager.UsageError(
            f"the file of flavors is no JSON: {error}; expected {_EXPECTED}"
        ) from error
    entries = tuple(map(_parse_entry, _list_objects(content)))
    names = collections.Counter(e.name for e in entries if e.name)
    for name, count in names.items():
        if count > 1:
            raise command_manager.UsageError(
                f"the file has two flavors of the name {name!r}; remove or"
                " rename one of them"
            )
    return entries


def _list_objects(content: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list, of a list in an object, or the object.

    :raises MalformedError: there is none.
    """
    if isinstance(content, dict):
        inner = [content[k] for k in _WRAPPERS if k in content]
        # `flavor show` of the release before has an object of id and name.
        if inner and "groups" not in content:
            content = inner[0]
    objects = content if isinstance(content, list) else [content]
    for each in objects:
        if not isinstance(each, dict):
            raise errors.MalformedError(
                "flavor", json_codec.quote(each), _EXPECTED
            )
        yield {
            str(key).lower().replace(" ", "_"): value
            for key, value in each.items()
        }


def _parse_entry(fields: Mapping[str, Any]) -> FlavorEntry:
    if "profile" in fields or "charges" in fields:
        name = fields.get("profile", fields.get("name"))
        return FlavorEntry(profile=_parse_text("profile", name))
    name, inner = fields.get("name"), fields.get("flavor")
    if not name and isinstance(inner, dict):
        name = inner.get("name")
    return FlavorEntry(
        name=_parse_text("name", name),
        specs=dict(
            _build_specs(fields)
            if "groups" in fields
            else _parse_specs(_find(fields, _SPECS) or {})
        ),
        vcpus=_parse_size("vcpus", fields.get("vcpus")),
        ram_mb=_parse_size("ram", fields.get("ram")),
        disk_gb=_parse_size("disk", fields.get("disk")),
        has_other_disks=bool(_find(fields, _EPHEMERAL) or fields.get("swap")),
        is_public=_find(fields, _PUBLIC) is not False,
    )


def _find(fields: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((fields[key] for key in keys if key in fields), None)


def _parse_text(kind: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise errors.MalformedError(
            f"{kind} of a flavor", json_codec.quote(value), "text"
        )
    return value


def _parse_size(kind: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise errors.MalformedError(
            f"{kind} of a flavor",
            json_codec.quote(value),
            "a number, 0 or more",
        )
    return value


def _parse_specs(value: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        raise errors.MalformedError(
            "set of extra specs",
            json_codec.quote(value),
            "an object of keys and values",
        )
    for key, text in value.items():
        yield key, _parse_value(text)


def _parse_value(value: Any) -> str:
    """Return a value of an extra spec: Nova has texts of 255 characters."""
    if isinstance(value, dict | list) or value is None:
        raise errors.MalformedError(
            "value of an extra spec", json_codec.quote(value), "a text"
        )
    return str(value)


def _build_specs(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the extra specs of the groups and settings of `flavor show`.

    :raises MalformedError: a group or a setting has another form.
    """
    try:
        for group in fields["groups"]:
            suffix = str(group["suffix"])
            for name, amount in group["resources"].items():
                yield f"resources{suffix}:{name}", str(amount)
            for kind in ("required", "forbidden"):
                for trait in group[kind]:
                    yield f"trait{suffix}:{trait}", kind
            if group["bitstream"]:
                key = f"{flavors.NAMESPACE}{flavors.BITSTREAM}{suffix}"
                yield key, str(group["bitstream"])
        for name, setting in fields["settings"].items():
            if not setting["is_default"]:
                yield f"{flavors.NAMESPACE}{name}", str(setting["value"])
        if fields.get("group_policy"):
            yield flavor_specs.POLICY, str(fields["group_policy"])
    except (AttributeError, KeyError, TypeError) as error:
        raise errors.MalformedError(
            "flavor with groups and settings",
            str(fields.get("name"))[:_MAX_QUOTED],
            _EXPECTED,
        ) from error


def plan(
    old: Mapping[str, str], specs: Mapping[str, str]
) -> flavor_specs.SpecsChange:
    """Return the change by which a flavor gets the extra specs of a file.

    All of its accelerators are replaced; its other extra specs stay, unless
    the file has another value.
    """
    retained = {
        key: value
        for key, value in old.items()
        if not flavor_specs.is_accelerator_key(key, old)
    }
    after = {**retained, **specs}
    return flavor_specs.SpecsChange(
        specs=after,
        added={k: v for k, v in after.items() if old.get(k) != v},
        removed=tuple(sorted(old.keys() - after.keys())),
    )
