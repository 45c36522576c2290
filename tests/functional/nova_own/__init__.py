# SPDX-License-Identifier: Apache-2.0
"""Nova's own functional tests of libvirt, with AccelLibvirtDriver.

Nova's own vGPUs and PCI devices must work beside accelerator cards. With
``NOVA_ACCEL_NOVA_OWN=all`` every test of the modules in ``chosen.py`` runs;
``all,stock`` runs them with Nova's driver, to see which of them fail then,
too.
"""

from tests.functional.nova.support import releases

releases.import_harness()
