# SPDX-License-Identifier: Apache-2.0
"""Validators of the arguments of privileged functions.

The arguments come from an unprivileged process. Each function returns the
valid argument with its type, and raises MalformedError for any other.
"""

import os
import re
from collections.abc import Collection

from nova_accel import errors
from nova_accel.model import actions, pci

# Directory names in sysfs (a PCI address, "mtty", "0.0.0052", a type id, a
# driver) and NVIDIA's names of GPU instances ("1g.5gb+me").
_PART = re.compile(r"[0-9A-Za-z][0-9A-Za-z:._+-]*")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_SETTING = re.compile("vgpu_params|placement_id")
# "key=value,key=value" in printable ASCII, or empty; NVIDIA's driver stores
# at most 1024 bytes.
_PARAMS = re.compile(r"[!-~ ]{0,1023}")
# The character device of an FPGA's management engine, as Linux names it
# (drivers/fpga/dfl.c, DFL_FPGA_FEATURE_DEV_FME) and as Intel's older
# driver does.
_NODE = re.compile(r"(dfl|intel-fpga)-fme\.[0-9]{1,9}")
_SHA512 = re.compile(r"[0-9a-f]{128}")
# Words of qat/cfg_services (ABI/testing/sysfs-driver-qat): "sym;asym".
_SERVICES = re.compile(r"[a-z]{1,16}(;[a-z]{1,16}){0,7}")
# Maximum of sriov_numvfs (drivers/pci/iov.c: a u16).
_MAX_COUNT = 0xFFFF


def root(text: object, own: str) -> None:
    """Check that the caller's root is the privileged process's own."""
    if text != own:
        raise errors.MalformedError(
            "root of Nova's privileged daemon",
            str(text),
            f"{own}, [nova_accel] root of the configuration files that the"
            " daemon was started with (helper_command)",
        )


def part(text: object, what: str) -> str:
    """Check one component of a path; ``what`` is its name in errors."""
    if ".." in str(text):
        raise errors.MalformedError(
            what, str(text), "one name without slashes"
        )
    return _matched(_PART, text, what, "one name without slashes")


def uuid(text: object) -> str:
    return _matched(_UUID, text, "mdev uuid", "a lower-case uuid")


def address(text: object) -> str:
    if not isinstance(text, str) or not pci.is_address(text):
        raise errors.MalformedError(
            "PCI address", str(text), "DDDD:BB:SS.F in hexadecimal"
        )
    return text


def functions_of_one_bus(addresses: object) -> tuple[str, ...]:
    """Check different PCI addresses on one bus."""
    functions = addresses if isinstance(addresses, list | tuple) else ()
    checked = tuple(map(address, functions))
    buses = {function.rpartition(":")[0] for function in checked}
    if len(buses) != 1 or len({*checked}) != len(checked):
        raise errors.MalformedError(
            "list of functions", str(addresses), "functions of one bus"
        )
    return checked


def is_uuid(text: object) -> bool:
    """Return whether this names an mdev."""
    return isinstance(text, str) and _UUID.fullmatch(text) is not None


def count(number: object, what: str) -> int:
    """Check a number from 0 to 65535; ``what`` is its name in errors."""
    if not isinstance(number, int) or not 0 <= number <= _MAX_COUNT:
        raise errors.MalformedError(what, str(number), f"0 to {_MAX_COUNT}")
    return number


def seconds(number: object) -> float:
    most = actions.MAX_PROGRAM_S
    if not isinstance(number, int | float) or not 0 < number <= most:
        raise errors.MalformedError(
            "time limit", str(number), f"seconds, up to {most}"
        )
    return number


def vgpu_type(text: object) -> str:
    return _matched(_NUMBER, text, "vGPU type", "a number")


def setting(text: object) -> str:
    """Check the name of a vGPU's setting that only root may read."""
    return _matched(
        _SETTING, text, "vGPU setting", "vgpu_params or placement_id"
    )


def params(text: object) -> str:
    return _matched(
        _PARAMS, text, "text of vgpu_params", "key=value,key=value"
    )


def node(text: object) -> str:
    return _matched(_NODE, text, "FPGA's device node", "dfl-fme.N")


def services(text: object) -> str:
    return _matched(
        _SERVICES, text, "list of QAT services", "words like sym;asym"
    )


def sha512(text: object) -> str:
    return _matched(
        _SHA512, text, "SHA-512", "128 hexadecimal digits in lower case"
    )


def path(text: object) -> str:
    if not isinstance(text, str) or "\0" in text or not os.path.isabs(text):
        raise errors.MalformedError("path", str(text), "an absolute path")
    return text


def command(text: object) -> str:
    if not isinstance(text, str) or not actions.is_command_path(text):
        raise errors.MalformedError(
            "command", str(text), "an absolute path of plain characters"
        )
    return text


def own_command(text: str, own: Collection[str]) -> None:
    """Check that a command is one of the privileged process's own."""
    if text not in own:
        raise errors.MalformedError(
            "scrub_command of Nova's privileged daemon",
            text,
            "one of [nova_accel] device_spec in the configuration files that"
            " the daemon was started with (helper_command); restart"
            " nova-compute after a change",
        )


def _matched(
    form: re.Pattern[str], text: object, what: str, expected: str
) -> str:
    if not isinstance(text, str) or not form.fullmatch(text):
        raise errors.MalformedError(what, str(text), expected)
    return text
