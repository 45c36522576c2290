# SPDX-License-Identifier: Apache-2.0
"""SSH to the lab's compute hosts, as Tempest's plugins log in to them.

One sshd on this computer listens on an address for each host, at port 22: no
other one may listen on all addresses. Commands find programs of their host
first: virsh of its libvirt, ls of its /sys, and what stops and starts its
nova-compute.
"""

import contextlib
import dataclasses
import os
import pathlib
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence

from tests.e2e.support.site import Site
from tests.lab.cloud.hosts import Host
from tests.lab.cloud.processes import run, tcp_answers
from tests.lab.vm import serve

_SSHD = "/usr/sbin/sshd"
_NAME = "sshd"
_CONFIGURATION = """
HostKey {place}/host_key
PidFile none
AuthorizedKeysFile {place}/key.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
"""
_ADDRESS = "ListenAddress {address}\n"
_MATCH = "Match LocalAddress {address}\n    ForceCommand {command}\n"


@dataclasses.dataclass(frozen=True, slots=True)
class ComputeSsh:
    """The server; ``overlay`` is given to each nova-compute that starts."""

    lab: Site
    hosts: Sequence[Host]
    overlays: Mapping[int, pathlib.Path]

    @property
    def key(self) -> pathlib.Path:
        """Return the file of the private key of all hosts' root."""
        return self._place / "key"

    @property
    def _place(self) -> pathlib.Path:
        return self.lab.layout.run / "ssh"

    @staticmethod
    def address(host: Host) -> str:
        """Return the address of a host."""
        return f"127.0.2.{host.number + 1}"

    @staticmethod
    def command(action: str) -> str:
        """Return the command that stops or starts nova-compute."""
        return f"lab-compute {action}"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the server."""
        place = self._place
        place.mkdir(exist_ok=True)
        for name in ("key", "host_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f"]
            if not (place / name).exists():
                assert run([*words, str(place / name)]).returncode == 0
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        text = _CONFIGURATION.format(place=place)
        addresses = [self.address(host) for host in self.hosts]
        text += "".join(_ADDRESS.format(address=each) for each in addresses)
        for host, address in zip(self.hosts, addresses, strict=True):
            command = self._write_programs(host)
            text += _MATCH.format(address=address, command=command)
        configuration = place / "sshd_config"
        configuration.write_text(text)
        processes = self.lab.cloud.processes
        argv = [_SSHD, "-D", "-e", "-f", str(configuration)]
        server = processes.spawn(_NAME, argv)
        try:
            for address in addresses:
                processes.wait(_NAME, tcp_answers(22, address), server)
            yield
        finally:
            processes.stop(_NAME)

    def _write_programs(self, host: Host) -> pathlib.Path:
        """Write the programs of a host; return what runs its commands."""
        place = self._place / host.node
        place.mkdir(exist_ok=True)
        layout = self.lab.layout
        prefix = shlex.join(serve.exec_prefix(layout.lab, host.number))
        overlay = self.overlays[host.number]
        service = shlex.join(
            [
                *(sys.executable, "-m", f"{__package__}.compute_service"),
                *(str(host.number), str(overlay)),
            ]
        )
        programs = {
            "sudo": 'exec "$@"',
            "virsh": f'exec /usr/bin/virsh -c {host.libvirt_uri} "$@"',
            "ls": f'exec {prefix} /bin/ls "$@"',
            "lab-compute": f'exec {service} "$@"',
            "run-command": (
                f"export PATH={place}:{os.environ['PATH']}"
                f" PYTHONPATH={layout.repo} NOVA_ACCEL_LAB={layout.lab}\n"
                'exec sh -c "$SSH_ORIGINAL_COMMAND"'
            ),
        }
        for name, text in programs.items():
            path = place / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        return place / "run-command"
