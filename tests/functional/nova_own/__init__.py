# SPDX-License-Identifier: Apache-2.0
"""Nova's own functional tests of libvirt, with our driver switched on.

What they check must hold for whoever switches it on: Nova's own vGPUs and
PCI devices beside cards of ours. ``NOVA_ACCEL_NOVA_OWN`` tells more:
``all`` runs every test of the modules in ``chosen.py``, and ``all,stock``
runs them without our driver, to see which of them fail then, too.
"""

from tests.functional.nova.support import releases

releases.import_harness()
