# SPDX-License-Identifier: Apache-2.0
"""Providers of Placement's allocation candidates, parsed when needed."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from nova_accel.model import names, providers
from placement_sync.client import provider_records


class ProviderSummaries(Mapping[str, providers.Provider]):
    """Providers by uuid, without names, generations and reserved units.

    Only read by the thread of its request.

    :param summaries: ``provider_summaries`` of allocation candidates.
    """

    def __init__(self, summaries: Mapping[str, Any]) -> None:
        self._summaries = summaries
        self._parsed: dict[str, providers.Provider] = {}

    def __getitem__(self, uuid: str) -> providers.Provider:
        provider = self._parsed.get(uuid)
        if provider is None:
            provider = provider_records.parse_answer(
                "GET",
                "/allocation_candidates",
                self._summaries[uuid],
                functools.partial(provider_records.parse_summary, uuid),
            )
            self._parsed[uuid] = provider
        return provider

    def __iter__(self) -> Iterator[str]:
        return iter(self._summaries)

    def __len__(self) -> int:
        return len(self._summaries)

    def __contains__(self, uuid: object) -> bool:
        return uuid in self._summaries

    def list_accelerators(self) -> dict[str, dict[str, providers.Provider]]:
        """Return the shapes of accelerators, by compute node and uuid.

        Malformed ones are left out.
        """
        by_host: dict[str, dict[str, providers.Provider]] = {}
        for uuid, summary in self._summaries.items():
            try:
                if names.OWNER_TRAIT in summary["traits"]:
                    shape = provider_records.parse_shape(summary)
                    root = summary["root_provider_uuid"]
                    by_host.setdefault(root, {})[uuid] = shape
            except provider_records.MALFORMED:
                continue
        return by_host
