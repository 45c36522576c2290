// SPDX-License-Identifier: Apache-2.0
/*
 * A fake of NVML that has the usage of four GPUs: a time-sliced one with two
 * vGPUs, one in MIG mode with a vGPU of a vendor-specific VFIO driver, one
 * that is lost, and one that never answers. Compiled with -DOLD it is that of
 * a driver before R510. Layouts and codes are those of nvml.h.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    NOT_SUPPORTED = 3,
    INSUFFICIENT_SIZE = 7,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
};

enum { SLICED, MIG, LOST, SILENT, GPUS };

/* Numbers of the vGPUs. */
enum { BUSY = 11, IDLE = 12, IN_INSTANCE = 21 };

union value {
    double d;
    unsigned ui;
    unsigned long long ull;
};

struct sample {
    unsigned vgpu;
    unsigned long long time;
    union value sm, mem, enc, dec;
};

struct info {
    unsigned long long time;
    unsigned vgpu;
    union value sm, mem, enc, dec, jpg, ofa;
};

struct infos {
    unsigned version, type, count;
    unsigned long long since;
    struct info *array;
};

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char address[32];
};

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct rates {
    unsigned gpu, memory;
};

struct licence {
    uint8_t is_licensed;
    struct {
        unsigned year;
        unsigned short month, day, hour, minute, second;
        uint8_t status;
    } expiry;
    unsigned state;
};

static char gpus[GPUS];

static int number(void *gpu) { return (char *)gpu - gpus; }

int nvmlInitWithFlags(unsigned flags) { return (void)flags, SUCCESS; }

int nvmlInit_v2(void) { return SUCCESS; }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    return code == GPU_IS_LOST ? "GPU is lost" : "Not Supported";
}

int nvmlDeviceGetCount_v2(unsigned *count) { return *count = GPUS, SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu)
{
    if (index == LOST)
        return GPU_IS_LOST;
    if (index == SILENT)
        for (;;)
            pause();
    *gpu = gpus + index;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci_info *info)
{
    memset(info, 0, sizeof(*info));
    sprintf(info->address, "00000000:%d1:00.0", number(gpu) + 4);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *gpu, struct memory *memory)
{
    memory->total = 16ULL << 30;
    memory->used = number(gpu) == SLICED ? 7ULL << 30 : 1ULL << 30;
    return SUCCESS;
}

#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(void *gpu, struct memory_v2 *memory)
{
    if (memory->version != (sizeof(*memory) | 2U << 24))
        return ARGUMENT_VERSION_MISMATCH;
    memory->total = 16ULL << 30;
    memory->reserved = 1ULL << 30;
    memory->used = number(gpu) == SLICED ? 6ULL << 30 : 0;
    return SUCCESS;
}
#endif

int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts)
{
    if (number(gpu) == MIG)
        return NOT_SUPPORTED;
    return *milliwatts = 70500, SUCCESS;
}

int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *degrees)
{
    return (void)gpu, (void)sensor, *degrees = 61, SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *gpu, struct rates *rates)
{
    if (number(gpu) == MIG)
        return NOT_SUPPORTED;
    return rates->gpu = 80, rates->memory = 35, SUCCESS;
}

int nvmlDeviceGetEncoderUtilization(void *gpu, unsigned *used, unsigned *us)
{
    if (number(gpu) == MIG)
        return NOT_SUPPORTED;
    return *used = 0, *us = 167000, SUCCESS;
}

int nvmlDeviceGetActiveVgpus(void *gpu, unsigned *count, unsigned *vgpus)
{
    unsigned present = number(gpu) == SLICED ? 2 : 1;

    if (!vgpus || *count < present)
        return *count = present, INSUFFICIENT_SIZE;
    *count = present;
    vgpus[0] = number(gpu) == SLICED ? BUSY : IN_INSTANCE;
    if (present == 2)
        vgpus[1] = IDLE;
    return SUCCESS;
}

int nvmlDeviceGetVgpuUtilization(void *gpu, unsigned long long since,
                                 unsigned *type, unsigned *count,
                                 struct sample *samples)
{
    (void)since, (void)type;
    if (number(gpu) != SLICED)
        return *count = 0, SUCCESS;
    if (!samples)
        return *count = 1, INSUFFICIENT_SIZE;
    memset(samples, 0, sizeof(*samples));
    samples->vgpu = BUSY;
    samples->time = 1;
    samples->sm.ui = 50;
    return *count = 1, SUCCESS;
}

#ifndef OLD
int nvmlDeviceGetVgpuInstancesUtilizationInfo(void *gpu, struct infos *infos)
{
    unsigned present = number(gpu) == SLICED ? 3 : 1;

    if (!infos->array)
        return infos->count = present, INSUFFICIENT_SIZE;
    memset(infos->array, 0, present * sizeof(*infos->array));
    if (number(gpu) == SLICED) {
        infos->array[0] = (struct info){
            .time = 2, .vgpu = BUSY, .sm.ui = 75, .mem.ui = 30, .dec.ui = 4};
        infos->array[1] = (struct info){.time = 1, .vgpu = BUSY, .sm.ui = 9};
        /* No figure of it yet. */
        infos->array[2] = (struct info){
            .time = 2, .vgpu = IDLE, .sm.ui = ~0u, .mem.ui = ~0u,
            .enc.ui = ~0u, .dec.ui = ~0u, .jpg.ui = ~0u, .ofa.ui = ~0u};
    } else {
        infos->array[0] = (struct info){.vgpu = IN_INSTANCE, .sm.ui = 100};
    }
    return SUCCESS;
}
#endif

int nvmlVgpuInstanceGetType(unsigned vgpu, unsigned *type)
{
    return *type = vgpu == IN_INSTANCE ? 2 : 1, SUCCESS;
}

int nvmlVgpuTypeGetName(unsigned type, char *name, unsigned *size)
{
    *size = snprintf(name, *size, type == 2 ? "NVIDIA A100-1-5C"
                                            : "GRID T4-8Q");
    return SUCCESS;
}

int nvmlVgpuInstanceGetGpuInstanceId(unsigned vgpu, unsigned *id)
{
    return *id = vgpu == IN_INSTANCE ? 3 : ~0u, SUCCESS;
}

int nvmlVgpuInstanceGetMdevUUID(unsigned vgpu, char *uuid, unsigned size)
{
    if (vgpu == IN_INSTANCE)
        return NOT_SUPPORTED;
    snprintf(uuid, size, "83C32DF7-D52E-4EC1-9668-1F3C7E4DF1%u", vgpu);
    return SUCCESS;
}

int nvmlVgpuInstanceGetVmID(unsigned vgpu, char *id, unsigned size,
                            unsigned *type)
{
    (void)size;
    sprintf(id, "11111111-2222-4333-8444-5555555555%u", vgpu);
    return *type = 1, SUCCESS;
}

int nvmlVgpuInstanceGetFbUsage(unsigned vgpu, unsigned long long *bytes)
{
    return *bytes = vgpu == BUSY ? 5ULL << 30 : ~0ULL, SUCCESS;
}

int nvmlVgpuInstanceGetLicenseInfo_v2(unsigned vgpu, struct licence *licence)
{
    if (vgpu == IN_INSTANCE)
        return NOT_SUPPORTED;
    memset(licence, 0, sizeof(*licence));
    licence->is_licensed = vgpu == BUSY;
    return SUCCESS;
}
