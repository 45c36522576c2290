# SPDX-License-Identifier: Apache-2.0
"""The QEMU machine: which accelerator, which devices, which command line."""

import dataclasses
import hashlib
import os
import pathlib
import re
import time
from collections.abc import Mapping

from tests.lab.vm import errors, layout, processes, topology

QEMU = "qemu-system-x86_64"

#: guest memory; shared, because virtiofsd maps it
MEMORY_MIB = 3072

#: host identity as libvirt inside reads it (SMBIOS): always the same, but
#: for its last byte, to which the machine's number is added
HOST_UUID = "6c61622d-766d-4e6f-8661-2d6163636500"
MAC = "52:54:00:6c:61:62"
#: the machines with a wire between them, over which guests migrate: its
#: addresses end with a number that begins here
_WIRED = (0, 1)
_WIRE_NETWORK, _WIRE_MAC, _WIRE_FIRST = "10.0.3", "52:54:00:6c:62", 10
#: the network card for the guests' own network
_GUESTS_MAC = "52:54:00:6c:63"
_TUN = pathlib.Path("/dev/net/tun")

#: QEMU 7.2's own virtiofsd (Debian 12)
VIRTIOFSD = pathlib.Path("/usr/lib/qemu/virtiofsd")

#: kernel modules that only cost time, or would take a device we want free
BLACKLIST = (
    "ahci,libata,nouveau,drm,lpc_ich,i2c_i801,intel_agp,button,pcspkr,psmouse"
)


def host_name(number: int = 0) -> str:
    """Return the name that a machine has inside."""
    return f"labvm{number + 1}" if number else "labvm"


def wire_address(number: int = 0) -> str:
    """Return a machine's address on the wire between the first two."""
    return f"{_WIRE_NETWORK}.{_WIRE_FIRST + number}"


def guests_tap(number: int = 0) -> str:
    """Return the name here of the network card for a machine's guests."""
    return f"lab{layout.port_base(number)}"


def has_kvm() -> bool:
    """Return whether KVM runs an unmodified kernel here.

    /dev/kvm alone proves nothing: a paravirtual KVM without VT-x or SVM
    emulates a stock kernel instruction by instruction and never finishes.
    """
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    return os.access("/dev/kvm", os.W_OK) and bool(
        re.search(r"\b(vmx|svm)\b", cpuinfo)
    )


