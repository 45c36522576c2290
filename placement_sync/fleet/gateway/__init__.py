# SPDX-License-Identifier: Apache-2.0
"""Gateway: the commands that reach nova-compute, for users without its bus.

- ``methods``: what may be asked for, and where in the gateway
- ``wsgi``: the service, on a machine with Nova and its message bus
- ``client``: the bus of a command on any other machine
"""
