# SPDX-License-Identifier: Apache-2.0
"""Findings of the conformance suite."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that a driver breaks.

    ``check`` names the rule, ``where`` the device, file or plan, and
    ``reason`` says what is wrong and what would be right.
    """

    check: str
    where: str
    reason: str

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.check}: {self.where}: {self.reason}"
