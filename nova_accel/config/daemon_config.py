# SPDX-License-Identifier: Apache-2.0
"""Configuration of Nova's privileged daemon, as it reads it itself.

The daemon reads the files of its command line, which callers of its functions
can't change.
"""

from oslo_config import cfg

from nova_accel.config import conf_options, policy


def read_own_root() -> str:
    """Return ``root`` of this process's own configuration."""
    _register_options()
    return str(cfg.CONF.nova_accel.root)


def read_own_commands() -> frozenset[str]:
    """Return each scrub_command of this process's own configuration.

    :raises ConfigurationError: a line of device_spec is not valid.
    """
    _register_options()
    rules = policy.parse_rules(cfg.CONF.nova_accel.device_spec).rules
    return frozenset(r.scrub_command for r in rules if r.scrub_command)


def _register_options() -> None:
    cfg.CONF.register_group(conf_options.GROUP)
    cfg.CONF.register_opts(conf_options.OPTIONS, group=conf_options.GROUP)
