/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remotefs server: "server DIRECTORY PORT..." answers requests for files of
 * DIRECTORY that arrive at virtio-serial ports, one process for each.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "protocol.h"

static int root;
static char path[REMOTE_MAX_PATH];
/* one buffer: an answer is one write */
static struct {
	struct remote_answer head;
	char data[REMOTE_MAX_DATA];
} out;
/* the buffer of the ioctl to come */
static char *loaded;
static size_t loaded_size;

static int escapes(const char *p)
{
	if (*p == '/')
		return 1;
	for (; p; p = strchr(p, '/')) {
		p += *p == '/';
		if (!strncmp(p, "..", 2) && (!p[2] || p[2] == '/'))
			return 1;
	}
	return 0;
}

static ssize_t do_lstat(void)
{
	struct stat st;
	struct remote_stat *to = (void *)out.data;

	if (fstatat(root, path, &st, AT_SYMLINK_NOFOLLOW))
		return -errno;
	to->mode = st.st_mode;
	to->uid = st.st_uid;
	to->gid = st.st_gid;
	to->nlink = st.st_nlink;
	to->size = st.st_size;
	to->inode = st.st_ino;
	to->mtime_s = st.st_mtime;
	return sizeof(*to);
}

static ssize_t do_readlink(void)
{
	ssize_t n = readlinkat(root, path, out.data, PATH_MAX);

	return n < 0 ? -errno : n;
}

static ssize_t do_readdir(void)
{
	size_t used = 0;
	int fd = openat(root, path, O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	if (!dir)
		return -errno;
	while ((entry = readdir(dir))) {
		size_t size = strlen(entry->d_name) + 1;

		if (used + size > sizeof(out.data))
			break;
		memcpy(out.data + used, entry->d_name, size);
		used += size;
	}
	closedir(dir);
	return used;
}

static ssize_t do_open(int flags)
{
	int fd = openat(root, path, flags & O_ACCMODE);

	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

static ssize_t do_read(size_t size, off_t offset)
{
	int fd = openat(root, path, O_RDONLY);
	ssize_t n;

	if (fd < 0)
		return -errno;
	if (size > sizeof(out.data))
		size = sizeof(out.data);
	n = pread(fd, out.data, size, offset);
	if (n < 0)
		n = -errno;
	close(fd);
	return n;
}

static ssize_t do_write(size_t size, off_t offset)
{
	int fd = openat(root, path, O_WRONLY);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = pwrite(fd, out.data, size, offset);
	if (n < 0)
		n = -errno;
	close(fd);
	return n;
}

static void unload(void)
{
	free(loaded);
	loaded = NULL;
	loaded_size = 0;
}

static ssize_t do_load(size_t size, size_t offset)
{
	char *more;

	if (!offset)
		unload();
	if (offset != loaded_size)
		return -EINVAL;
	more = offset + size > REMOTE_MAX_LOAD ?
		       NULL :
		       realloc(loaded, offset + size + 1);
	if (!more)
		return -ENOMEM;
	loaded = more;
	memcpy(loaded + offset, out.data, size);
	loaded_size = offset + size;
	return 0;
}

/* Let the pointer in the request, if it has one, point at our buffer. */
static ssize_t prepare_ioctl(unsigned request, size_t size)
{
	struct remote_port_pr *pr = (void *)out.data;

	switch (request) {
	case REMOTE_PORT_RELEASE:
	case REMOTE_PORT_ASSIGN:
		return size == sizeof(int) ? 0 : -EINVAL;
	case REMOTE_PORT_PR:
		if (size != sizeof(*pr) || pr->buffer_size != loaded_size)
			return -EINVAL;
		pr->buffer_address = (uintptr_t)loaded;
		return 0;
	}
	return -ENOTTY;
}

static ssize_t do_ioctl(unsigned request, size_t size)
{
	ssize_t n = prepare_ioctl(request, size);
	int fd;

	if (n)
		return n;
	fd = openat(root, path, O_RDWR);
	if (fd < 0)
		return -errno;
	if (ioctl(fd, request, out.data) < 0)
		n = -errno;
	close(fd);
	unload();
	return n;
}

/* Answer one request; -1 when the other side is gone. */
static int answer(int fd, const struct remote_request *request)
{
	ssize_t n;

	switch (escapes(path) ? 0 : request->op) {
	case REMOTE_LSTAT:
		n = do_lstat();
		break;
	case REMOTE_READLINK:
		n = do_readlink();
		break;
	case REMOTE_READDIR:
		n = do_readdir();
		break;
	case REMOTE_OPEN:
		n = do_open(request->arg);
		break;
	case REMOTE_READ:
		n = do_read(request->arg, request->offset);
		break;
	case REMOTE_WRITE:
		n = do_write(request->data_size, request->offset);
		break;
	case REMOTE_LOAD:
		n = do_load(request->data_size, request->offset);
		break;
	case REMOTE_IOCTL:
		n = do_ioctl(request->arg, request->data_size);
		break;
	default:
		n = -EINVAL;
	}
	memset(&out.head, 0, sizeof(out.head));
	if (n < 0)
		out.head.error = -n;
	else if (request->op == REMOTE_WRITE)
		out.head.arg = n;
	else
		out.head.data_size = n;
	return remote_put(fd, &out,
			  offsetof(typeof(out), data) + out.head.data_size);
}

/* Answer requests until the stream breaks. */
static void serve(int fd)
{
	struct remote_request request;

	while (!remote_get(fd, &request, sizeof(request))) {
		if (request.path_size >= sizeof(path) ||
		    request.data_size > sizeof(out.data) ||
		    remote_get(fd, path, request.path_size) ||
		    remote_get(fd, out.data, request.data_size))
			return;
		path[request.path_size] = '\0';
		if (!*path)
			strcpy(path, ".");
		if (answer(fd, &request))
			return;
	}
}

/* A port reads as ended while no program has the other side open: wait. */
static void serve_port(const char *name)
{
	struct pollfd port = { .fd = open(name, O_RDWR), .events = POLLIN };

	if (port.fd < 0) {
		perror(name);
		exit(1);
	}
	for (;;) {
		if (poll(&port, 1, -1) == 1 && !(port.revents & POLLHUP))
			serve(port.fd);
		usleep(20000);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3 || (root = open(argv[1], O_PATH | O_DIRECTORY)) < 0) {
		fprintf(stderr, "usage: server DIRECTORY PORT...\n");
		return 2;
	}
	for (int i = 2; i < argc; i++)
		if (!fork())
			serve_port(argv[i]);
	return 0;
}
