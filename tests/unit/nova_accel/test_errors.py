# SPDX-License-Identifier: Apache-2.0
"""Errors keep their message and attributes when they are pickled."""

import errno
import pickle
import re

import pytest

from nova_accel import errors

ALL = [
    errors.ConfigurationError("[nova_accel] drivers", "x", "set it"),
    errors.BrokenDriverError("[nova_accel] drivers", "x", "repair it"),
    errors.UnreadableError("/sys/x", errno.EIO),
    errors.MalformedError("uuid", "x", "a lower-case uuid"),
    errors.ClaimError("c", "no room"),
    errors.ClaimError("c", "0 of 8 left on 3", public="no room for VGPU 1"),
    errors.ActionError("create", errno.ENOSPC, "free one"),
    errors.ActionError("create", 0, "see dmesg"),
    errors.ActionError("type", errno.EBUSY, "clear it", "it holds 5"),
    errors.ProgrammingError(
        "load", errno.EIO, "heal it", "a tool failed", "0000:5e:00.0/region-0"
    ),
    errors.BitstreamError("image", "is cut off"),
    errors.ToolError("sriov-manage -e x", 1, "Cannot obtain unbindLock"),
    errors.ArchiveError("a.tar", "is empty"),
    errors.ConfigurationError("cloud", "x", "name one", "clouds.yaml"),
    errors.ServiceError("PUT", "/traits/X", 409, "taken", "placement.code"),
    errors.ServiceError("GET", "/", None, "no certificate", is_lasting=True),
    errors.BusyError("/run/lock", 30.0),
    errors.DomainsError("libvirt", "does not answer"),
    errors.AcceleratorError("plain"),
]


@pytest.mark.parametrize("error", ALL, ids=str)
def test_an_error_survives_pickling(
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


@pytest.mark.parametrize(
    "error",
    [
        errors.ClaimError("c", "49152 of 147456 left on 0000:3b:00.0"),
        errors.ClaimError("c", "0000:3b:00.0 is full", public="no room"),
        errors.ActionError("create mdev on 0000:3b:00.0", errno.EIO, "see 1"),
        errors.UnreadableError("/sys/bus/pci", errno.EIO),
        errors.ToolError("/opt/wipe 0000:3b:00.0", 1, "no such card"),
        errors.ServiceError("GET", "/traits", 500, "http://10.0.0.1 failed"),
        errors.BitstreamError("i", "no room in /var/lib/nova", is_local=True),
    ],
    ids=str,
)
def test_the_public_text_contains_no_host_facts(
    error: errors.AcceleratorError,
) -> None:
    assert not re.search(r"[0-9/]", error.public)


def test_the_public_text_names_the_fault_of_an_image() -> None:
    error = errors.BitstreamError("image", "is cut off")
    assert error.public == str(error)


def test_every_error_class_is_tested() -> None:
    assert {type(e) for e in ALL} == {
        error
        for error in vars(errors).values()
        if isinstance(error, type)
        and issubclass(error, errors.AcceleratorError)
    }


@pytest.mark.parametrize(
    ("status", "is_conflict", "is_transient"),
    [
        (None, False, True),
        (400, False, False),
        (401, False, False),
        (409, True, False),
        (429, False, True),
        (500, False, True),
        (503, False, True),
    ],
)
def test_the_status_determines_conflict_and_transience(
    status: int | None, is_conflict: bool, is_transient: bool
) -> None:
    error = errors.ServiceError("GET", "/", status, "so it is")
    assert error.is_conflict == is_conflict
    assert error.is_transient == is_transient


def test_a_lasting_error_is_not_transient() -> None:
    error = errors.ServiceError("GET", "/", None, "so it is", "", True)
    assert not error.is_transient


def test_an_empty_text_is_named_as_such() -> None:
    error = errors.MalformedError("reason", "", "--reason TEXT")
    assert str(error) == "the reason is empty; expected --reason TEXT"
