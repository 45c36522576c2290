# SPDX-License-Identifier: Apache-2.0
"""Builds the Lifecycle of this compute node from nova.conf."""

from collections.abc import Callable, Iterable
from typing import Any

from nova_accel.config import extensions
from nova_accel.discovery import (
    change_detection,
    note_stores,
    service_start,
    snapshot,
)
from nova_accel.host import nvml_gpus
from nova_accel.host.execute import action_executor
from nova_accel.host.state import (
    claims_file,
    drains,
    error_baseline,
    faults,
    service_lock,
)
from nova_accel.host.sysfs import fs, udev
from nova_accel.inventory import health
from virt_hooks.guest import connection
from virt_hooks.spawn import host_access, lifecycle, programs

# Root of this machine's own kernel files. Any other root is a simulated
# kernel: this machine's libvirt and NVML don't know its devices.
_OWN_ROOT = "/"
# Entry points: functions that return a reader of GPUs, by a function that
# lists the GPUs in use and the notes on faults.
_GPU_READERS = "nova_accel.gpu_readers"


def read_node(
    options: Any,
    connect: Callable[[], Any],
    domains: connection.HostdevReader,
    watched: connection.HostdevReader,
) -> lifecycle.Lifecycle:
    """Return the Lifecycle of this host; the host is not read yet.

    :param options: the service's parsed ``oslo_config.cfg.ConfigOpts``.
    :param connect: returns the connection to this host's libvirt.
    :param domains: reads the host devices of this host's domains.
    :param watched: the same for passes.
    :raises ConfigurationError: a setting can't be used.
    """
    settings, drivers = service_start.load(options)
    is_own = settings.root == _OWN_ROOT
    state_dir = settings.state_dir
    faulted = faults.FaultNotes(state_dir)
    programmed = programs.load(
        programs.ProgramContext(
            settings=settings.bitstreams, domains=domains, faults=faulted
        )
    )

    def list_gpus_in_use() -> Iterable[str]:
        return health.list_gpus_in_use(detector.state)

    read_gpus: nvml_gpus.ReadGpus = dict
    if is_own:
        for open_reader in extensions.load(_GPU_READERS).values():
            read_gpus = open_reader(list_gpus_in_use, faulted)
    uevents = udev.UeventLog()
    detector = change_detection.ChangeDetector(
        fs.DiskSource(settings.root),
        drivers,
        settings.rules,
        read_gpus,
        _open_notes(state_dir, faulted),
        uevents,
    )
    host = snapshot.Snapshot(detector)
    executor = action_executor.Executor(
        settings.root,
        nodedev=connection.NodeDevices(connect) if is_own else None,
        read_gpus=read_gpus,
        program_s=settings.bitstreams.seconds,
    )
    access = host_access.HostAccess(
        domains=domains,
        watched=watched,
        read_host=detector.open_reader,
        faults=faulted,
        programs=programmed,
        claims_file=claims_file.ClaimsFile(state_dir),
        service_lock=service_lock.ServiceLock(state_dir),
        uevents=uevents,
    )
    return lifecycle.Lifecycle(drivers, settings.rules, executor, host, access)


def _open_notes(
    state_dir: str, faulted: faults.FaultNotes
) -> note_stores.NoteStores:
    return note_stores.NoteStores(
        faulted=faulted,
        drained=drains.DrainNotes(state_dir),
        baseline=error_baseline.ErrorBaseline(state_dir),
    )
