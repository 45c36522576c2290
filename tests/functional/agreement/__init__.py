# SPDX-License-Identifier: Apache-2.0
"""Placement's books, our tree and the kernel's must agree, always.

Random servers come and go on a simulated host of many kinds of cards,
through the library's own code and a real Placement; see test_agreement.
"""
