// SPDX-License-Identifier: Apache-2.0
/* The NVLinks of the GPUs of the simulated kernel; see nvml.c. */
#include <string.h>

#include "nvml_kernel.h"

nvmlReturn_t nvmlDeviceGetNvLinkState(handle device, unsigned link,
                                      unsigned *is_active)
{
    struct answer a;
    nvmlReturn_t code = ASK2("link", INDEX(device), link);

    if (!code)
        *is_active = number(&a, 0);
    return code;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(handle device, unsigned link,
                                                 unsigned *type)
{
    struct answer a;
    nvmlReturn_t code = ASK2("link", INDEX(device), link);

    if (!code)
        *type = number(&a, 1);
    return code;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(handle device, unsigned link,
                                                 struct pci_info *info)
{
    struct answer a;
    nvmlReturn_t code = ASK2("link", INDEX(device), link);

    if (!code)
        locate(info, a.count > 2 ? a.field[2] : "");
    return code;
}
