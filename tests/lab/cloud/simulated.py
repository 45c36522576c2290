# SPDX-License-Identifier: Apache-2.0
"""Compute hosts beside the lab's own that run nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.cloud import settings
from tests.lab.cloud.cloud import COMPUTE_READY, Cloud


def configuration(cloud: Cloud, name: str) -> Path:
    """Return the path of a simulated host's nova.conf."""
    return cloud.layout.etc / f"{_process(name)}.conf"


def state_dir(cloud: Cloud, name: str) -> Path:
    """Return a simulated host's [nova_accel] state_dir."""
    return settings.simulated_state(cloud.layout, name) / "accel"


def start(cloud: Cloud, hosts: Mapping[str, Sequence[str]]) -> None:
    """Start a nova-compute for each host; return when Nova knows them.

    :param hosts: their names, and the ``device_spec`` of each.
    :raises LabError: one did not start.
    """
    processes = cloud.processes
    waiting = []
    for name, device_spec in hosts.items():
        conf = configuration(cloud, name)
        conf.write_text(
            settings.simulated_compute(cloud.layout, name, device_spec)
        )
        state_dir(cloud, name).mkdir(parents=True, exist_ok=True)
        process = _process(name)
        log = processes.log(process)
        seen = log.stat().st_size if log.exists() else 0
        argv = [
            cloud.layout.program("python"),
            str(cloud.layout.inside / "lab_simulated.py"),
            f"--config-file={conf}",
        ]
        probe = processes.says(process, COMPUTE_READY, seen)
        waiting.append((process, probe, processes.spawn(process, argv)))
    for waited in waiting:
        processes.wait(*waited)
    cloud.map_hosts()


def stop(cloud: Cloud, names: Sequence[str]) -> None:
    """End the hosts' nova-compute; what Nova knows of them stays."""
    cloud.processes.stop(*map(_process, names))


def _process(name: str) -> str:
    return f"nova-compute-{name}"
