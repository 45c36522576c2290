# SPDX-License-Identifier: Apache-2.0
"""Flavors for Nova's own vGPUs, and what replaces their extra specs.

Such a flavor requests ``VGPU`` and no profile: on a host of Nova's own
support, the type that the host's card has. Each line of the option
``native_flavors`` names extra specs of such flavors, and those of this
library that take their place.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from nova_accel import errors
from nova_accel.config.lines import json_line
from nova_accel.model import flavors, names

OPTION = "[nova_accel] native_flavors"
# Nova's API stores the devices of an alias with each server, and its claim
# on the host asks for them: no request filter can replace them.
PCI_ALIAS = "pci_passthrough:alias"
# Name of a device profile of Cyborg; Nova's API reads its groups.
DEVICE_PROFILE = "accel:device_profile"
_OF_CATALOG = (PCI_ALIAS, DEVICE_PROFILE)
_KEYS = ("replace", "by", "when")
EXAMPLE = (
    '{"replace": {"resources:VGPU": "1"}, "by": {"resources_GPU:VGPU": "1",'
    ' "resources_GPU:CUSTOM_GPU_MEMORY_MB": "4096",'
    ' "trait_GPU:CUSTOM_VGPU_NVIDIA_T4_4Q": "required"}}'
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """One line: ``replace`` becomes ``by`` where a flavor has ``when``, too.

    All three are extra specs by their keys.
    """

    replace: Mapping[str, str]
    by: Mapping[str, str]
    when: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def apply(self, specs: Mapping[str, str]) -> dict[str, str] | None:
        """Return a flavor's extra specs after it, None if it has others."""
        required = {**self.replace, **self.when}
        if not required.items() <= specs.items():
            return None
        others = {k: v for k, v in specs.items() if k not in self.replace}
        return {**others, **self.by}

    def invert(self) -> "Replacement":
        """Return the line that undoes this one."""
        return Replacement(replace=self.by, by=self.replace, when=self.when)


def apply(
    replacements: Iterable[Replacement], specs: Mapping[str, str]
) -> dict[str, str] | None:
    """Return extra specs after the first line that applies, None if none."""
    results = (each.apply(specs) for each in replacements)
    return next((each for each in results if each is not None), None)


def parse_aliases(specs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of a flavor's aliases, each as often as requested.

    :raises ValueError: the value has another form.
    """
    requested: list[str] = []
    for item in filter(None, specs.get(PCI_ALIAS, "").split(",")):
        name, _, count = item.strip().rpartition(":")
        requested += [name.strip()] * int(count)
    return tuple(requested)


def is_native(group: flavors.RequestGroup) -> bool:
    """Return whether a group requests a vGPU of Nova's own support.

    A group of this library requires the trait of a profile, too.
    """
    return bool(group.resources.get(names.GPU_CLASS)) and may_be_native(group)


def may_be_native(group: flavors.RequestGroup) -> bool:
    """Return whether a group is native, or is of a class of an operator's.

    Nova's ``[mdev_TYPE] mdev_class`` names such classes.
    """
    return any(
        amount and (name == names.GPU_CLASS or name.startswith(names.CUSTOM))
        for name, amount in group.resources.items()
    ) and not any(
        trait.startswith(names.PROFILE_PREFIXES) for trait in group.required
    )


def parse_lines(lines: Iterable[str]) -> tuple[Replacement, ...]:
    """Return the replacements of the option's lines, in their order.

    :raises ConfigurationError: a line has another form, or its result
        requests no profile. The error quotes the line.
    """
    replacements = []
    for line in lines:
        replacement = _parse(line)
        for key in _OF_CATALOG:
            if key in replacement.replace:
                raise _refusal(
                    line,
                    f"{key} can't be replaced in requests; convert its"
                    " flavors by `openstack accel flavor convert`",
                )
        replacements.append(replacement)
    return tuple(replacements)


def parse_catalog_lines(lines: Iterable[str]) -> tuple[Replacement, ...]:
    """Return the same, of lines that may replace what Nova's API reads.

    An alias of ``[pci]``, or a device profile of Cyborg.

    :raises ConfigurationError: as ``parse_lines``.
    """
    return tuple(map(_parse, lines))


def _parse(line: str) -> Replacement:
    fields = json_line.parse(OPTION, line, _KEYS, EXAMPLE)
    specs = {key: _parse_specs(line, fields, key) for key in _KEYS}
    replacement = Replacement(
        replace=specs["replace"], by=specs["by"], when=specs["when"]
    )
    groups = flavors.parse_groups(replacement.by)
    if not groups or any(map(is_native, groups)):
        raise _refusal(
            line,
            f"by must request a profile with its trait: {EXAMPLE}",
        )
    replaced = flavors.parse_groups(replacement.replace)
    is_of_catalog = not replacement.replace.keys().isdisjoint(_OF_CATALOG)
    if not is_of_catalog and not any(map(may_be_native, replaced)):
        raise _refusal(
            line,
            f"replace must request {names.GPU_CLASS}, or the class of an"
            " mdev type, without a profile; change other flavors by"
            " `openstack accel flavor set`",
        )
    return replacement


def _parse_specs(
    line: str, fields: Mapping[str, object], key: str
) -> dict[str, str]:
    specs = fields.get(key, {})
    if not isinstance(specs, dict) or not all(
        isinstance(value, str) for value in specs.values()
    ):
        raise _refusal(
            line, f"{key} must be an object of extra specs: {EXAMPLE}"
        )
    return dict(specs)


def _refusal(line: str, hint: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(OPTION, line, hint)
