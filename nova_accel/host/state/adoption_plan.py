# SPDX-License-Identifier: Apache-2.0
"""File of an adoption's plan, ``adoption.json`` below ``state_dir``.

The commands write the states ``planned``, ``applying`` and ``undoing``,
nova-compute writes ``adopted`` and ``undone``.
"""

import os

from nova_accel import errors
from nova_accel.host.state import directories, state_dir
from nova_accel.inventory.adoption import records
from nova_accel.model import json_codec

#: Of the documents; a release that changes a meaning raises the version.
FORMAT = json_codec.Format(kind=records.Plan)
_MODE = 0o644
# Two kilobytes for each mdev.
_MAX_BYTES = 64 << 20


class PlanFile:
    """The plan of one host."""

    def __init__(self, directory: str) -> None:
        """Use this directory; the first write creates it."""
        self.path = os.path.join(directory, state_dir.ADOPTION)

    def read(self) -> records.Plan | None:
        """Return the plan, None without one.

        :raises ConfigurationError: it can't be read, is damaged, or is of
            another release's format.
        """
        try:
            return FORMAT.decode(directories.read_path(self.path, _MAX_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise errors.ConfigurationError(
                "plan of the adoption",
                self.path,
                f"can't be used: {error}",
            ) from error

    def write(self, plan: records.Plan) -> None:
        """Replace the file atomically, and sync it to the disk.

        :raises ConfigurationError: it can't be written.
        """
        text = FORMAT.encode(plan, indent=1)
        try:
            directories.replace_file(
                self.path,
                text.encode(),
                _MODE,
                is_durable=True,
                make_parents=True,
            )
        except OSError as error:
            raise errors.ConfigurationError(
                "plan of the adoption",
                self.path,
                f"can't be written ({os.strerror(error.errno or 0)}); make"
                " [nova_accel] state_dir writable",
            ) from error
