# SPDX-License-Identifier: Apache-2.0
"""Operations on servers that packages register.

An operation is an entry point of the group ``nova_accel.operations``: a class
that takes an ``OperationContext``. Hot attach is one. Live migration, which is
one of Nova, is a class that takes a ``MoveContext``. The overrides of Nova's
driver call the registered operations, and know none by name.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from nova import exception

from nova_accel.config import conf, extensions
from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.guest import libvirt_guest
from virt_hooks.instance import instance_request
from virt_hooks.operations import cold_migration, server_partitions

GROUP = "nova_accel.operations"
# Classes that take an ``OperationContext``, whose ``build`` is as the driver's
# ``_build_device_metadata``.
_METADATA_GROUP = "nova_accel.guest_metadata"
MOVES_GROUP = "nova_accel.live_moves"


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
        self.by_name: Mapping[str, ExtraOperation] = extensions.build(
            GROUP, context
        )

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


def load_metadata(context: OperationContext) -> list[Callable[..., Any]]:
    """Return the builders of the metadata that guests read.

    :raises ConfigurationError: one can't be loaded.
    """
    builders = extensions.build(_METADATA_GROUP, context).values()
    return [builder.build for builder in builders]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MoveContext:
    """Objects of one nova-compute; ``virtapi`` has Placement's client."""

    partitions: server_partitions.ServerPartitions
    virtapi: Any
    settings: conf.Settings
    layouts: libvirt_guest.GuestLayouts


class LiveMoves:
    """Live migrations of a host that refuses servers with accelerators.

    The methods have the arguments of the overrides.
    """

    def check_destination(self, stock: Stock, instance: Any) -> Any:
        """Add this host and its offers to the stock result.

        :raises nova.exception.MigrationPreCheckError: it can't arrive here.
        """
        if instance_request.has_accelerator_slots(instance.resources):
            raise exception.MigrationPreCheckError(
                reason="the entry point of nova-accel's live migration is"
                " missing there: install nova-accel again"
            )
        return stock()

    def check_source(
        self, stock: Stock, instance: Any, dest_check_data: Any
    ) -> Any:
        """Check both hosts, and add the partitions to the stock result.

        :raises nova.exception.MigrationPreCheckError: it can't leave.
        """
        return self.check_destination(stock, instance)

    def check_arrival(self, stock: Stock, *_: Any, **__: Any) -> Any:
        """Check the slots claimed here against the server's partitions."""
        return stock()

    def claim_migrate_data(self, stock: Stock, *_: Any, **__: Any) -> Any:
        """Complete the data of the migration after Nova's claim."""
        return stock()

    def pre_live_migration(self, stock: Stock, *_: Any, **__: Any) -> Any:
        """Make the partitions before the stock method."""
        return stock()

    def change_devices(self, guest: Any, migrate_data: Any) -> Any:
        """Return the guest with the devices that it has there."""
        return guest

    def release(self, stock: Stock, *_: Any, **__: Any) -> Any:
        """Release the server's partitions after the stock method."""
        return stock()

    def post_at_destination(self, stock: Stock, *_: Any, **__: Any) -> Any:
        """Reconcile Placement after the stock method."""
        return stock()
