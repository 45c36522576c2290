# SPDX-License-Identifier: Apache-2.0
"""Plans over the devices of a cloud: what fits where, and what would fit.

The core and the other packages do not import this package: ``setup.cfg``
registers its commands.
"""
