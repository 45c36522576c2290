# SPDX-License-Identifier: Apache-2.0
"""Adoption of this host's servers, as a package registers it.

The entry point of the group ``nova_accel.adoptions`` is a class that takes an
``AdoptionContext``. It is loaded only while ``state_dir`` has a plan.
"""

import abc
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova_accel.config import extensions
from nova_accel.host.state import state_dir
from virt_hooks.report import server_allocations
from virt_hooks.spawn import lifecycle

GROUP = "nova_accel.adoptions"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionContext:
    """Objects of one nova-compute; ``host`` is Nova's libvirt host."""

    accel: lifecycle.Lifecycle
    allocations: server_allocations.ServerAllocations
    host: Any
    directory: str


class HostAdoption(abc.ABC):
    """Adoption of a host that has a plan."""

    @property
    @abc.abstractmethod
    def is_adopting(self) -> bool:
        """Return whether servers are still to be adopted."""

    @property
    @abc.abstractmethod
    def is_undoing(self) -> bool:
        """Return whether the servers go back to Nova's own driver."""

    @abc.abstractmethod
    def prepare(
        self, nodes: Mapping[str, str], list_functions: Callable[[], str]
    ) -> None:
        """Write slots and flavors, before claims are restored.

        :param nodes: names of this host's compute nodes by uuid.
        :param list_functions: returns the PCI functions of the host, in the
            JSON of Nova's driver.
        :raises ConfigurationError: the plan does not hold, and the service
            must not start.
        """

    @abc.abstractmethod
    def reshape(self, nova_tree: Any, node: str, allocations: Any) -> None:
        """Move allocations between providers, or note that it is done.

        :param nova_tree: Nova's tree, with our providers; it is changed, as
            ``allocations`` are.
        :param allocations: by consumer; None if Nova has not read them.
        :raises nova.exception.ReshapeNeeded: Nova has to read them.
        :raises nova.exception.ReshapeFailed: the plan does not hold.
        """

    @abc.abstractmethod
    def exclude_mdevs(self, uuids: Iterable[str]) -> list[str]:
        """Return the mdevs of a former domain that were not adopted.

        On a VF an adopted mdev gets another uuid when it is made again.
        """

    @abc.abstractmethod
    def run_pass(self) -> None:
        """Read the progress, and do what remains; without Nova's locks.

        :raises ServiceError: Placement can't be read.
        """


def load(context: AdoptionContext) -> HostAdoption | None:
    """Return the adoption of the installed package, None without a plan.

    :raises ConfigurationError: it can't be loaded, or its plan not read.
    """
    if os.path.lexists(os.path.join(context.directory, state_dir.ADOPTION)):
        return extensions.build_one(GROUP, context, None)
    return None
