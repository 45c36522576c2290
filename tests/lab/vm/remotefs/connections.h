/* SPDX-License-Identifier: Apache-2.0 */
/* remotefs client: requests, as many at once as there are connections. */
#ifndef REMOTEFS_CONNECTIONS_H
#define REMOTEFS_CONNECTIONS_H

#include "protocol.h"

struct call {
	enum remote_op op;
	const char *path;
	uint32_t arg;
	uint64_t offset;
	const void *out;
	uint32_t out_size;
	void *in;
	uint32_t in_size;
};

/* Make a connection to a Unix socket; 0 or -1. */
int attach(const char *name);
/* Wait for a connection and keep it; -1 when all is over. */
int take(void);
/* Give it back; one that failed ends all. */
void give(int fd, int failed);
/* One request on it; a size, or a negative errno of the far side. */
int converse(int fd, const struct call *call, int *failed);
/* One request, on whichever connection is free. */
int ask(enum remote_op op, const char *path, uint32_t arg, uint64_t offset,
	const void *out, uint32_t out_size, void *in, uint32_t in_size);

#endif
