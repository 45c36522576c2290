# SPDX-License-Identifier: Apache-2.0
"""Files of a host, in the form that checks need.

An absent file reads as empty. Each method raises ``UnreadableError`` if a file
exists and can't be read; a check that does not catch it has the result
unknown.
"""

import dataclasses
import errno
import functools
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from nova_accel import errors, model
from nova_accel.catalog import pci_ids
from nova_accel.config import conf, policy, top_packages
from nova_accel.discovery import (
    nova_conf,
    plugin,
    scan,
    unoffered_devices,
)
from nova_accel.doctor.sources import state_files
from nova_accel.host import host_paths
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import (
    allowed_paths,
    attributes,
    fs,
    host_reader,
    modules,
)
from nova_accel.inventory import unoffered
from nova_accel.model import pci

NVIDIA, AMD, INTEL = "10de", "1002", "8086"
_FPGA_VENDORS = frozenset({"10ee", "1172"})
_STATE_DIR = host_paths.STATE_DIR
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
)
_UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system")
_SERVICES = f"{allowed_paths.TOP}/fs/cgroup/system.slice"
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
# Of Podman and CRI-O, of Docker, of systemd in a container, and of managers
# with systemd's container interface (systemd.io/CONTAINER_INTERFACE).
_CONTAINER = (
    *("/run/.containerenv", "/.dockerenv", "/run/systemd/container"),
    "/run/host/container-manager",
)
# Longest value in a report; of longer files the path is enough.
_SHOWN = 160
_BOOT_VARIABLE = re.compile(r"^GRUB_\w+=")
# Words that the role nova_accel.host.iommu removes from those of GRUB.
_REMOVED_WORDS = "GRUB_CMDLINE_LINUX_REMOVED="
_QEMU_VERSION = re.compile(r"<version>(\d{1,9})</version>")
_QEMU_FLAG = re.compile(r"<flag name='([\w.-]{1,80})'/>")

Version = tuple[int, ...]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class ModprobeLine:
    """Line of a file of modprobe.d(5), in words."""

    path: str
    words: tuple[str, ...]


