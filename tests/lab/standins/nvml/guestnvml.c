// SPDX-License-Identifier: Apache-2.0
/*
 * A fake NVML with one GPU, whose running vGPUs are the lines of the file
 * "vgpus" in the directory $GUESTNVML, five words each: uuid of the guest,
 * uuid of the mdev or "-", number of the type, state of the licence, driver
 * in the guest ("-" for none). A word "gone" as the uuid of the guest is a
 * vGPU that ends before it is asked for. Its licences end at noon of
 * 2027-01-31. The files "ecc" and "fabric" have two numbers each. Layouts and
 * codes are those of nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    LICENSED = 5,
    EXPIRY_VALID = 2,
    VM_ID_UUID = 1,
    MAX_VGPUS = 32
};

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char address[32];
};

struct expiry {
    unsigned year;
    unsigned short month, day, hour, min, sec;
    unsigned char status;
};

struct license {
    unsigned char is_licensed;
    struct expiry expiry;
    unsigned state;
};

struct fabric {
    unsigned char cluster[16];
    int status;
    unsigned clique, state;
};

struct vgpu {
    char guest[64], mdev[64], driver[64];
    unsigned type, state;
};

static char gpu;

static FILE *file(const char *name)
{
    const char *directory = getenv("GUESTNVML");
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", directory ? directory : "", name);
    return fopen(path, "r");
}

static int read_vgpus(struct vgpu *list)
{
    FILE *said = file("vgpus");
    int count = 0;

    if (!said)
        return -1;
    for (struct vgpu *v = list; count < MAX_VGPUS; v++, count++)
        if (fscanf(said, "%63s %63s %u %u %63s", v->guest, v->mdev, &v->type,
                   &v->state, v->driver) != 5)
            break;
    fclose(said);
    return count;
}

static int find(unsigned instance, struct vgpu *to)
{
    struct vgpu list[MAX_VGPUS];
    int count = read_vgpus(list);

    if ((int)instance >= count || !strcmp(list[instance].guest, "gone"))
        return NOT_FOUND;
    *to = list[instance];
    return SUCCESS;
}

static int read_pair(const char *name, unsigned *first, unsigned *second)
{
    FILE *said = file(name);
    int count;

    if (!said)
        return NOT_SUPPORTED;
    count = fscanf(said, "%u %u", first, second);
    fclose(said);
    return count == 2 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlInitWithFlags(unsigned flags) { return (void)flags, SUCCESS; }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    return code == NOT_FOUND ? "Not Found" : "Not Supported";
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    snprintf(version, length, "580.95.02");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 1, SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    (void)index;
    return *device = &gpu, SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info)
{
    (void)device;
    memset(info, 0, sizeof(*info));
    strcpy(info->address, "00000000:41:00.0");
    return SUCCESS;
}

int nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *pending)
{
    (void)device;
    return read_pair("ecc", now, pending);
}

int nvmlDeviceGetGpuFabricInfo(void *device, struct fabric *info)
{
    unsigned status = 0;
    int code = read_pair("fabric", &info->state, &status);

    (void)device;
    info->status = status;
    return code;
}

int nvmlDeviceGetActiveVgpus(void *device, unsigned *count, unsigned *to)
{
    struct vgpu list[MAX_VGPUS];
    int number = read_vgpus(list), room = to ? (int)*count : 0;

    (void)device;
    if (number < 0)
        return NOT_SUPPORTED;
    *count = number;
    if (room < number)
        return INSUFFICIENT_SIZE;
    for (int i = 0; i < number; i++)
        to[i] = i;
    return SUCCESS;
}

int nvmlVgpuInstanceGetVmID(unsigned instance, char *id, unsigned size,
                            unsigned *kind)
{
    struct vgpu v;
    int code = find(instance, &v);

    if (code)
        return code;
    *kind = VM_ID_UUID;
    snprintf(id, size < 80 ? size : 80, "%s", v.guest);
    return SUCCESS;
}

int nvmlVgpuInstanceGetMdevUUID(unsigned instance, char *uuid, unsigned size)
{
    struct vgpu v;
    int code = find(instance, &v);

    if (code || !strcmp(v.mdev, "-"))
        return code ? code : NOT_SUPPORTED;
    snprintf(uuid, size, "%s", v.mdev);
    return SUCCESS;
}

int nvmlVgpuInstanceGetType(unsigned instance, unsigned *type)
{
    struct vgpu v;
    int code = find(instance, &v);

    if (!code)
        *type = v.type;
    return code;
}

int nvmlVgpuInstanceGetLicenseInfo_v2(unsigned instance, struct license *info)
{
    struct vgpu v;
    int code = find(instance, &v);

    if (code)
        return code;
    memset(info, 0, sizeof(*info));
    info->state = v.state;
    info->is_licensed = v.state == LICENSED;
    if (info->is_licensed)
        info->expiry = (struct expiry){2027, 1, 31, 12, 0, 0, EXPIRY_VALID};
    return SUCCESS;
}

int nvmlVgpuInstanceGetVmDriverVersion(unsigned instance, char *version,
                                       unsigned size)
{
    struct vgpu v;
    int code = find(instance, &v);

    if (!code)
        snprintf(version, size, "%s",
                 strcmp(v.driver, "-") ? v.driver : "Not Available");
    return code;
}
