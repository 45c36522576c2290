# SPDX-License-Identifier: Apache-2.0
"""Servers on two hosts, each with a kernel and a libvirt of its own."""
