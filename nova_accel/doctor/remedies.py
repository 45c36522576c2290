# SPDX-License-Identifier: Apache-2.0
"""Lines that correct a host, for the distributions that Nova supports."""

from collections.abc import Iterator, Sequence

from nova_accel.config import remedy
from nova_accel.doctor import checked_host
from nova_accel.inventory import printed_remedies

_DEVICES = checked_host.CheckedHost.sys("bus/pci/devices")
_PROBE = checked_host.CheckedHost.sys("bus/pci/drivers_probe")
# Lines for a shell: a program that a distribution lacks fails at once.
REBUILD = "update-initramfs -u || dracut --force"
_GRUB = "update-grub || grub2-mkconfig -o /boot/grub2/grub.cfg"
HEADERS = (
    "apt install linux-headers-$(uname -r)"
    " || dnf install kernel-devel-$(uname -r)"
)
# In the remedy of a check it is replaced by that of the device.
ADDRESS = "ADDRESS"


def set_kernel_arguments(words: str) -> str:
    """Return the lines that add words to the kernel's command line."""
    return (
        f'append "{words}" to GRUB_CMDLINE_LINUX in /etc/default/grub\n'
        f"{_GRUB}\nreboot"
    )


def remove_kernel_arguments(words: str) -> str:
    """Return the lines that remove words from the command line."""
    return (
        f"remove {words} from GRUB_CMDLINE_LINUX in /etc/default/grub\n"
        f"{_GRUB}\nreboot"
    )


def set_module_options(module: str, options: str) -> str:
    """Return the lines that set options of a module from now on."""
    return (
        f"echo 'options {module} {options}'"
        f" > /etc/modprobe.d/nova-accel-{module}.conf\n{REBUILD}\nreboot"
    )


def blacklist(module: str) -> str:
    """Return the lines that keep a module from being loaded."""
    return (
        f"echo 'blacklist {module}'"
        f" > /etc/modprobe.d/nova-accel-{module}.conf\n{REBUILD}\nreboot"
    )


def write_attribute(name: str, value: str) -> str:
    """Return the line that writes an attribute of the device now."""
    return f"echo {value} > {_DEVICES}/{ADDRESS}/{name}"


def load_module(module: str) -> str:
    """Return the lines that load a module now and at each start."""
    return (
        f"modprobe {module}\n"
        f"echo {module} > /etc/modules-load.d/nova-accel-{module}.conf"
    )


def start_service(name: str) -> str:
    """Return the lines that start a service now and at each start."""
    return f"systemctl enable --now {name}"


def set_option(section: str, line: str) -> str:
    """Return the lines that set an option of nova-compute."""
    return (
        f"write into /etc/nova/nova.conf, section [{section}]:\n{line}\n"
        "systemctl restart nova-compute"
    )


def explain(host: checked_host.CheckedHost, text: str) -> str:
    """Return the lines of the corrections in a text, "" for none.

    A line divides ways of which one is enough.
    """
    ways = (
        "\n".join(line for step in steps for line in _list_lines(host, step))
        for steps in printed_remedies.find_alternatives(text)
    )
    return "\nor, instead,\n".join(filter(None, ways))


def _list_lines(
    host: checked_host.CheckedHost, step: remedy.Remedy
) -> Iterator[str]:
    match step:
        case remedy.SpecLine():
            yield set_option("nova_accel", str(step))
        case remedy.BindFunction():
            function = host.functions.get(step.function)
            yield from _bind_lines(
                step.driver,
                (step.function,),
                is_bound=function is not None and function.driver is not None,
            )
        case remedy.BindVfs():
            vfs = host.vfs(host.functions[step.function])
            yield from _bind_lines(
                step.driver,
                tuple(
                    str(vf.address)
                    for vf in vfs
                    if (vf.driver or "") == step.before
                ),
                is_bound=bool(step.before),
            )
        case remedy.WriteAttribute():
            place = f"{_DEVICES}/{step.function}/{step.name}"
            yield f"echo {step.value} > {place}"
        case remedy.MoveCard() | remedy.IsolateFunctions():
            yield str(step)
        case remedy.LoadModule():
            yield load_module(step.module)
        case remedy.InstallModule():
            yield f"install {step.package}"


def _bind_lines(
    driver: str, addresses: Sequence[str], is_bound: bool
) -> Iterator[str]:
    """Yield the lines that bind functions, whatever has them now.

    The kernel binds the driver that driver_override names
    (Documentation/ABI/testing/sysfs-bus-pci).
    """
    is_single = len(addresses) == 1
    name, indent = (addresses[0], "") if is_single else ("$vf", "  ")
    if not is_single:
        yield f"for vf in {' '.join(addresses)}; do"
    yield f"{indent}echo {driver} > {_DEVICES}/{name}/driver_override"
    if is_bound:
        yield f"{indent}echo {name} > {_DEVICES}/{name}/driver/unbind"
    yield f"{indent}echo {name} > {_PROBE}"
    if not is_single:
        yield "done"
