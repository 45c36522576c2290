# SPDX-License-Identifier: Apache-2.0
"""Commands ``nova-accel driver``: drivers of this host, by Ansible.

- ``roles``: the roles of the collection, and the devices that need them;
- ``driver_plan``: the roles that a host needs, from its cards and checks;
- ``manifests``: what the roles have changed on this host;
- ``device_use``: servers that hold devices, and the drain of devices;
- ``playbook``: one run of Ansible;
- ``driver_command``: the commands.
"""
