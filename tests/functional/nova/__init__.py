# SPDX-License-Identifier: Apache-2.0
"""Nova's functional harness with our driver and a simulated kernel.

On native threads or under eventlet as the Nova release does it;
``OS_NOVA_DISABLE_EVENTLET_PATCHING=false`` runs all of them under
eventlet.
"""

import os

from tests.functional.nova.support import releases

# Seconds; Nova's own base class takes its limit for one test from here.
os.environ.setdefault("OS_TEST_TIMEOUT", "600")

releases.import_harness()
