// SPDX-License-Identifier: Apache-2.0
/* GPU instances and compute instances of the fake NVML; see nvml.c. */
#include <string.h>

#include "nvml_kernel.h"

struct profile {
    unsigned id, p2p, slices, count, multiprocessors, copies, decoders,
        encoders, jpegs, ofas;
    unsigned long long memory;
};

struct profile_v2 {
    unsigned version, id, p2p, slices, count, multiprocessors, copies,
        decoders, encoders, jpegs, ofas;
    unsigned long long memory;
    char name[NAME_V2];
};

struct placement {
    unsigned start, size;
};

struct instance_info {
    handle device;
    unsigned id, profile;
    struct placement placement;
};

struct compute_profile {
    unsigned id, slices, count, multiprocessors, copies, decoders, encoders,
        jpegs, ofas;
};

struct compute_profile_v2 {
    unsigned version;
    struct compute_profile plain;
    char name[NAME_V2];
};

struct compute_info {
    handle device, instance;
    unsigned id, profile;
    struct placement placement;
};

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(handle device,
                                                 unsigned profile,
                                                 struct profile *info)
{
    struct answer a;
    nvmlReturn_t code = ASK2("profile", INDEX(device), profile);

    if (code)
        return code;
    memset(info, 0, sizeof(*info));
    info->id = number(&a, 0);
    info->slices = number(&a, 1);
    info->count = number(&a, 2);
    info->memory = number(&a, 3);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(handle device,
                                                  unsigned profile,
                                                  struct profile_v2 *info)
{
    struct answer a;
    unsigned version = info->version;
    nvmlReturn_t code;

    if (version != VERSION(*info, 2))
        return ARGUMENT_VERSION_MISMATCH;
    code = ASK2("profile", INDEX(device), profile);
    if (code)
        return code;
    memset(info, 0, sizeof(*info));
    info->version = version;
    info->id = number(&a, 0);
    info->slices = number(&a, 1);
    info->count = number(&a, 2);
    info->memory = number(&a, 3);
    copy(info->name, sizeof(info->name), &a, 4);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    handle device, unsigned profile, struct placement *placements,
    unsigned *count)
{
    struct answer a;
    nvmlReturn_t code = ASK2("placements", INDEX(device), profile);
    unsigned found, room = *count;

    if (code)
        return code;
    found = a.count ? a.count - 1 : 0;
    *count = found;
    if (!placements)
        return SUCCESS;
    if (room < found)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        placements[i].start = number(&a, i + 1);
        placements[i].size = number(&a, 0);
    }
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstances(handle device, unsigned profile,
                                       handle *instances, unsigned *count)
{
    struct answer a;
    nvmlReturn_t code = ASK2("instances", INDEX(device), profile);

    if (code)
        return code;
    /* The caller's array has room for the profile's count. */
    for (int i = 0; i < a.count; i++)
        instances[i] = INSTANCE(device, number(&a, i));
    *count = a.count;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(handle device, unsigned id,
                                          handle *instance)
{
    struct answer a;
    nvmlReturn_t code = ASK2("instance", INDEX(device), id);

    if (!code)
        *instance = INSTANCE(device, id);
    return code;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(handle instance,
                                    struct instance_info *info)
{
    struct answer a;
    nvmlReturn_t code = ASK2("instance", INDEX(instance), ID(instance));

    if (code)
        return code;
    info->device = GPU_OF(instance);
    info->id = ID(instance);
    info->profile = number(&a, 0);
    info->placement.start = number(&a, 1);
    info->placement.size = number(&a, 2);
    return SUCCESS;
}

static nvmlReturn_t create(handle device, unsigned profile, long long start,
                           handle *instance)
{
    struct answer a;
    nvmlReturn_t code = ASK3("create", INDEX(device), profile, start);

    if (!code)
        *instance = INSTANCE(device, number(&a, 0));
    return code;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(handle device, unsigned profile,
                                         handle *instance)
{
    return create(device, profile, -1, instance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(
    handle device, unsigned profile, const struct placement *placement,
    handle *instance)
{
    return create(device, profile, placement->start, instance);
}

nvmlReturn_t nvmlGpuInstanceDestroy(handle instance)
{
    struct answer a;

    return ASK2("destroy", INDEX(instance), ID(instance));
}

/* -- compute instances --------------------------------------------------- */

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
    handle instance, unsigned profile, unsigned engines,
    struct compute_profile *info)
{
    struct answer a;
    nvmlReturn_t code =
        ASK3("compute_profile", INDEX(instance), ID(instance), profile);

    (void)engines;
    if (code)
        return code;
    memset(info, 0, sizeof(*info));
    info->id = number(&a, 0);
    info->slices = number(&a, 1);
    info->count = number(&a, 2);
    info->multiprocessors = number(&a, 3);
    return SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    handle instance, unsigned profile, unsigned engines,
    struct compute_profile_v2 *info)
{
    if (info->version != VERSION(*info, 2))
        return ARGUMENT_VERSION_MISMATCH;
    memset(info->name, 0, sizeof(info->name));
    return nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance, profile, engines, &info->plain);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(handle instance,
                                                  unsigned profile,
                                                  handle *compute)
{
    struct answer a;
    nvmlReturn_t code =
        ASK3("compute_create", INDEX(instance), ID(instance), profile);

    if (!code)
        *compute = COMPUTE(instance, number(&a, 0));
    return code;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(handle instance,
                                                unsigned profile,
                                                handle *computes,
                                                unsigned *count)
{
    struct answer a;
    nvmlReturn_t code =
        ASK3("computes", INDEX(instance), ID(instance), profile);

    if (code)
        return code;
    for (int i = 0; i < a.count; i++)
        computes[i] = COMPUTE(instance, number(&a, i));
    *count = a.count;
    return SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(handle compute,
                                           struct compute_info *info)
{
    struct answer a;
    nvmlReturn_t code = ASK3("compute", INDEX(compute), ID(compute),
                             COMPUTE_ID(compute));

    if (code)
        return code;
    info->device = GPU_OF(compute);
    info->instance = INSTANCE_OF(compute);
    info->id = COMPUTE_ID(compute);
    info->profile = number(&a, 0);
    info->placement.start = 0;
    info->placement.size = number(&a, 1);
    return SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceDestroy(handle compute)
{
    struct answer a;

    return ASK3("compute_destroy", INDEX(compute), ID(compute),
                COMPUTE_ID(compute));
}