class CheckedHost:
    """Host whose files are checked; each file is read at most once.

    :param reader: the reader of the host. Its ``gpus`` are NVML's answers.
    :param config_files: the nova.conf files of this machine to read, in
        place of those of the host. Checks of the cloud read them themselves,
        secrets included.
    :param packages: packages of other distributions in the Python of this
        command.
    :param unwrapped: why methods of nova-scheduler can't be wrapped in it, by
        check.
    """

    def __init__(
        self,
        reader: host_reader.HostReader,
        config_files: Sequence[str] = (),
        packages: Sequence[top_packages.ForeignPackage] = (),
        unwrapped: Mapping[str, str] = types.MappingProxyType({}),
    ) -> None:
        reader.files.allow(host_paths.ALL)
        self.reader = reader
        self.gpus = reader.gpus
        self._nova_conf = nova_conf.NovaConf(reader.files, config_files)
        self.packages = tuple(packages)
        self.unwrapped = unwrapped

    # -- files ------------------------------------------------------------

    def text(self, path: str) -> str:
        """Return a file's text, stripped; empty for an absent file."""
        files, place = self._find(path)
        return self._read(files.text, place, "").strip()

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory; none for an absent one."""
        files, place = self._find(path)
        return self._read(files.names, place, ())

    def exists(self, path: str) -> bool:
        files, place = self._find(path)
        return files.exists(place)

    def link(self, path: str) -> str:
        """Return the last part of a link's target; empty without one."""
        return self._read(self.reader.files.link, path, "")

    def mode(self, path: str) -> int:
        """Return the permission bits of a device node."""
        return self.reader.files.mode(path)

    def _find(self, path: str) -> tuple[fs.Files, str]:
        """Return the files that have a path, and its place among them."""
        directory = self.state_dir
        if directory != _STATE_DIR and f"{path}/".startswith(f"{directory}/"):
            return self._state_files, path.replace(directory, _STATE_DIR, 1)
        return self.reader.files, path

    @functools.cached_property
    def _state_files(self) -> fs.Files:
        return fs.Files(
            state_files.StateDirSource(self.state_dir), host_paths.ALL
        )

    @functools.cached_property
    def state_dir(self) -> str:
        """Return the state directory; the default one of another host."""
        if not self.is_this_machine:
            return _STATE_DIR
        try:
            return self.parse_conf()[1].state_dir
        except (errors.ConfigurationError, errors.UnreadableError):
            return _STATE_DIR

    @property
    def is_this_machine(self) -> bool:
        """Return whether these are the files of this machine itself."""
        source = self.reader.files.source
        return isinstance(source, fs.DiskSource) and source.is_this_machine

    def _read(self, read: Callable[[str], T], path: str, absent: T) -> T:
        try:
            return read(path)
        except errors.UnreadableError as error:
            if error.number in _ABSENT:
                return absent
            raise

    def describe(self, path: str) -> str:
        """Return the value of a path for a report."""
        files, place = self._find(path)
        # A directory is never read as a file: a capture would lose its names.
        readers: tuple[Callable[[str], str], ...] = (
            files.link,
            lambda place: " ".join(files.names(place)),
            lambda place: oct(files.mode(place)),
            files.text,
        )
        if path in self._nova_conf.config_files:
            readers = (self._nova_conf.read,)
        for read in readers:
            try:
                words = " ".join(read(place).split())
                return words if len(words) <= _SHOWN else "(long text)"
            except errors.UnreadableError as error:
                if error.number == errno.ENOENT:
                    return "(absent)"
        return "(exists)"

    @staticmethod
    def sys(*parts: str) -> str:
        """Return a path below the kernel's directory of devices."""
        return "/".join((allowed_paths.TOP, *parts))

    # -- PCI functions ----------------------------------------------------

    @functools.cached_property
    def functions(self) -> Mapping[str, pci.PciFunction]:
        """Return all PCI functions by address."""
        return {str(f.address): f for f in self.reader.all_functions()}

    @functools.cached_property
    def cards(self) -> tuple[pci.PciFunction, ...]:
        """Return the accelerators of the host, VFs left out."""
        return tuple(
            function
            for function in self.functions.values()
            if pci_ids.is_candidate(function) and not function.physfn
        )

    @functools.cached_property
    def named_drivers(self) -> Mapping[str, plugin.Driver]:
        """Return the drivers of nova.conf.

        :raises ConfigurationError: one can't be loaded, or see ``parse_conf``.
        """
        return plugin.load_named(self.parse_conf()[1])

    @functools.cached_property
    def _drivers(self) -> Mapping[str, plugin.Driver]:
        """Return the drivers of nova.conf; all of them if it is invalid."""
        try:
            return self.named_drivers
        except (errors.ConfigurationError, errors.UnreadableError):
            return plugin.load()

    @functools.cached_property
    def state(self) -> model.HostState:
        """Return the devices and problems, as ``inspect`` prints them."""
        state = scan.read(self.reader, self._drivers, self.device_rules)
        baseline = None
        if self.is_this_machine:
            baseline = device_notes.ErrorBaseline(self.state_dir)
        return unoffered_devices.mark_read_faults(self.reader, state, baseline)

    @functools.cached_property
    def unoffered(self) -> tuple[unoffered.Unoffered, ...]:
        """Return the accelerators that are not offered, as ``inspect``."""
        return unoffered_devices.find_unoffered(
            self.reader, self.state, self._drivers, self.device_rules
        )

    @functools.cached_property
    def has_accelerators(self) -> bool:
        """Return whether the host has any device that can be offered.

        True if its files don't show it.
        """
        try:
            return bool(self.cards or self.state.devices)
        except errors.UnreadableError:
            return True

    def has_technology(self, name: str) -> bool:
        """Return whether the host may have devices of a technology.

        :param name: as ``HostCheck.technology``; True for those of other
            packages.
        """
        vendors = {"nvidia": NVIDIA, "amd": AMD, "intel": INTEL}
        try:
            match name:
                case "nvidia" | "amd" | "intel":
                    switches = self.nvswitches if name == "nvidia" else ()
                    return bool(self.cards_of(vendors[name]) or switches)
                case "qat":
                    return bool(self.qats)
                case "fpga":
                    return bool(self.fpgas)
        except errors.UnreadableError:
            pass  # the checks themselves report the error
        return True

    def cards_of(self, vendor: str) -> tuple[pci.PciFunction, ...]:
        """Return the GPUs of a vendor."""
        return tuple(
            f for f in self.cards if f.vendor == vendor and pci_ids.is_gpu(f)
        )

    @staticmethod
    def is_coherent_gpu(card: pci.PciFunction) -> bool:
        """Return whether a guest needs NUMA nodes for a GPU's memory."""
        return card.is_vfio_bound and pci_ids.has_coherent_memory(
            card.vendor, card.product, card.driver
        )

    @property
    def nvswitches(self) -> tuple[pci.PciFunction, ...]:
        """Return the NVSwitches that are PCI functions."""
        return tuple(filter(pci_ids.is_nvswitch, self.functions.values()))

    @property
    def qats(self) -> tuple[pci.PciFunction, ...]:
        """Return the PFs of QAT devices."""
        return tuple(filter(pci_ids.find_qat, self.cards))

    @property
    def fpgas(self) -> tuple[pci.PciFunction, ...]:
        """Return the functions of FPGA cards that a host driver has."""
        return tuple(
            f
            for f in self.cards
            if f.vendor in _FPGA_VENDORS or f.driver in pci_ids.FPGA_DRIVERS
        )

    def vfs(self, card: pci.PciFunction) -> Iterator[pci.PciFunction]:
        for address in card.virtual_functions:
            if str(address) in self.functions:
                yield self.functions[str(address)]

    def path(self, function: pci.PciFunction, name: str) -> str:
        """Return the path of a function's attribute."""
        return f"{host_reader.FUNCTIONS}/{function.address}/{name}"

    def attribute(self, function: pci.PciFunction, name: str) -> str:
        """Return a function's attribute; empty for an absent one."""
        return self.text(self.path(function, name))

    def count(self, function: pci.PciFunction, name: str) -> int | None:
        """Return an attribute that is a number, None without one."""
        return attributes.parse_number(self.attribute(function, name))

    # -- kernel and modules -----------------------------------------------

    @functools.cached_property
    def kernel(self) -> Version:
        """Return the kernel's version, empty if unknown."""
        version = self.reader.kernel_version()
        return version if any(version) else ()

    @functools.cached_property
    def vfio(self) -> Version:
        """Return the release whose VFIO the kernel shows, empty if none."""
        return modules.read_vfio_version(self.reader.files)

    @property
    def release(self) -> str:
        """Return the kernel's release, as ``6.12.9-amd64``."""
        return self.text(allowed_paths.KERNEL_RELEASE)

    @functools.cached_property
    def arguments(self) -> tuple[str, ...]:
        """Return the words of the kernel's command line."""
        return tuple(self.text(allowed_paths.KERNEL_ARGUMENTS).split())

    @functools.cached_property
    def boot_arguments(self) -> Mapping[str, str]:
        """Return the words that the next start will have, with files."""
        words: dict[str, str] = {}
        removed: set[str] = set()
        for path in host_paths.BOOT_FILES:
            for line in self.text(path).splitlines():
                values = _BOOT_VARIABLE.sub("", line).split()
                if line.startswith(_REMOVED_WORDS):
                    removed.update(values)
                else:
                    words |= dict.fromkeys(values, path)
        return {w: path for w, path in words.items() if w not in removed}

    def argument(self, name: str) -> str:
        """Return the value of a word of the command line, "" without it."""
        values = (word.partition("=") for word in self.arguments)
        return next((v or k for k, _, v in values if k == name), "")

    @functools.cached_property
    def lists_modules(self) -> bool:
        """Return whether an absent module is known not to be loaded.

        The kernel's own parameters always have a directory there
        (kernel/params.c).
        """
        return self.exists(self.sys("module/kernel"))

    def is_loaded(self, module: str) -> bool:
        return self.exists(self.sys("module", module))

    def parameter(self, module: str, name: str) -> str:
        """Return a parameter of a loaded module, empty without it."""
        return self.text(self.sys("module", module, "parameters", name))

    @functools.cached_property
    def modprobe_lines(self) -> tuple[ModprobeLine, ...]:
        """Return the lines of all files of modprobe.d(5)."""
        return tuple(
            ModprobeLine(path, tuple(words))
            for path in self._list_files(host_paths.MODPROBE)
            for line in self.text(path).splitlines()
            if (words := line.partition("#")[0].split())
        )

    @functools.cached_property
    def blacklist(self) -> Mapping[str, str]:
        """Return the blacklisted modules, with the files that name them."""
        modules = {
            line.words[1].replace("-", "_"): line.path
            for line in self.modprobe_lines
            if line.words[0] == "blacklist" and len(line.words) > 1
        }
        for word in self.arguments:
            name, _, value = word.partition("=")
            if name.rpartition(".")[2].endswith("blacklist"):
                for module in value.replace("-", "_").split(","):
                    modules[module] = allowed_paths.KERNEL_ARGUMENTS
        return modules

    @functools.cached_property
    def loaded_at_boot(self) -> frozenset[str]:
        """Return the modules that modules-load.d(5) names."""
        files = (*self._list_files(host_paths.MODULES_LOAD), "/etc/modules")
        words = (
            line.strip().replace("-", "_")
            for path in files
            for line in self.text(path).splitlines()
        )
        return frozenset(word for word in words if word[:1] not in ("#", ";"))

    def _list_files(self, directories: tuple[str, ...]) -> Iterator[str]:
        for directory in directories:
            for name in self.names(directory):
                if name.endswith(".conf"):
                    yield f"{directory}/{name}"

    # -- programs and services --------------------------------------------

    def library(self, name: str) -> tuple[str, str]:
        """Return the path and the version of a shared library, or "".

        The version is the end of the link's target, as in
        ``libvirt.so.0.11003.0``.
        """
        for directory in _LIBRARIES:
            path = f"{directory}/{name}"
            if target := self.link(path):
                return path, target.partition(".so.")[2]
        return "", ""

    @functools.cached_property
    def libvirt(self) -> Version:
        """Return libvirt's version, empty if unknown.

        Its library's version is 0.MAJOR * 1000 + MINOR.MICRO (libvirt,
        meson.build).
        """
        match = _VERSION.fullmatch(self.library("libvirt.so.0")[1])
        if not match:
            return ()
        return (*divmod(int(match[2]), 1000), int(match[3] or 0))

    @functools.cached_property
    def qemu(self) -> Version:
        """Return QEMU's version as libvirt has read it, empty if unknown."""
        versions = [
            int(match[1])
            for text in self._qemu_capabilities
            for match in _QEMU_VERSION.finditer(text)
        ]
        if not versions:
            return ()
        number = max(versions)
        return number // 1000000, number // 1000 % 1000, number % 1000

    @functools.cached_property
    def qemu_flags(self) -> frozenset[str]:
        """Return the capabilities of QEMU that libvirt knows and has read."""
        return frozenset(
            match[1]
            for text in self._qemu_capabilities
            for match in _QEMU_FLAG.finditer(text)
        )

    @functools.cached_property
    def _qemu_capabilities(self) -> tuple[str, ...]:
        """Return libvirt's descriptions of the host's programs of QEMU."""
        place = host_paths.QEMU_CAPABILITIES
        return tuple(
            self.text(f"{place}/{name}") for name in self.names(place)
        )

    def unit(self, name: str) -> str:
        """Return the path of an installed unit of systemd, empty if none."""
        paths = (f"{directory}/{name}.service" for directory in _UNITS)
        return next(filter(self.exists, paths), "")

    def service(self, name: str) -> str:
        """Return the path that exists while a service of systemd is active."""
        return f"{_SERVICES}/{name}.service/cgroup.procs"

    def is_active(self, name: str) -> bool:
        """Return whether a service of systemd has processes."""
        return bool(self.text(self.service(name)))

    def is_stopped(self, name: str) -> bool | None:
        """Return whether an installed service of systemd is not active.

        systemd removes the control group of a service that stops. None if
        that is not known: these files list no services, or the unit places
        its control group elsewhere.
        """
        if self.is_active(name):
            return False
        unit = self.unit(name)
        if not (unit and self.lists_services) or "Slice=" in self.text(unit):
            return None
        return f"{name}.service" not in self.names(_SERVICES)

    @functools.cached_property
    def lists_services(self) -> bool:
        """Return whether an absent service is known not to be active.

        False in containers, and for version 1 of control groups.
        """
        return bool(self.names(_SERVICES))

    # -- container --------------------------------------------------------

    @functools.cached_property
    def is_container(self) -> bool:
        """Return whether these files are those of a container."""
        return any(map(self.exists, _CONTAINER))

    @functools.cached_property
    def mounts(self) -> Mapping[str, tuple[str, ...]]:
        """Return the options of each mount point; the last mount counts."""
        lines = self.text(host_paths.MOUNTS).splitlines()
        fields = (line.split() for line in lines)
        return {words[4]: tuple(words[5].split(",")) for words in fields}

    # -- nova.conf --------------------------------------------------------

    @property
    def config_files(self) -> tuple[str, ...]:
        """Return the files of nova.conf, the last one to be read last."""
        return self._nova_conf.paths

    @property
    def source_errors(self) -> tuple[str, ...]:
        """Return the errors of config_source, as nova-compute logs them."""
        return self._nova_conf.source_errors

    def list_sections(
        self,
    ) -> Iterator[tuple[str, Mapping[str, Mapping[str, Sequence[str]]]]]:
        """Yield each file of nova.conf with sections, options and values."""
        return self._nova_conf.list_sections()

    def parse_conf(self) -> tuple[Any, conf.Settings]:
        """Return oslo.config's view of nova.conf, and the settings.

        :raises ConfigurationError: a file or a value is not valid.
        """
        return self._nova_conf.parse()

    @property
    def options(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """Return the values in nova.conf by section and option."""
        return self._nova_conf.options

    @functools.cached_property
    def rules(self) -> policy.DeviceRules | None:
        """Return the rules of nova.conf for devices, None if invalid."""
        try:
            return self._nova_conf.read_rules()
        except errors.ConfigurationError:
            return None

    @property
    def device_rules(self) -> policy.DeviceRules:
        """Return the rules for devices; those without lines if invalid."""
        return self.rules or policy.DeviceRules()

    def needs_driver(self, function: pci.PciFunction) -> bool:
        """Return whether a card's vendor driver is of use for servers.

        A card that device_spec gives to guests whole, or leaves out, has
        none.
        """
        rule = self.device_rules.rule(
            str(function.address), function.vendor, function.product
        )
        return rule.use not in (
            policy.DeviceUse.PASSTHROUGH,
            policy.DeviceUse.OFF,
        )

    def names_whole(self, function: pci.PciFunction) -> bool:
        """Return whether device_spec names a function for passthrough."""
        if self.rules is None:
            return False
        rule = self.rules.rule(
            str(function.address), function.vendor, function.product
        )
        return rule.is_specific and rule.use is policy.DeviceUse.PASSTHROUGH

    @property
    def nova_conf(self) -> str:
        """Return the path of the first nova.conf, empty without one."""
        return next(iter(self._nova_conf.paths), "")

    def option(self, section: str, name: str) -> str:
        """Return the last value of an option, empty if it is not set."""
        return self.options.get((section, name), ("",))[-1]
