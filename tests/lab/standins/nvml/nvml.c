// SPDX-License-Identifier: Apache-2.0
/*
 * A fake of NVIDIA's management library, libnvidia-ml.so.1.
 *
 * Its GPUs are those of the simulated kernel whose control socket
 * $FAKEHOST_CONTROL names: each call asks it there (nvidia_nvml.py) and
 * moves the answer into the structures that callers of NVML know. Layouts
 * and codes are those of nvml.h; there is what nova-accel asks, and
 * nvidia-ml-py for it, and no more.
 */
#include <stdio.h>
#include <string.h>

#include "nvml_kernel.h"

/* Fill an array the way NVML does: its size first, then its content. */
static nvmlReturn_t fill(const struct answer *a, unsigned *count, unsigned *to)
{
    unsigned room = *count;

    *count = a->count;
    if (!a->count)
        return SUCCESS;
    if (!to || room < (unsigned)a->count)
        return INSUFFICIENT_SIZE;
    for (int i = 0; i < a->count; i++)
        to[i] = number(a, i);
    return SUCCESS;
}

/* -- the library --------------------------------------------------------- */

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return kernel_open();
}

nvmlReturn_t nvmlInit_v2(void) { return kernel_open(); }

nvmlReturn_t nvmlShutdown(void) { return kernel_close(); }

const char *nvmlErrorString(nvmlReturn_t code)
{
    static const char *const texts[] = {
        [0] = "Success",
        [1] = "Uninitialized",
        [2] = "Invalid Argument",
        [3] = "Not Supported",
        [6] = "Not Found",
        [7] = "Insufficient Size",
        [9] = "Driver Not Loaded",
        [19] = "In use by another client",
        [23] = "Insufficient Resources",
        [25] = "Argument version mismatch",
    };
    int known = sizeof(texts) / sizeof(*texts);

    return code >= 0 && code < known && texts[code] ? texts[code]
                                                    : "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    struct answer a;
    nvmlReturn_t code = ASK0("system");

    if (!code)
        copy(version, length, &a, 0);
    return code;
}

