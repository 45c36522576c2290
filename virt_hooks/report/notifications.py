# SPDX-License-Identifier: Apache-2.0
"""Notifications of attachments and of devices, on Nova's notifier.

They are unversioned, as Ceilometer reads them: with ``[notifications]
notification_format = versioned`` Nova's notifier sends none.

A notification that can't be sent is logged; it fails nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import rpc

from nova_accel import model
from virt_hooks import error_guards
from virt_hooks.spawn import lifecycle

# Events of a mark that a device gets and loses.
_EVENTS = {"fault": ("faulted", "healed"), "drain": ("drained", "undrained")}

# Event type and payload.
DeviceEvent = tuple[str, Mapping[str, Any]]
# Marks of a device: the reasons by name, empty without the mark.
_Marks = Mapping[str, str]


def build_device(
    host: str,
    device: model.Device,
    reason: str,
    claims: tuple[model.Claim, ...],
) -> dict[str, Any]:
    """Return the payload of a device.

    :param reason: of the mark that it got or lost.
    :param claims: of the servers of the host.
    """
    return {
        "host": host,
        "device": device.address,
        "vendor": device.vendor,
        "model": device.model,
        "reason": reason,
        "instance_uuids": sorted(
            {c.consumer for c in claims if c.device == device.address}
        ),
    }


def send(
    context: Any,
    event: str,
    payload: Mapping[str, Any],
    is_error: bool = False,
) -> None:
    """Send a notification; log an error."""
    # rpc.get_notifier() warns of each event that is not Nova's own.
    notifier = rpc.LEGACY_NOTIFIER
    if notifier is None:  # before nova-compute has set up its bus
        return
    with error_guards.log_errors("can't send notification %s", event):
        sender = notifier.prepare(
            publisher_id=f"compute.{nova.conf.CONF.host}"
        )
        priority = sender.error if is_error else sender.info
        priority(context, event, dict(payload))


def send_events(events: Iterable[DeviceEvent]) -> None:
    """Send events of devices; log errors."""
    for event, payload in events:
        send(nova_context.get_admin_context(), event, payload)


class DeviceEvents:
    """Finds the faults and drains of devices that begin or end."""

    def __init__(self, accel: lifecycle.Lifecycle) -> None:
        """Take the marks of the first reading as they are."""
        self._accel = accel
        #: Marks at the last reading by address, None before the first.
        self._marks: Mapping[str, _Marks] | None = None

    def list_changes(self) -> tuple[DeviceEvent, ...]:
        """Return the events since the last call. Not reentrant.

        A device that is gone or whose marks can't be read keeps those it
        had: unknown is no change.
        """
        host = self._accel.host.state
        before = self._marks
        current = {
            device.address: {mark: getattr(device, mark) for mark in _EVENTS}
            for device in host.devices
            if not device.marks_unknown
        }
        self._marks = {**(before or {}), **current}
        if before is None:
            return ()
        claims = self._accel.claims()
        return tuple(
            (
                f"accelerator.device.{event}",
                build_device(nova.conf.CONF.host, device, reason, claims),
            )
            for device in host.devices
            for event, reason in _list_events(
                before.get(device.address, {}),
                self._marks.get(device.address, {}),
            )
        )


def _list_events(old: _Marks, new: _Marks) -> Iterator[tuple[str, str]]:
    """Yield the events of one device with the reason of the mark."""
    for mark, (begins, ends) in _EVENTS.items():
        reason, last = new.get(mark, ""), old.get(mark, "")
        if bool(reason) != bool(last):
            yield (begins, reason) if reason else (ends, last)
