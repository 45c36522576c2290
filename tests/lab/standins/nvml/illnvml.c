// SPDX-License-Identifier: Apache-2.0
/*
 * A fake NVML whose GPUs fail, as the files in the directory
 * $ILLNVML say: "xids" has the errors of the first of its two GPUs, a
 * number a line; "recovery" what NVML recommends for it; where "reset" is,
 * it wants a reset before it answers more; where "lost" is, its handle can't
 * be had; where "gone" is, nothing is to be heard of it any more; "links"
 * has its NVLinks that are up, on each line the type of what is there, and
 * its address or "-"; where "unlinked" is, asking for them loses it. The
 * second GPU reports no errors, and has no NVLink. Layouts and codes are those
 * of nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    XID = 8,
    RECOVERY_ACTION = 230,
    STEP_US = 10000
};

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char address[32];
};

struct event {
    void *device;
    unsigned long long type, data;
    unsigned instance, compute;
};

struct field {
    unsigned id, scope;
    long long time, latency;
    unsigned type, code;
    unsigned long long value;
};

static char gpus[2];
static const char *const addresses[] = {"00000000:41:00.0",
                                        "00000000:42:00.0"};
static long taken;

static FILE *file(const char *name)
{
    const char *directory = getenv("ILLNVML");
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", directory ? directory : "", name);
    return fopen(path, "r");
}

static int is_there(const char *name)
{
    FILE *found = file(name);

    return found ? fclose(found), 1 : 0;
}

int nvmlInitWithFlags(unsigned flags) { return (void)flags, SUCCESS; }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    return code == GPU_IS_LOST      ? "GPU is lost"
           : code == RESET_REQUIRED ? "GPU requires reset"
                                    : "Not Supported";
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    snprintf(version, length, "570.00");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 2, SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    if (index == 0 && is_there("lost"))
        return GPU_IS_LOST;
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device)
{
    for (unsigned i = 0; i < 2; i++)
        if (!strcasecmp(strchr(bus, ':'), strchr(addresses[i], ':')))
            return nvmlDeviceGetHandleByIndex_v2(i, device);
    return NOT_FOUND;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info)
{
    memset(info, 0, sizeof(*info));
    strcpy(info->address, addresses[(char *)device - gpus]);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending)
{
    (void)now, (void)pending;
    if (device == &gpus[0] && is_there("reset"))
        return RESET_REQUIRED;
    return NOT_SUPPORTED;
}

int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields)
{
    FILE *said = device == &gpus[0] ? file("recovery") : NULL;
    unsigned action = 0;

    for (int i = 0; i < count; i++) {
        fields[i].code = NOT_SUPPORTED;
        if (fields[i].id != RECOVERY_ACTION || !said)
            continue;
        if (fscanf(said, "%u", &action) == 1)
            fields[i].code = SUCCESS;
        fields[i].value = action;
    }
    if (said)
        fclose(said);
    return SUCCESS;
}

/* Read the line of one link; where it is no GPU's, leave the address. */
static int read_link(void *device, unsigned link, unsigned *type, char *address)
{
    FILE *said = device == &gpus[0] ? file("links") : NULL;
    int count = 0;

    if (device == &gpus[0] && is_there("unlinked"))
        return GPU_IS_LOST;
    if (!said)
        return NOT_SUPPORTED;
    for (unsigned i = 0; i <= link; i++)
        count = fscanf(said, "%u %31s\n", type, address);
    fclose(said);
    return count == 2 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *is_active)
{
    char address[32];
    unsigned type;

    *is_active = 1;
    return read_link(device, link, &type, address);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link,
                                        unsigned *type)
{
    char address[32];

    return read_link(device, link, type, address);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link,
                                        struct pci_info *info)
{
    unsigned type;

    memset(info, 0, sizeof(*info));
    return read_link(device, link, &type, info->address);
}

int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types)
{
    *types = device == &gpus[0] ? XID | 1 : 1;
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) { return *set = gpus, SUCCESS; }

int nvmlDeviceRegisterEvents(void *device, unsigned long long types,
                             void *set)
{
    (void)set;
    return device == &gpus[0] && types == XID ? SUCCESS : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms)
{
    (void)set;
    for (long left = timeout_ms * 1000L; left > 0; left -= STEP_US) {
        FILE *xids = file("xids");
        int count = 0;

        if (is_there("gone"))
            return GPU_IS_LOST;
        if (xids) {
            fseek(xids, taken, SEEK_SET);
            count = fscanf(xids, "%llu\n", &event->data);
            taken = count == 1 ? ftell(xids) : taken;
            fclose(xids);
        }
        if (count == 1)
            return SUCCESS;
        usleep(STEP_US);
    }
    return TIMEOUT;
}
