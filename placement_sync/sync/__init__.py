# SPDX-License-Identifier: Apache-2.0
"""One pass: compare a host's provider tree with Placement and change it.

- ``sync_pass``: ``Synchronizer.run`` makes a pass, ``PassResult``
- ``pass_attempts``: ``Pass``, the attempts of one pass
- ``diff``: ``plan`` turns two trees into ordered calls, ``Guard``
- ``reserved``: merge of the operator's and the device's ``reserved``
- ``nesting``, ``refusals``: calls to skip, and refused calls
"""
