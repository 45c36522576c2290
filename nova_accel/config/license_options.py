# SPDX-License-Identifier: Apache-2.0
"""Options about the licences of NVIDIA's vGPUs."""

import os
from typing import Any

from oslo_config import cfg

from nova_accel.catalog import mdev_names

OPTIONS = (
    cfg.ListOpt(
        "licensed_series",
        default=[],
        help="Series of NVIDIA's vGPUs that you have licences for: Q, C, A, B."
        " Profiles of other series are not offered, and `openstack accel"
        " flavor` refuses them. Empty: all.",
    ),
    cfg.StrOpt(
        "license_dir",
        default="",
        help="Directory of the client configuration tokens of NVIDIA's licence"
        " servers: PROJECT.tok for the id of a project, Q.tok for a series,"
        " default.tok for the other servers; the first one that exists is"
        " used. Read by the vendordata service, and by nova-accel doctor"
        " --cloud. Only root and the user of the service may read it.",
    ),
)


def find_error(group: Any) -> tuple[str, str, str] | None:
    """Return option, value and hint of a value that is not valid.

    :param group: object with the values as attributes.
    """
    series = ",".join(group.licensed_series)
    if not set(group.licensed_series) <= set(mdev_names.SERIES):
        letters = ", ".join(mdev_names.SERIES)
        return "licensed_series", series, f"write letters of {letters}"
    if group.license_dir and not os.path.isabs(group.license_dir):
        hint = "write an absolute path, as /etc/nova/licenses"
        return "license_dir", group.license_dir, hint
    return None
