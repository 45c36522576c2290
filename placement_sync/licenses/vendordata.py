# SPDX-License-Identifier: Apache-2.0
"""Vendordata of servers: the licence token, for those with NVIDIA vGPUs.

Placement decides: the server's allocations must have a vGPU of a provider
with NVIDIA's trait. Nova's requests contain no flavor, so that the series is
read from Nova's API, and only if a token of a series exists.
"""

import dataclasses
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.catalog import mdev_names
from nova_accel.model import flavors, names
from placement_sync.client import nova_api, provider_records, rest
from placement_sync.licenses import guest_script, tokens

_NVIDIA_PREFIX = f"{names.DEVICE_PREFIX}10DE_"


class RefusedError(errors.AcceleratorError):
    """A request must get no token.

    :param reason: why.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class LicenseService:
    """Decides which server gets which token. Thread-safe.

    ``compute`` is None without credentials for Nova's API; then tokens of
    series can't be used.
    """

    store: tokens.TokenStore
    placement: rest.RestClient
    compute: rest.RestClient | None = None

    def find_token(self, server: str, project: str) -> tokens.Token | None:
        """Return the token of a server, None without an NVIDIA vGPU.

        :param project: as Nova names it; Placement's record counts.
        :raises RefusedError: the server is of another project.
        :raises AcceleratorError: a service or a token can't be read.
        """
        amounts, owner, _ = provider_records.fetch_consumer(
            self.placement.fetch, provider_records.check_uuid(server)
        )
        cards = [
            provider
            for provider, units in amounts.items()
            if units.get(names.GPU_CLASS)
        ]
        if not any(map(self._is_nvidia, cards)):
            return None
        if owner.get("project_id") != project:
            raise RefusedError(f"server {server} is not of project {project}")
        return self.store.find(project, self._list_series(server))

    def build_reply(self, token: tokens.Token | None) -> str:
        """Return the text for cloud-init, empty without a token."""
        return guest_script.build_script(token) if token else ""

    def _is_nvidia(self, provider: str) -> bool:
        stored = provider_records.fetch_traits(self.placement.fetch, provider)
        traits = stored[1] if stored else frozenset()
        return any(trait.startswith(_NVIDIA_PREFIX) for trait in traits)

    def _list_series(self, server: str) -> tuple[str, ...]:
        if not set(self.store.list_names()) & set(mdev_names.SERIES):
            return ()
        if self.compute is None:
            raise errors.ConfigurationError(
                "[nova]",
                "(no credentials)",
                "a token of a series needs the flavors of servers; set"
                " credentials for Nova's API",
            )
        # Not by name: a user may name a server like another one's uuid.
        record = nova_api.find_server(self.compute, server)
        if record is None or record.flavor is None:
            return ()
        return tuple(_list_flavor_series(record.flavor))


def _list_flavor_series(flavor: nova_api.ServerFlavor) -> Iterator[str]:
    for group in flavors.parse_groups(flavor.extra_specs):
        for trait in sorted(group.required):
            if trait.startswith(names.NVIDIA_VGPU_PREFIX):
                name = mdev_names.name_from_trait(trait)
                yield mdev_names.parse_series(name)
