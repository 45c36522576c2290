# SPDX-License-Identifier: Apache-2.0
import errno
import pickle

import pytest

from nova_accel import errors

ALL = [
    errors.ConfigurationError("[nova_accel] drivers", "x", "mend it"),
    errors.UnreadableError("/sys/x", errno.EIO),
    errors.MalformedError("uuid", "x", "a lower-case uuid"),
    errors.ClaimError("c", "no room"),
    errors.ActionError("create", errno.ENOSPC, "free one"),
    errors.ActionError("create", 0, "see dmesg"),
    errors.ActionError("type", errno.EBUSY, "clear it", "it holds 5"),
    errors.ProgrammingError(
        "load", errno.EIO, "heal it", "a tool failed", "0000:5e:00.0/region-0"
    ),
    errors.BitstreamError("image", "is cut off"),
    errors.ToolError("sriov-manage -e x", 1, "Cannot obtain unbindLock"),
    errors.ArchiveError("a.tar", "is empty"),
    errors.AcceleratorError("plain"),
]


@pytest.mark.parametrize("error", ALL, ids=str)
def test_an_error_survives_the_way_from_another_process(
    error: errors.AcceleratorError,
) -> None:
    """As oslo.privsep rebuilds it, and as pickle does."""
    for again in (
        type(error)(*error.args),
        pickle.loads(pickle.dumps(error)),  # noqa: S301
    ):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_every_error_is_in_the_list() -> None:
    assert {type(e) for e in ALL} == {
        found
        for found in vars(errors).values()
        if isinstance(found, type)
        and issubclass(found, errors.AcceleratorError)
    }
