# SPDX-License-Identifier: Apache-2.0
"""The compute hosts that run guests: a VM each, and its nova-compute.

Both nova-compute run on this machine, and the VMs share one instances
directory: to Nova the hosts have a common file system, as over NFS.
"""

import dataclasses
import os
import shutil
import signal
from pathlib import Path

from tests.lab.cloud import settings
from tests.lab.cloud.cloud import COMPUTE, Cloud
from tests.lab.cloud.installations import Installation
from tests.lab.cloud.options import Options, read_options
from tests.lab.cloud.processes import LabError, is_stopped, run
from tests.lab.vm import errors, layout, machine, serve


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """One of them: the lab's own is number 0.

    ``nova`` is what its nova-compute is started from; None for that of the
    control plane. A further host has PCI functions where they can migrate,
    or with ``has_cards``.
    """

    cloud: Cloud
    number: int
    nova: Installation | None = None
    has_cards: bool = False
    processors: int = 1

    @property
    def name(self) -> str:
        """Return the host's name in Nova."""
        return settings.host_name(self.number)

    @property
    def node(self) -> str:
        """Return the name of its resource provider."""
        return machine.host_name(self.number)

    @property
    def libvirt_uri(self) -> str:
        """Return the URI of its libvirt."""
        return layout.libvirt_uri(self.number)

    def start(self, overlay: Path | None = None) -> None:
        """Start a further host, from nothing, and map it into Nova's cell.

        :param overlay: a further configuration file whose values win.
        :raises LabError: it does not come up.
        """
        place = self.cloud.layout
        # Nova refuses the identity of a host that was ended before.
        shutil.rmtree(place.state / self.name, ignore_errors=True)
        self.switch_on(is_disk_kept=False)
        reached = settings.ComputeHost(
            libvirt_uri=self.libvirt_uri,
            virt_type=serve.virt_type(place.lab, self.number),
            migration_address=machine.wire_address(self.number),
        )
        options = read_options(place) or Options()
        if self.nova is not None and self.nova.activation:
            options = dataclasses.replace(
                options, activation=self.nova.activation
            )
        text = settings.further_compute(place, options, reached, self.number)
        (place.etc / f"{self._process}.conf").write_text(text)
        self.start_compute(overlay)
        self.cloud.map_hosts()

    def stop(self) -> None:
        """End a further host; what Nova knows of it stays."""
        self.stop_compute()
        serve.stop(self.cloud.layout.lab, self.number)

    def start_compute(self, overlay: Path | None = None) -> None:
        """Start its nova-compute, anew if it runs; return when it is ready.

        :param overlay: a further configuration file whose values win.
        """
        self.stop_compute()
        prefix = serve.exec_prefix(self.cloud.layout.lab, self.number)
        self.cloud.start_compute(self._process, prefix, overlay, self.nova)

    def stop_compute(self) -> None:
        """End its nova-compute."""
        self.cloud.processes.stop(self._process)

    def freeze_compute(self) -> None:
        """Let its nova-compute run no further, until it is killed."""
        self._signal_compute(signal.SIGSTOP)

    def kill_compute(self) -> None:
        """End its nova-compute in the middle of whatever it does."""
        self._signal_compute(signal.SIGKILL)

    def _signal_compute(self, number: signal.Signals) -> None:
        pid = self.cloud.processes.pid(self._process)
        if pid is None:
            raise LabError(f"{self._process} does not run")
        os.killpg(pid, number)

    def is_compute_alive(self) -> bool:
        """Return whether its nova-compute runs and is not frozen."""
        pid = self.cloud.processes.pid(self._process)
        return pid is not None and not is_stopped(pid)

    def switch_off(self) -> None:
        """Take the power from it; its nova-compute must be ended before."""
        serve.switch_off(self.cloud.layout.lab, self.number)

    def switch_on(self, is_disk_kept: bool = True) -> None:
        """Boot it, with the domains that it had unless the disk is new.

        :raises LabError: it does not come up.
        """
        place = self.cloud.layout
        options = read_options(place) or Options()
        try:
            serve.start(
                place.lab,
                share=place.instances,
                number=self.number,
                is_disk_kept=is_disk_kept,
                has_cards=self.has_cards or options.root != layout.STOCK,
                processors=self.processors,
            )
        except errors.LabVmError as error:
            raise LabError(f"{self.node}: {error}") from error

    def run(self, script: str, *arguments: str) -> str:
        """Run a shell script on its kernel; return the output.

        :raises LabError: it fails.
        """
        argv = ["sh", "-c", script, "sh", *arguments]
        lab = self.cloud.layout.lab
        done = serve.guest_exec(lab, argv, number=self.number)
        if done.returncode:
            raise LabError(f"{self.node}: {script}: {done.stderr}")
        return str(done.stdout)

    def synced(self, *arguments: str) -> str:
        """Run a command where its nova-compute runs; return its output.

        :raises LabError: it fails.
        """
        place = self.cloud.layout
        is_pass = arguments[0] == "run"
        argv = [
            *serve.exec_prefix(place.lab, self.number),
            place.program("placement-sync" if is_pass else "nova-accel"),
            *arguments,
            f"--config-file={place.etc / self._process}.conf",
        ]
        done = run(argv, place.client_environment())
        if done.returncode:
            raise LabError(f"{self.node}: {done.stdout}{done.stderr}")
        return str(done.stdout)

    def mdevs(self) -> dict[str, str]:
        """Return the types of its kernel's mdevs, by their uuids."""
        place = layout.layout_of(self.cloud.layout.lab, self.number)
        bus = place.sysfs / "bus/mdev/devices"
        return {
            path.name: (path / "mdev_type").readlink().name
            for path in bus.iterdir()
        }

    @property
    def _process(self) -> str:
        return f"{COMPUTE}-{self.number + 1}" if self.number else COMPUTE
