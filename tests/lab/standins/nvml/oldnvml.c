// SPDX-License-Identifier: Apache-2.0
/*
 * A fake of an old NVML, with three GPUs: one is well, one is
 * lost, one never answers. It has no call about vGPUs or GPU instances;
 * compiled with -DMIG it has MIG, to be switched off by a reset, and reports
 * memory slices to root only (no caller is root here).
 * Layouts and codes are those of nvml.h.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    GPU_IS_LOST = 15,
    UNKNOWN = 999
};

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char address[32];
};

struct memory {
    unsigned long long total, free, used;
};

static int opened;

int nvmlInitWithFlags(unsigned flags) { return (void)flags, opened++, SUCCESS; }

int nvmlInit_v2(void) { return opened++, SUCCESS; }

int nvmlShutdown(void) { return opened-- > 0 ? SUCCESS : UNKNOWN; }

const char *nvmlErrorString(int code)
{
    if (code == NO_PERMISSION)
        return "Insufficient Permissions";
    return code == GPU_IS_LOST ? "GPU is lost" : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    snprintf(version, length, "418.226.00");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 3, SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    static char gpu;

    if (index == 1)
        return GPU_IS_LOST;
    if (index == 2)
        for (;;)
            pause();
    *device = &gpu;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info)
{
    (void)device;
    memset(info, 0, sizeof(*info));
    strcpy(info->address, "00010000:AF:1F.0");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    (void)device;
    memory->total = 16384ULL << 20;
    return SUCCESS;
}

#ifdef MIG
struct profile_v2 {
    unsigned version, id, is_p2p, slices, instances, engines[6];
    unsigned long long memory;
    char name[96];
};

int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending)
{
    (void)device;
    *now = 1;
    *pending = 0;
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned profile,
                                         struct profile_v2 *info)
{
    (void)device;
    if (profile)
        return NOT_SUPPORTED;
    info->id = 19;
    info->slices = 1;
    info->instances = 7;
    strcpy(info->name, "MIG 1g.5gb");
    return SUCCESS;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id,
                                                  void *to, unsigned *count)
{
    (void)device, (void)id, (void)to, (void)count;
    return NO_PERMISSION;
}
#endif