def clock_khz(cpuinfo: str) -> int | None:
    """Return how fast this processor's time stamp counter runs, in kHz.

    An emulated processor has the same counter. Its kernel would measure it
    against an emulated timer, and on a busy host find a tenth of it: then
    its clock runs ten times too fast. None where it can't be read: only in a
    virtual machine that sees no changing frequency is "cpu MHz" the counter's
    (arch/x86/kernel/cpu/proc.c, show_cpuinfo()).
    """
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    speed = re.search(r"^cpu MHz\s*:\s*([\d.]+)$", cpuinfo, re.MULTILINE)
    words = set(flags[1].split()) if flags else set()
    if not speed or not {"hypervisor", "constant_tsc"} <= words:
        return None
    return None if "aperfmperf" in words else round(float(speed[1]) * 1000)


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """A directory of this computer that a machine sees.

    ``cache`` is virtiofsd's: the machine's root never changes under it, a
    directory that is shared does.
    """

    path: pathlib.Path
    cache: str
    is_writable: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One boot of the lab VM.

    ``run_dir`` is read-write inside as /run/lab and holds the job; all
    sockets in it are named relative to it (a Unix socket's path is short).
    """

    place: layout.Layout
    run_dir: pathlib.Path
    devices: topology.Topology = topology.STANDARD
    memory_mib: int = MEMORY_MIB
    #: without KVM; one is faster than two
    processors: int = 1
    #: a directory that is read-write inside at the same path
    share: pathlib.Path | None = None
    #: another root directory than the layout's; ``files`` are this computer's
    #: directories that are seen in it at the same paths
    root: pathlib.Path | None = None
    files: tuple[pathlib.Path, ...] = ()
    #: TCP ports: on the host's loopback -> in the machine
    forwards: Mapping[int, int] = dataclasses.field(default_factory=dict)
    #: words of the kernel's command line that a host's administrator sets
    words: tuple[str, ...] = ("intel_iommu=on", "iommu.strict=0")
    blacklist: str = BLACKLIST
    #: lab.NAME=VALUE on the kernel's command line: $LAB_NAME inside
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: serial ports: name inside -> socket in ``run_dir``
    ports: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: QEMU's back end of the machine's console
    console: str = "file,path=console"

    @property
    def virtiofs(self) -> bool:
        """Whether files are shared by virtiofs; else by 9p."""
        return VIRTIOFSD.exists()

    def socket(self, tag: str) -> str:
        """Return the name, in ``run_dir``, of virtiofsd's socket.

        It is unique on this machine: virtiofsd makes a system-wide lock of
        it.
        """
        unique = hashlib.sha256(str(self.run_dir).encode()).hexdigest()[:8]
        return f"{tag}-{unique}.sock"

    def arguments(self) -> list[str]:
        """Return QEMU's command line."""
        args = [*self._preload(), QEMU]
        args += ["-nodefaults", "-no-user-config", "-no-reboot"]
        args += ["-display", "none", "-name", "nova-accel-lab"]
        args += [*self._processor(), *self._kernel(), *self._files()]
        args += ["-serial", "file:kernel.log"]
        args += ["-device", "virtio-serial-pci"]
        args += ["-chardev", f"{self.console},id=console"]
        args += ["-device", "virtconsole,chardev=console"]
        for name, socket in self.ports.items():
            listen = f"socket,id={name},path={socket},server=on,wait=off"
            args += ["-chardev", listen, "-device"]
            args += [f"virtserialport,chardev={name},name={name}"]
        args += self._network()
        return [*args, *self.devices.arguments(), *self._guests_card()]

    def _preload(self) -> list[str]:
        """Return env(1) and what it sets for QEMU alone."""
        if not self.devices.functions:
            return []
        functions = topology.fakepci_environment(self.devices.functions)
        library = self.place.standins / "fakepci.so"
        return ["env", f"FAKEPCI={functions}", f"LD_PRELOAD={library}"]

    def _processor(self) -> list[str]:
        # the IOMMU's interrupt remapping wants half of KVM's irqchip
        machine = "q35,memory-backend=ram"
        if has_kvm():
            machine += ",kernel-irqchip=split"
            cpu = ["-accel", "kvm", "-cpu", "host", "-smp", "2"]
        else:
            # "max" has SVM
            tcg = "tcg,thread=multi,tb-size=512"
            cpu = ["-accel", tcg, "-cpu", "max"]
            cpu += ["-smp", str(self.processors)]
        size = f"{self.memory_mib}M"
        uuid = f"{HOST_UUID[:-2]}{self.place.number:02x}"
        return [
            *("-machine", machine),
            *cpu,
            *("-m", size),
            "-object",
            f"memory-backend-memfd,id=ram,size={size},share=on",
            *("-uuid", uuid),
        ]

    def _kernel(self) -> list[str]:
        release = self.place.release()
        files = ",".join(self._own_files())
        options = {
            "fs": "virtiofs" if self.virtiofs else "9p",
            "init": str(layout.GUEST_FILES / "init"),
            "modules": str(self.place.kernel / "lib/modules" / release),
            "root": str(self.place.root),
            "kvm": "yes" if has_kvm() else "no",
            "host": host_name(self.place.number),
            "address": wire_address(self.place.number),
            **({"files": files} if files else {}),
            **({"share": str(self.share)} if self.share else {}),
            **self.options,
        }
        words = [
            "console=ttyS0 quiet panic=-1 nokaslr mitigations=off",
            "random.trust_cpu=on cryptomgr.notests",
            f"module_blacklist={self.blacklist}",
            *self.words,
            *(f"lab.{name}={value}" for name, value in options.items()),
        ]
        if not has_kvm():
            words += ["tsc=reliable clocksource=tsc no_timer_check"]
            if khz := clock_khz(pathlib.Path("/proc/cpuinfo").read_text()):
                words.append(f"tsc_early_khz={khz}")
        return [
            *("-kernel", str(self.place.vmlinux)),
            *("-initrd", str(self.place.initrd)),
            *("-append", " ".join(words)),
        ]

    def shares(self) -> Mapping[str, Share]:
        """Return the directories that are seen inside, by mount tag.

        A machine on this computer's own root sees the lab's files there, and
        one on another root in a share of their own.
        """
        root = self.root or self.place.debian_root
        shares = {"hostroot": Share(root, cache="always", is_writable=False)}
        if self._own_files():
            shares["files"] = Share(
                pathlib.Path("/"), cache="always", is_writable=False
            )
        if self.share:
            shares["share"] = Share(self.share, cache="none")
        return shares

    def _own_files(self) -> list[str]:
        """Return the directories that another root has not."""
        if self.root is None and self.place.debian == layout.STOCK:
            return []
        files = (self.place.root, layout.GUEST_FILES, *self.files)
        return list(map(str, files))

    def _files(self) -> list[str]:
        args = _share_9p("out", self.run_dir)
        for tag, share in self.shares().items():
            if self.virtiofs:
                args += _share_virtiofs(tag, self.socket(tag))
            else:
                options = "" if share.is_writable else ",readonly=on"
                args += _share_9p(tag, share.path, options)
        return args

    def _network(self) -> list[str]:
        if not self.forwards:
            return []
        # restrict: nothing leaves the machine; only the forwards come in
        user = "user,id=net0,restrict=on"
        for outer, inner in self.forwards.items():
            user += f",hostfwd=tcp:127.0.0.1:{outer}-:{inner}"
        nic = f"virtio-net-pci,netdev=net0,romfile=,mac={MAC}"
        return ["-netdev", user, "-device", nic, *self._wire()]

    def _wire(self) -> list[str]:
        """Return the wire between the first two machines.

        It is a pair of Unix sockets: no port is taken, and packets to a
        machine that is off are lost.
        """
        number = self.place.number
        if number not in _WIRED:
            return []
        here, there = f"wire-{number}", f"wire-{1 - number}"
        (self.place.root / here).unlink(missing_ok=True)
        wire = (
            "dgram,id=wire,local.type=unix,remote.type=unix,"
            f"local.path=../{here},remote.path=../{there}"
        )
        mac = f"{_WIRE_MAC}:{_WIRE_FIRST + number:02x}"
        nic = f"virtio-net-pci,netdev=wire,romfile=,mac={mac}"
        return ["-netdev", wire, "-device", nic]

    def _guests_card(self) -> list[str]:
        """Return a network card that a test connects with this computer.

        It is the last device: the others have the same slots without it.
        """
        if not self.forwards or not os.access(_TUN, os.W_OK):
            return []
        number = self.place.number
        tap = f"tap,id=guests,ifname={guests_tap(number)}"
        mac = f"{_GUESTS_MAC}:{number:02x}"
        nic = f"virtio-net-pci,netdev=guests,romfile=,mac={mac}"
        return ["-netdev", f"{tap},script=no,downscript=no", "-device", nic]


def _share_9p(tag: str, path: pathlib.Path, options: str = "") -> list[str]:
    backend = f"local,id={tag},path={path},security_model=none"
    return [
        *("-fsdev", f"{backend},multidevs=remap{options}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    ]


def _share_virtiofs(tag: str, socket: str) -> list[str]:
    return [
        *("-chardev", f"socket,id={tag},path={socket}"),
        "-device",
        f"vhost-user-fs-pci,chardev={tag},tag={tag},queue-size=1024",
    ]


def start_file_servers(machine: Machine) -> dict[str, processes.ProcessRecord]:
    """Start the virtiofsd processes; they end with QEMU.

    Returns their records by mount tag; none when 9p is used. Raises
    BootError when one does not come up.
    """
    if not machine.virtiofs:
        return {}
    records = {}
    for tag, share in machine.shares().items():
        socket = machine.socket(tag)
        (machine.run_dir / socket).unlink(missing_ok=True)
        argv = [str(VIRTIOFSD), f"--socket-path={socket}"]
        for option in (
            f"source={share.path}",
            f"cache={share.cache}",
            "sandbox=chroot",
            "no_posix_lock",
            "xattr",
            "log_level=err",
        ):
            argv += ["-o", option]
        log = machine.run_dir / f"virtiofsd-{tag}.log"
        records[tag] = processes.spawn(argv, cwd=machine.run_dir, log=log)
    for tag, record in records.items():
        log = machine.run_dir / f"virtiofsd-{tag}.log"
        _await_socket(machine.run_dir / machine.socket(tag), record, log)
    return records


def _await_socket(
    path: pathlib.Path, record: processes.ProcessRecord, log: pathlib.Path
) -> None:
    deadline = time.monotonic() + 10
    while not path.exists():
        if not record.is_alive() or time.monotonic() > deadline:
            msg = f"virtiofsd did not start; see {log}"
            raise errors.BootError(msg)
        time.sleep(0.02)
