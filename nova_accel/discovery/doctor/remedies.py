# SPDX-License-Identifier: Apache-2.0
"""Lines that correct a host, for the distributions that Nova supports."""

REBUILD = "update-initramfs -u  (Debian, Ubuntu) or  dracut --force  (others)"


def set_kernel_arguments(words: str) -> str:
    """Return the lines that add words to the kernel's command line."""
    return (
        f'append "{words}" to GRUB_CMDLINE_LINUX in /etc/default/grub\n'
        "update-grub  (Debian, Ubuntu) or"
        "  grub2-mkconfig -o /boot/grub2/grub.cfg  (others)\n"
        "reboot"
    )


def remove_kernel_arguments(words: str) -> str:
    """Return the lines that remove words from the command line."""
    return (
        f"remove {words} from GRUB_CMDLINE_LINUX in /etc/default/grub\n"
        "update-grub  (Debian, Ubuntu) or"
        "  grub2-mkconfig -o /boot/grub2/grub.cfg  (others)\n"
        "reboot"
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
