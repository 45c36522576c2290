# SPDX-License-Identifier: Apache-2.0
"""Fault campaign: random operations on servers, with faults at every call.

``tests/run campaign -- --faults 10000 --seed 7`` runs it; see
``python -m tests.campaign --help``.
"""
