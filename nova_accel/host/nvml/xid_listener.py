# SPDX-License-Identifier: Apache-2.0
"""Program that listens for the Xid errors of one GPU.

Its arguments are the GPU's address and the id of the parent process. It
writes the number of each error on a line of standard output, until the
parent ends or kills it.

It is a separate process because NVML has the GPU open while it listens:
the end of the process releases the GPU. And a call for a lost GPU may hang
forever; it must not hang in the service.
"""

import os
import sys
from collections.abc import Sequence

from nova_accel import errors
from nova_accel.host.nvml import nvml_library

# Milliseconds between two checks of the parent process.
_PARENT_CHECK_MS = 5000
# Exit statuses: the GPU can't be listened to; no further event can arrive.
DEAF = 3
LOST = 4


def main(argv: Sequence[str]) -> int:
    """Write Xid errors until the end; return an exit status.

    :param argv: the GPU's PCI address and the id of the parent process.
    """
    if not nvml_library.is_installed():
        return DEAF
    address, parent = argv
    try:
        with nvml_library.session():
            events = nvml_library.listen(nvml_library.gpu(address))
            return _write_xids(events, int(parent))
    except (nvml_library.NvmlError, errors.MalformedError) as error:
        print(error, file=sys.stderr)
        return DEAF


def _write_xids(events: object, parent: int) -> int:
    while os.getppid() == parent:
        try:
            xid = nvml_library.wait(events, _PARENT_CHECK_MS)
        except nvml_library.NvmlError as error:
            print(error, file=sys.stderr)
            return LOST
        if xid is not None:
            os.write(sys.stdout.fileno(), f"{xid}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
