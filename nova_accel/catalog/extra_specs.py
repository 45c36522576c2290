# SPDX-License-Identifier: Apache-2.0
"""Table of all ``accelerator:`` extra specs.

Nova's validators (filters.extra_specs) and the reference page are generated
from it. The keys and values are those that ``flavors`` parses. The table is
``data/extra_specs.json``.
"""

import dataclasses
import re
from collections.abc import Mapping

from nova_accel.catalog import loader
from nova_accel.model import flavors, json_codec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExtraSpec:
    """One extra spec of the namespace, with its values and their effect.

    ``choices`` has each allowed value and its meaning; where it is empty,
    ``form`` is the regular expression of the whole value, and
    ``form_in_words`` describes it. ``default`` is the value of a flavor
    without the key, empty for none; ``default_in_words`` is its effect. A
    key with ``has_suffix`` can be followed by the suffix of a request
    group, and is of that group then.
    """

    key: str
    meaning: str
    example: str
    since: str
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    form: str = ""
    form_in_words: str = ""
    default: str = ""
    default_in_words: str = ""
    has_suffix: bool = False

    @property
    def name(self) -> str:
        """Return the key with its namespace: ``accelerator:rom``.

        ``[SUFFIX]`` is the suffix of a request group.
        """
        suffix = "[SUFFIX]" if self.has_suffix else ""
        return f"{flavors.NAMESPACE}{self.key}{suffix}"

    @property
    def allowed(self) -> str:
        """Return the allowed values as text: ``on, off``."""
        return ", ".join(self.choices) or self.form_in_words

    def is_named(self, name: str) -> bool:
        """Return whether a flavor's key is of this extra spec."""
        suffix = f"({flavors.SUFFIX})?" if self.has_suffix else ""
        pattern = re.escape(f"{flavors.NAMESPACE}{self.key}") + suffix
        return re.fullmatch(pattern, name) is not None

    def accepts(self, value: str) -> bool:
        """Return whether Nova's API stores a value; case matters.

        Flavors that were written before microversion 2.86 were not
        checked: ``flavors`` reads their values in any case.
        """
        if self.choices:
            return value in self.choices
        return re.fullmatch(self.form, value) is not None


def find(name: str) -> ExtraSpec | None:
    """Return the extra spec of a flavor's key, or None."""
    return next((spec for spec in TABLE if spec.is_named(name)), None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _SpecsFile:
    """Content of the data file, in the order of the reference page."""

    specs: tuple[ExtraSpec, ...]


_FILE: _SpecsFile = json_codec.decode(
    _SpecsFile, json_codec.loads(loader.text("extra_specs.json"))
)
TABLE: tuple[ExtraSpec, ...] = _FILE.specs
