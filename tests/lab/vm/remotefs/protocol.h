/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remotefs: the files of one directory, over a byte stream, errno included.
 *
 * sysfs answers a refused write with an errno that says why (ENOSPC: no
 * instance left; EBUSY: in use).  SFTP has no such numbers, so the lab uses
 * this instead.  One request, one answer; nothing is kept between them but the
 * pieces of an ioctl's buffer.
 * Both ends are built on the same machine: native byte order and layout.
 */
#ifndef REMOTEFS_PROTOCOL_H
#define REMOTEFS_PROTOCOL_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

enum remote_op {
	REMOTE_LSTAT = 1,	/* answer: struct remote_stat */
	REMOTE_READLINK,	/* answer: the target */
	REMOTE_READDIR,		/* answer: names, each ended by a NUL */
	REMOTE_OPEN,		/* arg: open(2) flags; answer: nothing */
	REMOTE_READ,		/* arg: most bytes; answer: the bytes */
	REMOTE_WRITE,		/* then arg bytes; answer's arg: written */
	REMOTE_LOAD,		/* data: a piece, at offset, of the buffer of
				 * the next IOCTL on this connection */
	REMOTE_IOCTL,		/* arg: its number; data: what arg points at;
				 * answer: nothing */
};

enum {
	REMOTE_MAX_PATH = 4096,
	REMOTE_MAX_DATA = 1 << 20,
	REMOTE_MAX_LOAD = 512 << 20,
};

/* The requests that are carried, of linux/fpga-dfl.h. */
#define REMOTE_PORT_PR		0xb680u		/* _IO(0xB6, 0x80) */
#define REMOTE_PORT_RELEASE	0x4004b681u	/* _IOW(0xB6, 0x81, int) */
#define REMOTE_PORT_ASSIGN	0x4004b682u	/* _IOW(0xB6, 0x82, int) */

/* struct dfl_fpga_fme_port_pr */
struct remote_port_pr {
	uint32_t argsz, flags, port_id, buffer_size;
	uint64_t buffer_address;
};

/* followed by the path (relative, no leading slash), then WRITE's data */
struct remote_request {
	uint32_t op;
	uint32_t arg;
	uint64_t offset;
	uint32_t path_size;
	uint32_t data_size;
};

struct remote_answer {
	int32_t error;		/* an errno of the far side, or 0 */
	uint32_t arg;
	uint32_t data_size;
};

struct remote_stat {
	uint32_t mode, uid, gid, nlink;
	uint64_t size, inode;
	int64_t mtime_s;
};

/* Read exactly size bytes; 0, or -1 at the end or on an error. */
static inline int remote_get(int fd, void *data, size_t size)
{
	char *at = data;

	while (size) {
		ssize_t n = read(fd, at, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		at += n;
		size -= n;
	}
	return 0;
}

/* Write exactly size bytes; 0, or -1 on an error. */
static inline int remote_put(int fd, const void *data, size_t size)
{
	const char *at = data;

	while (size) {
		ssize_t n = write(fd, at, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		at += n;
		size -= n;
	}
	return 0;
}

#endif
