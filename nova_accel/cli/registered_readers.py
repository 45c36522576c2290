# SPDX-License-Identifier: Apache-2.0
"""Readers of domains and of drained devices, which packages register.

Commands and the doctor use them; nova-compute reads its own libvirt.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from nova_accel import errors
from nova_accel.config import extensions
from nova_accel.model import domains

# Functions that return the ``domains.Domain`` of a hypervisor. They take
# its URI, None for this host's, and raise DomainsError.
DOMAINS_GROUP = "nova_accel.domains"


# Classes of ``DrainReader``. They take the files of nova.conf, and raise
# ConfigurationError.
DRAINS_GROUP = "nova_accel.drains"

_HINT = "install what it needs on this host: for libvirt, nova-accel[compute]"


class DrainReader(Protocol):
    """Reader of drained devices in Placement."""

    def explain_wait(self, root: str, addresses: Collection[str]) -> str:
        """Return why devices may still get a server, "" if they can't.

        :param root: uuid of the compute node's provider.
        :raises ServiceError: Placement can't be read.
        """
        ...


def read_domains(uri: str | None = None) -> tuple[domains.Domain, ...]:
    """Return the domains of all installed sources.

    :param uri: libvirt connection URI; None for this host's default.
    :raises ConfigurationError: no source is installed, or one of them can't
        be loaded.
    :raises DomainsError: one of them fails. An incomplete result would let
        used devices seem unused.
    """
    all_domains: list[domains.Domain] = []
    for read in _load_all(DOMAINS_GROUP):
        all_domains += read(uri)
    return tuple(all_domains)


def open_drains(config_files: Sequence[str]) -> DrainReader:
    """Return the installed reader of drained devices.

    :raises ConfigurationError: none is installed, it can't be loaded, or
        the files have no credentials.
    """
    reader: DrainReader = _load_all(DRAINS_GROUP)[0](config_files)
    return reader


def _load_all(group: str) -> list[Callable[..., Any]]:
    """Return the functions that packages have registered.

    :raises ConfigurationError: there is none, or one can't be loaded.
    """
    if registered := extensions.load(group, _HINT):
        return [*registered.values()]
    raise errors.ConfigurationError(
        group, "", "no package has it; reinstall nova-accel", extensions.PLACE
    )
