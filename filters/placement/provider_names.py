# SPDX-License-Identifier: Apache-2.0
"""Names of providers, which allocation candidates do not have."""

import logging
from collections.abc import Iterable

from nova_accel import errors
from nova_accel.config import logs
from nova_accel.model import names
from placement_sync.client import provider_records
from placement_sync.client.provider_records import Get

LOG = logging.getLogger(__name__)
# Names that are kept: those of 6,000 hosts with eight cards each.
_MAX_NAMES = 50_000


class ProviderNames:
    """Names of this library's providers; thread-safe.

    A provider keeps its name until its host is renamed; the address in it
    never changes, so names do not expire.

    :param get: sends queries to Placement.
    """

    def __init__(self, get: Get) -> None:
        self._get = get
        self._names: dict[str, str] = {}

    def find(self, uuids: Iterable[str], tree: str = "") -> dict[str, str]:
        """Return the known names of providers, in at most one query.

        :param tree: uuid of a provider of the only tree to list.
        """
        uuids = tuple(uuids)
        if not all(uuid in self._names for uuid in uuids):
            try:
                listed = provider_records.list_with_trait(
                    self._get, names.OWNER_TRAIT, tree
                )
            except errors.ServiceError as error:
                logs.warning(LOG, "Could not read names of cards: %s", error)
                listed = []
            if len(self._names) > _MAX_NAMES:
                self._names = {}
            self._names.update({p.uuid: p.name for p in listed})
        names_ = self._names
        return {uuid: names_[uuid] for uuid in uuids if uuid in names_}
