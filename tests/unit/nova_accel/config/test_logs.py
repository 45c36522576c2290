# SPDX-License-Identifier: Apache-2.0
"""A log line has the reason of an error once, as oslo.log writes it."""

import errno
import io
import logging
from collections.abc import Callable

import pytest
from oslo_config import cfg
from oslo_log import formatters, log

from nova_accel import errors
from nova_accel.config import logs

LOG = logging.getLogger("tests.reason_once")


@pytest.fixture
def lines() -> io.StringIO:
    """Return what oslo.log writes for the logger of this module."""
    options = cfg.ConfigOpts()
    log.register_options(options)
    options([], default_config_files=[])
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatters.ContextFormatter(config=options))
    LOG.handlers = [handler]
    return stream


@pytest.mark.parametrize("write", [logs.warning, logs.error])
def test_a_line_has_its_reason_once(
    lines: io.StringIO, write: Callable[..., None]
) -> None:
    try:
        raise errors.UnreadableError("/sys/a", errno.EIO)
    except errors.UnreadableError as error:
        LOG.warning("%s", error)
        write(LOG, "%s", error)
    by_oslo, line = lines.getvalue().splitlines()
    assert by_oslo.count("Input/output error") == 2
    assert line.count("Input/output error") == 1


def test_the_place_of_a_line_is_its_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs.error(LOG, "a reason")
    assert [record.filename for record in caplog.records] == ["test_logs.py"]
