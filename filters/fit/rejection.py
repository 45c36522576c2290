# SPDX-License-Identifier: Apache-2.0
"""Reason why the filter rejects an allocation candidate."""

import dataclasses
from collections.abc import Mapping

from nova_accel.model import providers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A cause, and the providers that it is about.

    ``separator`` is between the providers' labels in the text.
    """

    providers: tuple[providers.Provider, ...]
    cause: str
    separator: str = ", "

    def is_about(self, uuid: str) -> bool:
        """Return whether a provider is among those of the rejection."""
        return any(provider.uuid == uuid for provider in self.providers)

    def with_names(self, names: Mapping[str, str]) -> "Rejection":
        """Return the rejection with some providers' names, by uuid."""
        return dataclasses.replace(
            self,
            providers=tuple(
                dataclasses.replace(p, name=names.get(p.uuid, p.name))
                for p in self.providers
            ),
        )

    def __str__(self) -> str:
        """Return labels and cause: ``host_accel_a: missing on its host``."""
        labels = self.separator.join(p.label for p in self.providers)
        return f"{labels}: {self.cause}"
