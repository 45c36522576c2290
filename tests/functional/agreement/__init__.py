# SPDX-License-Identifier: Apache-2.0
"""Random servers: Placement, provider tree and kernel always agree.

Random servers are created and deleted on simulated hosts with many kinds of
cards, with the library's own code and a real Placement; see test_agreement.
"""
