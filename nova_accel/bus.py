# SPDX-License-Identifier: Apache-2.0
"""Where on Nova's message bus nova-compute is asked for accelerators."""

# A topic of our own beside Nova's: a queue for each host, as Nova's has.
TOPIC = "nova-accel"
NAMESPACE = "nova_accel"
VERSION = "1.0"
# What an answer has: what was asked for, or why it is refused.
TOLD, REFUSED = "told", "refused"
