# SPDX-License-Identifier: Apache-2.0
"""Host access of a Lifecycle: libvirt, notes, claims file, service lock."""

import dataclasses
from collections.abc import Callable

from nova_accel.host.state.claims_file import ClaimsFile
from nova_accel.host.state.faults import FaultNotes
from nova_accel.host.state.service_lock import ServiceLock
from nova_accel.host.sysfs import host_reader
from nova_accel.host.sysfs.udev import UeventLog
from virt_hooks.guest import connection
from virt_hooks.spawn.programs import Programs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostAccess:
    """Readers and stores of one compute node; each may be missing.

    :ivar domains: reads which host devices the host's domains have.
    :ivar watched: the same for passes, whose answer may be older; by default
        ``domains``.
    :ivar read_host: returns a fresh reader of the host; without it cards
        stay in the mode they are in.
    :ivar faults: notes on devices at fault and on unclean functions, in
        memory by default.
    :ivar programs: bitstreams that are loaded for servers.
    :ivar claims_file: publishes the claims to other processes.
    :ivar service_lock: held by the only nova-compute of the host.
    :ivar uevents: the functions that uevents name since the last reading.
    """

    domains: connection.HostdevReader = connection.NO_DOMAINS
    watched: connection.HostdevReader | None = None
    read_host: Callable[[], host_reader.HostReader] | None = None
    faults: FaultNotes = dataclasses.field(default_factory=FaultNotes)
    programs: Programs = dataclasses.field(default_factory=Programs)
    claims_file: ClaimsFile | None = None
    service_lock: ServiceLock | None = None
    uevents: UeventLog = dataclasses.field(default_factory=UeventLog)
