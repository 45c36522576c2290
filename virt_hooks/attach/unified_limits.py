# SPDX-License-Identifier: Apache-2.0
"""Nova's unified limits of a project, before a server gets more.

Nova checks them in nova-api and nova-conductor, which a hot attach does not
pass. The limits are Keystone's, and the usage is Placement's. They are checked
where nova.conf of nova-compute has the driver of unified limits.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from nova.limit import utils as nova_limits
from oslo_limit import exception as limit_errors

from nova_accel import errors
from virt_hooks import nova_private


def check_delta(
    context: Any, uuid: str, project: str, amounts: Mapping[str, int]
) -> None:
    """Check that a project may use more of some resource classes.

    :param uuid: the server that gets them.
    :param amounts: by resource class, besides the present usage.
    :raises ClaimError: a limit would be exceeded, or can't be read.
    """
    _enforce(context, uuid, project, amounts)


def check_usage(
    context: Any, uuid: str, project: str, names: Iterable[str]
) -> None:
    """Check that a project does not exceed its limits now.

    After an allocation: another one may have been made since
    ``check_delta``. Of two that exceed a limit together, both may be refused.

    :param uuid: the server that has got the resources.
    :param names: their resource classes.
    :raises ClaimError: a limit is exceeded, or can't be read.
    """
    _enforce(context, uuid, project, dict.fromkeys(names, 0))


def _enforce(
    context: Any, uuid: str, project: str, amounts: Mapping[str, int]
) -> None:
    if not nova_limits.use_unified_limits():
        return
    deltas = {f"class:{name}": n for name, n in amounts.items()}
    try:
        nova_private.limit_enforcer(context, project).enforce(project, deltas)
    except limit_errors.ProjectOverLimit as error:
        if nova_limits.should_enforce(error):
            excess = _describe(error.over_limit_info_list)
            raise errors.ClaimError(uuid, str(error), public=excess) from error
    except Exception as error:  # Keystone's client and Nova's raise any
        raise errors.ClaimError(
            uuid,
            f"the limits of project {project} can't be read: {error!r}; see"
            " [oslo_limit] in nova.conf of nova-compute",
            public="the limits of its project can't be read now",
        ) from error


def _describe(limits: Iterable[Any]) -> str:
    """Return the exceeded limits, which are the project's own."""
    return "; ".join(
        f"{each.resource_name} is over its limit of {each.limit}:"
        f" {each.current_usage} in use, {each.delta} more requested"
        for each in limits
    )
