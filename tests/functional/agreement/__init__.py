# SPDX-License-Identifier: Apache-2.0
"""Random servers: Placement, provider tree and kernel always agree.

Random servers come and go on a simulated host of many kinds of cards,
through the library's own code and a real Placement; see test_agreement.
"""
