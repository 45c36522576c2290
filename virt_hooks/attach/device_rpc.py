# SPDX-License-Identifier: Apache-2.0
"""RPC endpoint of nova-compute for the devices of its host.

Callers name a device by the uuid of its resource provider, as Placement
shows it. A uuid that is none of this host's is refused, so no text of a
request gets into a path.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import oslo_messaging
from nova import exception

from nova_accel import errors
from nova_accel.config import extensions, library_version, logs
from nova_accel.discovery import device_marks
from nova_accel.host.state import notes
from nova_accel.inventory import conditions
from nova_accel.model import names, providers, rpc_names
from virt_hooks.attach import rpc_policy
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)

# Characters of a reason, and of an author (Keystone's limit of a name); notes
# and listings have one line of them.
_MAX_REASON = _MAX_AUTHOR = 255
# Readers of accelerators that are not offered. They take reader, drivers and
# rules of a host, and are loaded when a caller asks.
UNOFFERED_GROUP = "nova_accel.unoffered_readers"
# More accelerators than a host has that offers none of them.
_MAX_UNOFFERED = 512


class DeviceEndpoint:
    """Methods about devices that nova-compute offers over RPC.

    Each returns a dict with the result, or with the reason of a refusal. The
    result has a row for each device: ``provider``, ``address`` and, after a
    heal, the ``fault`` that the host still shows, empty without one. A row
    of ``list_drains`` has ``reason``, ``author`` and ``when`` instead, one of
    ``list_unoffered`` the keys of ``nova-accel inspect`` and no provider. The
    one row of ``show_version`` has ``version``.
    """

    target = oslo_messaging.Target(
        namespace=rpc_names.NAMESPACE, version=rpc_names.FAULTS_VERSION
    )

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        marks: device_marks.DeviceMarks,
        wake: Callable[[], None],
    ) -> None:
        """:param wake: requests a pass, which publishes the change."""
        self._accel, self._marks, self._wake = accel, marks, wake
        # Several requests at the same time read the host one by one.
        self._reading_lock = threading.Lock()

    def list_drains(
        self, context: Any, deadline: str | None = None
    ) -> dict[str, Any]:
        """Return a row for each note on a drained device; see ``drain``.

        A card and each of its regions can have notes of their own.
        """
        return self._answer(
            context, "show", deadline, self._list_drains, is_change=False
        )

    def list_faults(
        self, context: Any, deadline: str | None = None
    ) -> dict[str, Any]:
        """Return a row for each device that is set aside, with its fault.

        They are those of the last reading of the host.
        """
        return self._answer(
            context, "show", deadline, self._list_faults, is_change=False
        )

    def list_unoffered(
        self, context: Any, deadline: str | None = None
    ) -> dict[str, Any]:
        """Return a row for each accelerator that is not offered.

        The host is read for it, as ``nova-accel inspect`` reads it; no lock
        of a card or of Nova is held meanwhile.
        """
        return self._answer(
            context,
            "show",
            deadline,
            lambda: self._list_unoffered(deadline),
            is_change=False,
        )

    def show_version(
        self, context: Any, deadline: str | None = None
    ) -> dict[str, Any]:
        """Return the version of nova-accel in this process; see ``drain``."""
        return self._answer(
            context, "show", deadline, _list_versions, is_change=False
        )

    def drain(
        self,
        context: Any,
        devices: Sequence[str],
        reason: str,
        author: str = "",
        deadline: str | None = None,
    ) -> dict[str, Any]:
        """Drain devices: they take no new server from now on.

        :param devices: uuids of their providers.
        :param author: unused, of callers of an earlier release. The stored
            author is the user of the context.
        :param deadline: see nova_accel.model.rpc_names.
        """
        del author
        return self._answer(
            context,
            "drain",
            deadline,
            lambda: self._drain(devices, reason, _find_author(context)),
        )

    def undrain(
        self,
        context: Any,
        devices: Sequence[str],
        deadline: str | None = None,
    ) -> dict[str, Any]:
        """Offer drained devices again; see ``drain``.

        The result has the devices that were drained.
        """
        return self._answer(
            context, "undrain", deadline, lambda: self._undrain(devices)
        )

    def heal(
        self,
        context: Any,
        devices: Sequence[str],
        deadline: str | None = None,
    ) -> dict[str, Any]:
        """Offer devices again that were set aside; see ``drain``.

        The result has the devices that were set aside.
        """
        return self._answer(
            context, "heal", deadline, lambda: self._heal(devices)
        )

    def _answer(
        self,
        context: Any,
        action: str,
        deadline: str | None,
        call: Callable[[], list[dict[str, Any]]],
        is_change: bool = True,
    ) -> dict[str, Any]:
        """Return the result of a call, or the reason of its refusal.

        :param is_change: request a pass, which publishes the change.
        """
        try:
            rpc_policy.check_deadline(deadline)
            rpc_policy.authorize(context, rpc_policy.DEVICE, action, {})
            result = call()
        except (errors.AcceleratorError, exception.NovaException) as error:
            logs.warning(LOG, "%s of devices is refused: %s", action, error)
            return {rpc_names.REFUSED: str(error)}
        if is_change:
            self._wake()
        return {rpc_names.RESULT: result}

    @property
    def _root(self) -> providers.ProviderRoot:
        """Return the compute node.

        :raises MalformedError: it is not known yet.
        """
        if self._accel.root is None:
            raise errors.MalformedError(
                "compute node in Placement", "", "one that is registered"
            )
        return self._accel.root

    def _list_faults(self) -> list[dict[str, Any]]:
        root = self._root
        return [
            _build_row(
                names.provider_uuid(root.uuid, device.address),
                device.address,
                device.fault,
            )
            for device in self._accel.host.state.devices
            if device.fault
        ]

    def _list_unoffered(self, deadline: str | None) -> list[dict[str, Any]]:
        rules = self._marks.add_assigned(self._accel.rules)
        with self._reading_lock:
            rpc_policy.check_deadline(deadline)
            rows = [
                item.as_dict()
                for read in extensions.load(UNOFFERED_GROUP).values()
                for item in read(
                    self._accel.host.open_reader(), self._accel.drivers, rules
                )
            ]
        return rows[:_MAX_UNOFFERED]

    def _list_drains(self) -> list[dict[str, str]]:
        root, host = self._root, self._accel.host.state
        rows = []
        for address, drain in sorted(self._marks.read_drains().items()):
            device = conditions.resolve_address(host, address)
            rows.append(
                {
                    "provider": names.provider_uuid(root.uuid, device),
                    "address": device,
                    "reason": drain.reason,
                    "author": drain.author,
                    "when": drain.when,
                }
            )
        return rows

    def _drain(
        self, devices: Sequence[str], reason: str, author: str
    ) -> list[dict[str, str]]:
        line = notes.single_line(reason)
        if not line or len(line) > _MAX_REASON:
            raise errors.MalformedError(
                "reason", line, f"1 to {_MAX_REASON} characters"
            )
        by_uuid = self._find_addresses(devices)
        self._marks.drain(by_uuid.values(), line, author)
        return [_build_row(*item) for item in by_uuid.items()]

    def _undrain(self, devices: Sequence[str]) -> list[dict[str, str]]:
        by_uuid = self._find_addresses(devices)
        undrained = self._marks.undrain(by_uuid.values())
        return [
            _build_row(uuid, address)
            for uuid, address in by_uuid.items()
            if address in undrained
        ]

    def _heal(self, devices: Sequence[str]) -> list[dict[str, str]]:
        by_uuid = self._find_addresses(devices)
        healed = self._marks.heal(
            self._accel.host.state, frozenset(by_uuid.values())
        )
        return [
            _build_row(uuid, address, healed[address])
            for uuid, address in by_uuid.items()
            if address in healed
        ]

    def _find_addresses(self, devices: Sequence[str]) -> dict[str, str]:
        """Return addresses of devices by the uuids of their providers.

        :raises MalformedError: a uuid is of no device of this host.
        """
        root = self._accel.root
        addresses = self._marks.list_addresses(self._accel.host.state)
        by_uuid = {
            names.provider_uuid(root.uuid, address): address
            for address in addresses
            if root is not None
        }
        unknown = [uuid for uuid in devices if uuid not in by_uuid]
        if unknown:
            raise errors.MalformedError(
                "provider of a device that the host has now",
                ", ".join(map(str, unknown)),
                "one that `nova-accel inspect` prints there; for a missing"
                " device use `nova-accel drain --force` on the host",
            )
        return {uuid: by_uuid[uuid] for uuid in devices}


def _find_author(context: Any) -> str:
    """Return the name of a context's user, else the id; "" for a service."""
    name = getattr(context, "user_name", None) or context.user_id or ""
    return notes.single_line(str(name))[:_MAX_AUTHOR]


def _list_versions() -> list[dict[str, str]]:
    return [{"version": library_version.read()}]


def _build_row(uuid: str, address: str, fault: str = "") -> dict[str, str]:
    return {"provider": uuid, "address": address, "fault": fault}
