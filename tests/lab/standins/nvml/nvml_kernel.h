// SPDX-License-Identifier: Apache-2.0
/* Calls of the fake NVML to the simulated kernel; see nvml.c. */
#ifndef NVML_KERNEL_H
#define NVML_KERNEL_H

#include <stdint.h>

typedef int nvmlReturn_t;
typedef void *handle;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

#define MAX_FIELDS 512
#define NAME_V2 96

struct answer {
    char text[65536];
    int count;
    const char *field[MAX_FIELDS];
};

/* A handle is a number, never an address: GPU, GPU instance, compute. */
#define GPU(index) ((handle)(uintptr_t)((index) + 1))
#define INDEX(h) ((unsigned)((uintptr_t)(h) & 0xff) - 1)
#define INSTANCE(h, id) ((handle)((uintptr_t)(h) | (uintptr_t)((id) + 1) << 8))
#define ID(h) ((unsigned)((uintptr_t)(h) >> 8 & 0xfff) - 1)
#define COMPUTE(h, id) ((handle)((uintptr_t)(h) | (uintptr_t)((id) + 1) << 20))
#define COMPUTE_ID(h) ((unsigned)((uintptr_t)(h) >> 20) - 1)
/* The GPU, or the GPU instance, that a handle is part of. */
#define GPU_OF(h) ((handle)((uintptr_t)(h) & 0xff))
#define INSTANCE_OF(h) ((handle)((uintptr_t)(h) & 0xfffff))

/* Of nvml.h, nvmlPciInfo_t. */
struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char address[32];
};

/* What a structure's version field holds: its size and number. */
#define VERSION(type, n) (sizeof(type) | (unsigned)(n) << 24)

/* No symbol of this may meet one of the program that loads the library. */
#pragma GCC visibility push(hidden)

/* Count one more user, or one less; both return an NVML code. */
nvmlReturn_t kernel_open(void);
nvmlReturn_t kernel_close(void);

/* Ask; what follows `count` are so many numbers, each a long long. */
nvmlReturn_t ask(struct answer *a, const char *call, int count, ...);

#define ASK0(call) ask(&a, call, 0)
#define ASK1(call, x) ask(&a, call, 1, (long long)(x))
#define ASK2(call, x, y) ask(&a, call, 2, (long long)(x), (long long)(y))
#define ASK3(call, x, y, z)                                                   \
    ask(&a, call, 3, (long long)(x), (long long)(y), (long long)(z))

unsigned long long number(const struct answer *a, int field);
/* Fill in where a function is, of its address; all else becomes 0. */
void locate(struct pci_info *info, const char *address);
void copy(char *to, unsigned size, const struct answer *a, int field);

#pragma GCC visibility pop

#endif
