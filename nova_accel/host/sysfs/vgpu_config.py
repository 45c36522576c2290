# SPDX-License-Identifier: Apache-2.0
"""vgpuConfig.xml of this host, installed by NVIDIA's host driver.

A table that contradicts the loaded driver belongs to another release (the
package was updated, the module not reloaded). It is not used.
"""

import errno
import functools
from collections.abc import Mapping

from nova_accel import errors, model
from nova_accel.catalog import vgpu_xml
from nova_accel.host.sysfs import fs

_NOTHING = vgpu_xml.VgpuConfig()
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_HINT = "install the host driver anew"


def read(
    files: fs.Files, driver_names: Mapping[str, str]
) -> tuple[vgpu_xml.VgpuConfig, tuple[model.Problem, ...]]:
    """Return the host's table, and the problems that keep it from use.

    The table is empty if the host has none (no problem) or it is not used.

    :param driver_names: names of types in the loaded driver, without
        brand, by type number.
    """
    try:
        table = _parsed(files.text(fs.VGPU_CONFIG))
    except errors.UnreadableError as error:
        if error.number in _ABSENT:
            return _NOTHING, ()
        return _NOTHING, (_problem(f"can't be read: {error}"),)
    except errors.MalformedError as error:
        return _NOTHING, (_problem(f"is not used: {error}; {_HINT}"),)
    if objection := table.find_mismatch(driver_names):
        return _NOTHING, (
            _problem(
                f"is not used: it {objection}, so it is of another release;"
                " load that release's modules (reboot), or"
                f" {_HINT}"
            ),
        )
    return table, ()


# Each pass reads the file; it is parsed only when its text has changed.
@functools.lru_cache(maxsize=2)
def _parsed(text: str) -> vgpu_xml.VgpuConfig:
    return vgpu_xml.parse(text)


def _problem(reason: str) -> model.Problem:
    return model.Problem(where=fs.VGPU_CONFIG, reason=reason)
