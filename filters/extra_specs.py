# SPDX-License-Identifier: Apache-2.0
"""Validators of ``accelerator:`` extra specs, as Nova's API loads them.

Nova loads them by the entry point group ``nova.api.extra_spec_validators``
and calls them when extra specs are written with microversion 2.86 or later.
Conflicts between several keys, such as ramfb without a display, are detected
when the flavor is used.
"""

from typing import Any

from nova import exception
from nova.api.validation.extra_specs import base

from nova_accel.catalog import extra_specs
from nova_accel.model import flavors

# Both patterns match the empty string: the suffix has the pattern of Nova's
# own validators of "resources{group}", and the key is all after the colon.
_SUFFIX = {"name": "suffix", "pattern": f"({flavors.SUFFIX})?"}
_ANY_KEY = {"name": "key", "pattern": ".*"}


class Validator(base.ExtraSpecValidator):
    """Validator whose error messages name the key.

    Nova's own message for a wrong value does not name the key, and that for
    a wrong key not the existing keys.
    """

    def validate(self, name: str, value: str) -> None:
        """Check a pair of key and value.

        :raises nova.exception.ValidationError: there is no such key, or
            its value is not allowed. The message lists the allowed ones;
            Nova's API returns it with HTTP 400.
        """
        spec = extra_specs.find(name)
        if spec is None:
            allowed = ", ".join(spec.name for spec in extra_specs.TABLE)
            raise exception.ValidationError(
                f"Validation failed; there is no extra spec '{name}'."
                f" Allowed are: {allowed}."
            )
        if not spec.accepts(value):
            raise exception.ValidationError(
                f"Validation failed; '{value}' is not a value of the extra"
                f" spec '{name}'. Allowed are: {spec.allowed}."
            )


def register() -> list[Any]:
    """Return a validator of each extra spec, and one of any other key.

    Nova calls the first one whose key matches, so the latter is the last.
    """
    other = Validator(
        name=f"{flavors.NAMESPACE}{{key}}",
        description="Unknown extra spec: refused with a list of all keys.",
        value={"type": str},
        parameters=[_ANY_KEY],
    )
    return [*map(_build_validator, extra_specs.TABLE), other]


def _build_validator(spec: extra_specs.ExtraSpec) -> Validator:
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
