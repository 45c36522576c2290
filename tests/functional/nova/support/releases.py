# SPDX-License-Identifier: Apache-2.0
"""Differences between the Nova releases of these tests."""

import importlib
import os
from importlib import metadata

# Environment variable that Nova decides by, and the first release whose
# functional tests pass on native threads.
_NO_PATCHING = "OS_NOVA_DISABLE_EVENTLET_PATCHING"
_FIRST_ON_THREADS = 34
# The first whose nova.monkey_patch has functions.
_FIRST_WITH_PATCH = 32
# The first whose functional tests have disks to take live snapshots of.
_FIRST_WITH_DISKS = 33


def is_on_threads() -> bool:
    """Return whether Nova runs on native threads here.

    Where its own tests pass on them, unless the environment says no.
    """
    usual = "true" if _major() >= _FIRST_ON_THREADS else "false"
    chosen = os.environ.get(_NO_PATCHING) or usual
    return chosen.lower() in ("1", "true", "yes")


def has_disks() -> bool:
    """Return whether this Nova's tests can snapshot a guest that runs."""
    return _major() >= _FIRST_WITH_DISKS


def _major() -> int:
    return int(metadata.version("nova").partition(".")[0])


def import_harness() -> None:
    """Import Nova's functional tests, which decides about threads.

    Native threads where the release has them in its tests, eventlet
    before; the environment has the last word. Must come before whatever
    else imports eventlet.
    """
    is_patched = not is_on_threads()
    os.environ[_NO_PATCHING] = "false" if is_patched else "true"
    importlib.import_module("nova.tests.functional")
    monkey_patch = importlib.import_module("nova.monkey_patch")
    # Nova 31 patches with this import. Nova 32 patches with the import of its
    # API only: too late for what these tests import before.
    if (
        is_patched
        and _major() >= _FIRST_WITH_PATCH
        and not monkey_patch.is_patched()
    ):
        monkey_patch.patch()
