# SPDX-License-Identifier: Apache-2.0
"""Licences of guests with NVIDIA vGPUs.

The core does not import this package: ``setup.cfg`` registers it.
"""
