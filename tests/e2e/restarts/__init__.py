# SPDX-License-Identifier: Apache-2.0
"""Hosts and services that start anew below servers."""
