# SPDX-License-Identifier: Apache-2.0
"""Why a flavor has no host: ``nova-accel explain``."""