/* -- the card ------------------------------------------------------------ */

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct mode {
    unsigned version, mode;
};

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    struct answer a;
    nvmlReturn_t code = ASK0("count");

    if (!code)
        *count = number(&a, 0);
    return code;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *device)
{
    struct answer a;
    nvmlReturn_t code = ASK1("device", index);

    if (!code)
        *device = GPU(index);
    return code;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(handle device, struct pci_info *info)
{
    struct answer a;
    nvmlReturn_t code = ASK1("device", INDEX(device));

    if (code)
        return code;
    locate(info, a.field[0]);
    info->ids = number(&a, 1);
    info->subsystem = number(&a, 2);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, handle *device)
{
    unsigned want[4], count = 0;
    nvmlReturn_t code = nvmlDeviceGetCount_v2(&count);

    if (code)
        return code;
    if (sscanf(bus, "%x:%x:%x.%x", &want[0], &want[1], &want[2], &want[3]) != 4)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < count; i++) {
        struct pci_info info;
        unsigned function;
        code = nvmlDeviceGetPciInfo_v3(GPU(i), &info);
        if (code)
            return code;
        sscanf(strrchr(info.address, '.'), ".%x", &function);
        if (info.domain == want[0] && info.bus == want[1] &&
            info.device == want[2] && function == want[3]) {
            *device = GPU(i);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(handle device, char *name, unsigned length)
{
    struct answer a;
    nvmlReturn_t code = ASK1("device", INDEX(device));

    if (!code)
        copy(name, length, &a, 3);
    return code;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(handle device, struct memory *memory)
{
    struct answer a;
    nvmlReturn_t code = ASK1("device", INDEX(device));

    if (code)
        return code;
    memory->total = number(&a, 4) << 20;
    memory->used = number(&a, 5) << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *memory)
{
    struct memory plain;
    nvmlReturn_t code;

    if (memory->version != VERSION(*memory, 2))
        return ARGUMENT_VERSION_MISMATCH;
    code = nvmlDeviceGetMemoryInfo(device, &plain);
    if (code)
        return code;
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(handle device, unsigned *now,
                                  unsigned *pending)
{
    struct answer a;
    nvmlReturn_t code = ASK1("mig", INDEX(device));

    if (!code)
        *now = *pending = number(&a, 0);
    return code;
}

nvmlReturn_t nvmlDeviceSetMigMode(handle device, unsigned mode,
                                  nvmlReturn_t *status)
{
    struct answer a;
    nvmlReturn_t code = ASK2("set_mig", INDEX(device), mode);

    if (!code)
        *status = SUCCESS;
    return code;
}

nvmlReturn_t nvmlDeviceGetVgpuHeterogeneousMode(handle device,
                                                struct mode *mode)
{
    struct answer a;
    nvmlReturn_t code;

    if (mode->version != VERSION(*mode, 1))
        return ARGUMENT_VERSION_MISMATCH;
    code = ASK1("mixed", INDEX(device));
    if (!code)
        mode->mode = number(&a, 0);
    return code;
}

nvmlReturn_t nvmlDeviceSetVgpuHeterogeneousMode(handle device,
                                                const struct mode *mode)
{
    struct answer a;

    if (mode->version != VERSION(*mode, 1))
        return ARGUMENT_VERSION_MISMATCH;
    return ASK2("set_mixed", INDEX(device), mode->mode);
}

nvmlReturn_t nvmlDeviceGetVgpuCapabilities(handle device, unsigned capability,
                                           unsigned *result)
{
    struct answer a;
    nvmlReturn_t code = ASK2("capability", INDEX(device), capability);

    if (!code)
        *result = number(&a, 0);
    return code;
}

/* -- vGPU types ---------------------------------------------------------- */

struct shared {
    unsigned version, type, count;
};

nvmlReturn_t nvmlDeviceGetSupportedVgpus(handle device, unsigned *count,
                                         unsigned *types)
{
    struct answer a;
    nvmlReturn_t code = ASK2("types", INDEX(device), 0);

    return code ? code : fill(&a, count, types);
}

nvmlReturn_t nvmlDeviceGetCreatableVgpus(handle device, unsigned *count,
                                         unsigned *types)
{
    struct answer a;
    nvmlReturn_t code = ASK2("types", INDEX(device), 1);

    return code ? code : fill(&a, count, types);
}

nvmlReturn_t nvmlVgpuTypeGetName(unsigned type, char *name, unsigned *size)
{
    struct answer a;
    nvmlReturn_t code = ASK1("type", type);

    if (code)
        return code;
    if (*size <= strlen(a.field[0])) {
        *size = strlen(a.field[0]) + 1;
        return INSUFFICIENT_SIZE;
    }
    copy(name, *size, &a, 0);
    return SUCCESS;
}

nvmlReturn_t nvmlVgpuTypeGetFramebufferSize(unsigned type,
                                            unsigned long long *bytes)
{
    struct answer a;
    nvmlReturn_t code = ASK1("type", type);

    if (!code)
        *bytes = number(&a, 1) << 20;
    return code;
}

nvmlReturn_t nvmlVgpuTypeGetGpuInstanceProfileId(unsigned type,
                                                 unsigned *profile)
{
    struct answer a;
    nvmlReturn_t code = ASK1("type", type);

    if (!code)
        *profile = number(&a, 2);
    return code;
}

nvmlReturn_t nvmlVgpuTypeGetMaxInstancesPerGpuInstance(struct shared *most)
{
    struct answer a;
    nvmlReturn_t code;

    if (most->version != VERSION(*most, 1))
        return ARGUMENT_VERSION_MISMATCH;
    code = ASK1("type", most->type);
    if (!code)
        most->count = number(&a, 3);
    return code;
}

nvmlReturn_t nvmlVgpuTypeGetMaxInstances(handle device, unsigned type,
                                         unsigned *most)
{
    struct answer a;
    nvmlReturn_t code = ASK2("most", INDEX(device), type);

    if (!code)
        *most = number(&a, 0);
    return code;
}

struct vgpu_placements {
    unsigned version, size, count;
    unsigned *starts;
    unsigned mode;
};

nvmlReturn_t
nvmlDeviceGetVgpuTypeSupportedPlacements(handle device, unsigned type,
                                         struct vgpu_placements *list)
{
    struct answer a;
    nvmlReturn_t code;

    if (list->version != VERSION(*list, 2))
        return ARGUMENT_VERSION_MISMATCH;
    code = ASK3("vgpu_placements", INDEX(device), type, list->mode);
    if (code)
        return code;
    if (list->count < (unsigned)a.count - 1)
        return INSUFFICIENT_SIZE;
    list->size = number(&a, 0);
    list->count = a.count - 1;
    for (int i = 1; i < a.count; i++)
        list->starts[i - 1] = number(&a, i);
    return SUCCESS;
}
