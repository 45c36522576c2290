# SPDX-License-Identifier: Apache-2.0
"""The client's end: what a test asks of a simulated host."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from tests.lab.fakehost.technologies.fpga import fpga_tools
from tests.lab.fakehost.technologies.nvidia import nvidia_tool

#: Environment variable that names the socket inside the full namespace.
ENVIRONMENT = "FAKEHOST_CONTROL"
ANSWER_S = 30.0


class FakehostError(Exception):
    """The simulated host refused a command; the text says why."""


def errno_of(name: str | int) -> int:
    """Return the number of ``"ENOSPC"``; raises FakehostError."""
    if isinstance(name, int):
        return name
    number = getattr(errno, name, None)
    if not isinstance(number, int):
        raise FakehostError(f"{name!r} is no errno name (ENOSPC, EIO, ...)")
    return number


class Controller:
    """Talks to one simulated host; safe to make in any process.

    ``root`` is what production code takes as its root: ``root/sys`` is the
    mount, ``root/dev/vfio`` has the group nodes.
    """

    def __init__(self, socket_path: Path, root: Path = Path("/")) -> None:
        self.root = root
        self.sys = root / "sys"
        self.socket = socket_path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_S)
        self._socket.connect(str(socket_path))
        self._file = self._socket.makefile("rb")

    @classmethod
    def from_environment(cls) -> Controller:
        """Return the controller of the namespace we run in.

        Raises FakehostError outside of one.
        """
        path = os.environ.get(ENVIRONMENT)
        if not path:
            raise FakehostError(
                f"{ENVIRONMENT} is not set: run this under "
                "python -m tests.lab.fakehost -- COMMAND"
            )
        return cls(Path(path))

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()

    # -- faults ----------------------------------------------------------

    def fail(
        self,
        path: str,
        code: str | int,
        *,
        on: str = "write",
        times: int | None = None,
    ) -> None:
        """Let ``on`` (open, read, write, list, ioctl) fail with an errno.

        ``path`` is below /sys, links are followed, wildcards are those of
        fnmatch (then on the real path). ``times`` None is for ever.
        """
        self._fault(path, on=on, errno=errno_of(code), times=times)

    def hang(
        self,
        path: str,
        *,
        on: str = "write",
        seconds: float | None = None,
        code: str | int = 0,
        times: int | None = None,
    ) -> None:
        """Let ``on`` hang for ``seconds`` (None: until heal()).

        Then it goes on as usual, or fails with ``code``.
        """
        self._fault(
            path, on=on, hang_s=seconds, errno=errno_of(code), times=times
        )

    def vanish(self, path: str, *, when: str = "", on: str = "read") -> None:
        """Remove ``path``: now, or as soon as ``when`` is used.

        A directory vanishes while it is being read with
        ``vanish(TYPE, when=TYPE, on="list")``: the listing is answered and
        every name in it is gone; with ``when=TYPE/name, on="read"`` the
        read of an open file answers ENODEV.
        """
        if when:
            self._fault(when, on=on, vanish=path, times=1)
        else:
            self._call("vanish", path=path)

    def heal(self, path: str = "") -> int:
        """Take back the faults of ``path`` (or all), release what hangs.

        Returns how many there were. What vanished stays away: reboot().
        """
        number: int = self._call("heal", path=path)
        return number

    # -- state -----------------------------------------------------------

    def mdevs(self) -> dict[str, dict[str, Any]]:
        """Return uuid -> type, parent, group, active, in_use."""
        mdevs: dict[str, dict[str, Any]] = self._call("mdevs")
        return mdevs

    def functions(self) -> dict[str, dict[str, Any]]:
        """Return address -> driver, override, group, in_use, vfs, ..."""
        functions: dict[str, dict[str, Any]] = self._call("functions")
        return functions

    def uevents(self, after: int = 0) -> list[dict[str, Any]]:
        """Return the uevents with a seqnum above ``after``."""
        uevents: list[dict[str, Any]] = self._call("uevents", after=after)
        return uevents

    def writes(self) -> list[dict[str, Any]]:
        """Return the writes (path, data, errno), oldest first."""
        writes: list[dict[str, Any]] = self._call("writes")
        return writes

    def gpus(self) -> dict[str, dict[str, Any]]:
        """Return the state of NVIDIA's cards, by address.

        ``mig``, ``mixed``; ``instances``: id -> kind, start; ``vgpus``: mdev
        or VF -> type, start, instance; ``remaining``: type -> how many more
        fit now; ``could_make``: types of which one more can be, a new
        GPU instance allowed.
        """
        gpus: dict[str, dict[str, Any]] = self._call("gpus")
        return gpus

    def fpgas(self) -> dict[str, dict[str, Any]]:
        """Return FPGA card -> interface, parts (see ``fpga.Part``)."""
        fpgas: dict[str, dict[str, Any]] = self._call("fpgas")
        return fpgas

    def programmings(self) -> list[dict[str, Any]]:
        """Return each attempt to program (see ``fpga.Programming``)."""
        programmings: list[dict[str, Any]] = self._call("programmings")
        return programmings

    def creatable(self) -> dict[str, dict[str, int]]:
        """Return mdev parent -> type -> how many more it would make."""
        counts: dict[str, dict[str, int]] = self._call("creatable")
        return counts

    def reads(self) -> int:
        """Return how many attribute reads were served since boot."""
        number: int = self._call("reads")
        return number

    # -- hardware --------------------------------------------------------

    def unplug(self, address: str) -> None:
        """Take a PCI function (and its VFs) out of the host."""
        self._call("unplug", address=address)

    def die_at_reset(self, address: str, *, is_dying: bool = True) -> None:
        """Let a function read as ones from its next reset on.

        ``is_dying`` False is a card that was switched off and on: it
        answers again, and comes back from resets.
        """
        self._call("die_at_reset", address=address, is_dying=is_dying)

    def plug(self) -> None:
        """Put cards that are gone in again, as they were."""
        self._call("plug")

    def open_port(self, card: str, number: int, *, is_open: bool) -> None:
        """Let some process have a port of an FPGA open, or let go."""
        self._call("open_port", card=card, number=number, is_open=is_open)

    def write_fpga_tool(self, tool: str) -> Path:
        """Install fpgaconf, xrt-smi or xbmgmt below the root."""
        return fpga_tools.write_tool(
            self.root, tool, sys.executable, self.socket
        )

    def set_vfs(self, address: str, number: int) -> None:
        """Set the number of VFs as a vendor's own tool does it."""
        self._call("set_vfs", address=address, number=number)

    def sriov_manage(self, address: str, *, enable: bool) -> None:
        """Enable or disable all VFs of a card as NVIDIA's tool does it."""
        self._call("sriov_manage", address=address, enable=enable)

    def write_sriov_manage(self, path: Path) -> Path:
        """Write an executable that does the same for ``-e|-d ADDRESS``."""
        return nvidia_tool.write_tool(path, sys.executable, self.socket)

    def write_kernel_release(self, release: str) -> None:
        """Write what ``uname -r`` prints on the host."""
        path = self.root / "proc/sys/kernel/osrelease"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{release}\n")

    def nvml(self, call: str, *arguments: int) -> str:
        """Return an answer to the fake NVML: code and fields."""
        text: str = self._call("nvml", call=call, arguments=arguments)
        return text

    def reboot(self) -> None:
        """Forget all devices, faults and logs; find the cards again."""
        self._call("reboot")

    def _fault(self, path: str, on: str, **effect: Any) -> None:
        self._call("fault", path=path, on=on, effect=effect)

    def _call(self, command: str, **arguments: Any) -> Any:
        request = {"command": command, "arguments": arguments}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        line = self._file.readline()
        if not line:
            raise FakehostError("the simulated host is gone")
        answer = json.loads(line)
        if "error" in answer:
            raise FakehostError(answer["error"])
        return answer["result"]
