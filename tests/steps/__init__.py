# SPDX-License-Identifier: Apache-2.0
"""Steps of ``tests/run``: their inputs, and the records of those that passed.

Nothing but Python's own library is imported: ``tests/run`` runs these modules
before it installs anything.
"""
