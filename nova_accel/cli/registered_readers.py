# SPDX-License-Identifier: Apache-2.0
"""Readers of domains and of drained devices, which packages register.

Commands and the doctor use them; nova-compute reads its own libvirt.
"""

import importlib.metadata
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from nova_accel import errors
from nova_accel.model import domains

# Functions that return the ``domains.Domain`` of a hypervisor. They take
# its URI, None for this host's, and raise DomainsError.
DOMAINS_GROUP = "nova_accel.domains"


# Classes of ``DrainReader``. They take the files of nova.conf, and raise
# ConfigurationError.
DRAINS_GROUP = "nova_accel.drains"


ReadDomains = Callable[[str | None], Iterable[domains.Domain]]


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
    :raises DomainsError: no source is installed, or one of them fails. An
        incomplete result would let used devices seem unused.
    """
    points = importlib.metadata.entry_points(group=DOMAINS_GROUP)
    if not points:
        raise errors.DomainsError(
            "this host", f"nothing is installed in {DOMAINS_GROUP}"
        )
    all_domains: list[domains.Domain] = []
    for point in sorted(points, key=lambda point: point.name):
        try:
            read: ReadDomains = point.load()
        except (ImportError, AttributeError) as error:
            raise errors.DomainsError(
                point.name,
                f"{point.value} can't be loaded ({error}); install what it"
                " needs on this host: for libvirt, nova-accel[compute]",
            ) from error
        all_domains += read(uri)
    return tuple(all_domains)


def open_drains(config_files: Sequence[str]) -> DrainReader:
    """Return the installed reader of drained devices.

    :raises ConfigurationError: none is installed, it can't be loaded, or
        the files have no credentials.
    """
    for point in importlib.metadata.entry_points(group=DRAINS_GROUP):
        try:
            open_reader: Callable[[Sequence[str]], DrainReader] = point.load()
        except (ImportError, AttributeError) as error:
            raise errors.ConfigurationError(
                f"entry point {DRAINS_GROUP}",
                point.value,
                f"can't be loaded ({error}); install what it needs",
            ) from error
        return open_reader(config_files)
    raise errors.ConfigurationError(
        f"entry point {DRAINS_GROUP}", "", "is missing; reinstall nova-accel"
    )
