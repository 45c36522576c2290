# SPDX-License-Identifier: Apache-2.0
"""One pass: compare a host's provider tree with Placement and change it.

- ``sync_pass``: ``Synchronizer.run`` makes a pass, in attempts
- ``diff``: ``plan`` turns two trees into ordered calls; ``Guard``;
  ``Nesting``, calls to skip after a failed one
- ``reserved``: merge of the operator's and the device's ``reserved``
- ``refusals``: what a refused call means
"""
