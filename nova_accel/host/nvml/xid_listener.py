# SPDX-License-Identifier: Apache-2.0
"""Program that listens for the Xid errors of one GPU.

It is run with the GPU's address and the id of the process that starts it,
and writes the number of each error on a line of its own to its standard
output, until that process is gone, or ends it.

It is a process of its own because NVML holds a GPU open as long as it
listens: when this process has ended, nothing holds the GPU any more. And
a GPU that is lost can make a call hang for ever: it hangs here only.
"""

import os
import sys
from collections.abc import Sequence

from nova_accel import errors
from nova_accel.host.nvml import nvml_library

# How often to see whether anybody wants to know still, in milliseconds.
_LOOK_MS = 5000
# Exit statuses: there was nobody to listen to, or nothing more can come.
DEAF = 3
LOST = 4


def main(argv: Sequence[str]) -> int:
    """Listen; return an exit status.

    :param argv: the GPU's PCI address, and the id of the process.
    """
    if not nvml_library.is_installed():
        return DEAF
    address, parent = argv
    try:
        with nvml_library.session():
            events = nvml_library.listen(nvml_library.gpu(address))
            return _tell(events, int(parent))
    except (nvml_library.NvmlError, errors.MalformedError) as error:
        print(error, file=sys.stderr)
        return DEAF


def _tell(events: object, parent: int) -> int:
    while os.getppid() == parent:
        try:
            xid = nvml_library.wait(events, _LOOK_MS)
        except nvml_library.NvmlError as error:
            print(error, file=sys.stderr)
            return LOST
        if xid is not None:
            os.write(sys.stdout.fileno(), f"{xid}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
