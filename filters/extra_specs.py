# SPDX-License-Identifier: Apache-2.0
"""Validators of ``accelerator:`` extra specs, as Nova's API loads them.

Nova finds them by the entry point group ``nova.api.extra_spec_validators``
and asks them whenever extra specs are written with microversion 2.86 or
later. What one key alone can't tell, such as ramfb without a display, is
told when the flavor is read.
"""

from typing import Any

from nova import exception
from nova.api.validation.extra_specs import base

from nova_accel.model import extra_specs, flavors

# Each allows the empty one: a group suffix is what Nova's own validators of
# "resources{group}" take for one, and a key is all behind the colon.
_SUFFIX = {"name": "suffix", "pattern": f"({flavors.SUFFIX})?"}
_ANY_KEY = {"name": "key", "pattern": ".*"}


class Validator(base.ExtraSpecValidator):
    """Nova's validator, with texts that name the key.

    Nova's own text of a wrong value leaves the key out, and that of a
    wrong key the keys that there are.
    """

    def validate(self, name: str, value: str) -> None:
        """Let a pair of key and value pass.

        :raises nova.exception.ValidationError: there is no such key, or
            the value is none of its own. The text has what is allowed,
            and becomes the 400 of Nova's API.
        """
        spec = extra_specs.find(name)
        if spec is None:
            known = ", ".join(one.name for one in extra_specs.TABLE)
            raise exception.ValidationError(
                f"Validation failed; there is no extra spec '{name}'."
                f" Allowed are: {known}."
            )
        if not spec.accepts(value):
            raise exception.ValidationError(
                f"Validation failed; '{value}' is not a value of the extra"
                f" spec '{name}'. Allowed are: {spec.allowed}."
            )


def register() -> list[Any]:
    """Return the validators: one of each extra spec, and one of the rest.

    Nova takes the first whose key matches, so the rest comes last.
    """
    rest = Validator(
        name=f"{flavors.NAMESPACE}{{key}}",
        description="No extra spec: refused, with a list of those known.",
        value={"type": str},
        parameters=[_ANY_KEY],
    )
    return [*map(_validator, extra_specs.TABLE), rest]


def _validator(spec: extra_specs.ExtraSpec) -> Validator:
    value: dict[str, Any] = {"type": str, "description": spec.allowed}
    if spec.choices:
        value["enum"] = list(spec.choices)
    else:
        value["pattern"] = spec.form
    suffix = "{suffix}" if spec.has_suffix else ""
    return Validator(
        name=f"{flavors.NAMESPACE}{spec.key}{suffix}",
        description=spec.meaning,
        value=value,
        parameters=[_SUFFIX] if spec.has_suffix else [],
    )
