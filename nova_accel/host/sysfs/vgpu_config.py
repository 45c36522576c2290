# SPDX-License-Identifier: Apache-2.0
"""vgpuConfig.xml of this host, where NVIDIA's driver has left one.

Use::

    from nova_accel.host.sysfs import vgpu_config

    table, problems = vgpu_config.read(host.files, {"1155": "L40S-24Q"})
    table.names["1156"]

A table that contradicts what the loaded driver says is of another release
(its package was changed, the module not loaded anew): it is left aside.
"""

import errno
import functools
from collections.abc import Mapping

from nova_accel import errors, model
from nova_accel.catalog import vgpu_xml
from nova_accel.host.sysfs import fs

_NOTHING = vgpu_xml.VgpuConfig()
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_MEND = "install the host driver anew"


def read(
    files: fs.Files, told: Mapping[str, str]
) -> tuple[vgpu_xml.VgpuConfig, tuple[model.Problem, ...]]:
    """Return the host's table, and why it is not used if it can't be.

    An empty one where there is none, which is no problem.

    :param told: what the loaded driver itself calls types: names without
        brand, by number.
    """
    try:
        table = _parsed(files.text(fs.VGPU_CONFIG))
    except errors.UnreadableError as error:
        if error.number in _ABSENT:
            return _NOTHING, ()
        return _NOTHING, (_problem(f"can't be read: {error}"),)
    except errors.MalformedError as error:
        return _NOTHING, (_problem(f"is not used: {error}; {_MEND}"),)
    if objection := table.objection(told):
        return _NOTHING, (
            _problem(
                f"is not used: it {objection}, so it is of another release;"
                " load that release's modules (reboot), or"
                f" {_MEND}"
            ),
        )
    return table, ()


# A look at a host reads the file, only other words are parsed.
@functools.lru_cache(maxsize=2)
def _parsed(text: str) -> vgpu_xml.VgpuConfig:
    return vgpu_xml.parse(text)


def _problem(reason: str) -> model.Problem:
    return model.Problem(where=fs.VGPU_CONFIG, reason=reason)
