# SPDX-License-Identifier: Apache-2.0
"""Operations on servers that packages register.

An operation is an entry point of the group ``nova_accel.operations``: a class
that takes an ``OperationContext``. Hot attach is one. The overrides of Nova's
driver call the registered operations, and know none by name.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from nova_accel.config import extensions
from virt_hooks import error_guards
from virt_hooks.guest import libvirt_guest
from virt_hooks.operations import cold_migration, server_partitions

GROUP = "nova_accel.operations"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext:
    """Objects of one nova-compute that an operation may use.

    ``virtapi`` is ``nova.compute.manager.ComputeVirtAPI``.
    ``build_metadata`` returns the device metadata of a server, by a request
    context and the server. ``state_dir`` is the directory of notes.
    """

    partitions: server_partitions.ServerPartitions
    virtapi: Any
    moves: cold_migration.ColdMigration
    layouts: libvirt_guest.GuestLayouts
    build_metadata: Callable[[Any, Any], Any]
    state_dir: str


class ExtraOperation(Protocol):
    """Operation on servers, beside those of Nova's driver."""

    def start(self, host: str) -> None:
        """Accept requests, once the claims of this host are restored."""

    def stop(self) -> None:
        """Accept no more requests, and wait until the accepted ones end."""

    def recover_at_start(self) -> None:
        """Complete or undo what a killed service left, in the first pass."""

    def recover(self) -> None:
        """Complete or undo interrupted operations, in each periodic task."""

    def carried(
        self, context: Any, instance: Any
    ) -> contextlib.AbstractContextManager[None]:
        """Return the context in which an evacuated server is spawned."""


class ExtraOperations:
    """The registered operations; each is called, though another one fails."""

    def __init__(self, context: OperationContext) -> None:
        """Construct the operations of the installed packages.

        :raises ConfigurationError: one can't be loaded.
        """
        self.by_name: Mapping[str, ExtraOperation] = {
            name: build(context)
            for name, build in extensions.load(GROUP).items()
        }

    def start(self, host: str) -> None:
        """Accept requests."""
        for name, operation in self.by_name.items():
            with error_guards.log_errors("can't start operation %s", name):
                operation.start(host)

    def stop(self) -> None:
        """Accept no more requests."""
        for name, operation in self.by_name.items():
            with error_guards.log_errors("can't stop operation %s", name):
                operation.stop()

    def recover_at_start(self) -> None:
        """Complete or undo what a killed service left."""
        for name, operation in self.by_name.items():
            with error_guards.log_errors("can't recover operation %s", name):
                operation.recover_at_start()

    def recover(self) -> None:
        """Complete or undo interrupted operations."""
        for name, operation in self.by_name.items():
            with error_guards.log_errors("can't recover operation %s", name):
                operation.recover()

    @contextlib.contextmanager
    def carried(self, context: Any, instance: Any) -> Iterator[None]:
        """Spawn an evacuated server in the block."""
        with contextlib.ExitStack() as stack:
            for operation in self.by_name.values():
                stack.enter_context(operation.carried(context, instance))
            yield
