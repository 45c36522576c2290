# SPDX-License-Identifier: Apache-2.0
"""What a flavor asks for, read from its extra specs."""

import dataclasses
import re
from collections.abc import Mapping

# Nova's own key patterns (nova/scheduler/utils.py,
# ResourceRequest.XS_KEYPAT): an optional suffix of up to 64 characters
# behind "resources" or "trait" names the request group.
_KEY = re.compile(
    r"(?P<kind>resources|trait)(?P<suffix>[a-zA-Z0-9_-]{1,64})?:(?P<name>.+)"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroup:
    """One request group: what a single provider has to give.

    ``suffix`` is empty for the group without one, whose resources may come
    from several providers.
    """

    suffix: str
    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Return the group in words: ``VGPU 1 with CUSTOM_VGPU_X``."""
        amounts = ", ".join(
            f"{name} {amount}" for name, amount in self.resources.items()
        )
        traits = sorted(self.required) + [
            f"not {trait}" for trait in sorted(self.forbidden)
        ]
        return f"{amounts} with {', '.join(traits)}" if traits else amounts


def parse_groups(extra_specs: Mapping[str, str]) -> tuple[RequestGroup, ...]:
    """Return a flavor's request groups, sorted by suffix.

    Values that Nova itself would refuse are left out: its API has checked
    them, and its scheduler logs them.
    """
    resources: dict[str, dict[str, int]] = {}
    traits: dict[str, dict[str, str]] = {}
    for key, value in extra_specs.items():
        found = _KEY.fullmatch(key)
        if found is None:
            continue
        suffix = found["suffix"] or ""
        if found["kind"] == "trait":
            traits.setdefault(suffix, {})[found["name"]] = value
        elif (amount := _amount(value)) is not None:
            resources.setdefault(suffix, {})[found["name"]] = amount
    return tuple(
        RequestGroup(
            suffix=suffix,
            resources=resources.get(suffix, {}),
            required=_named(traits.get(suffix, {}), "required"),
            forbidden=_named(traits.get(suffix, {}), "forbidden"),
        )
        for suffix in sorted(resources.keys() | traits.keys())
    )


def _amount(text: str) -> int | None:
    """Return what Nova takes for an amount, None for what it leaves out."""
    try:
        amount = int(text)
    except ValueError:
        return None
    return amount if amount >= 0 else None


def _named(traits: Mapping[str, str], value: str) -> frozenset[str]:
    return frozenset(name for name, said in traits.items() if said == value)
