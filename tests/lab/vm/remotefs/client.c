/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remotefs client: "client MOUNTPOINT SOCKET..." mounts what a remotefs
 * server shows, and stays in the foreground.  Each Unix socket is QEMU's end
 * of one virtio-serial port.
 *
 * No value is cached, and a name for a twentieth of a second only: less than
 * anybody waits between two looks for what comes or goes.
 * As many requests run at once as there are sockets, so that a slow write
 * (sriov_numvfs) holds nobody up.
 */
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "protocol.h"

enum { MAX_CONNECTIONS = 16 };

static int idle[MAX_CONNECTIONS];
static int idle_count;
static int broken;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t freed = PTHREAD_COND_INITIALIZER;

/* ---- the connections ---- */

static int take(void)
{
	int fd = -1;

	pthread_mutex_lock(&lock);
	while (!idle_count && !broken)
		pthread_cond_wait(&freed, &lock);
	if (!broken)
		fd = idle[--idle_count];
	pthread_mutex_unlock(&lock);
	return fd;
}

/* Give a connection back; a failed one is out of step: end all. */
static void give(int fd, int failed)
{
	pthread_mutex_lock(&lock);
	idle[idle_count++] = fd;
	broken |= failed;
	pthread_cond_broadcast(&freed);
	pthread_mutex_unlock(&lock);
}

static int attach(const char *name)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (strlen(name) >= sizeof(to.sun_path) ||
	    idle_count == MAX_CONNECTIONS)
		return -1;
	strcpy(to.sun_path, name);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return -1;
	idle[idle_count++] = fd;
	return 0;
}

/*
 * One request and its answer.  Returns the size of what came (for a write:
 * of what was written), or a negative errno of the far side.
 */
static int ask(enum remote_op op, const char *path, uint32_t arg,
	       uint64_t offset, const void *out, uint32_t out_size, void *in,
	       uint32_t in_size)
{
	struct remote_request request = { .op = op, .arg = arg,
					  .offset = offset,
					  .data_size = out_size };
	struct remote_answer answer;
	char head[sizeof(request) + REMOTE_MAX_PATH];
	int fd, failed;

	path += *path == '/';
	request.path_size = strlen(path);
	if (request.path_size >= REMOTE_MAX_PATH)
		return -ENAMETOOLONG;
	memcpy(head, &request, sizeof(request));
	memcpy(head + sizeof(request), path, request.path_size);
	fd = take();
	if (fd < 0)
		return -ENOTCONN;
	failed = remote_put(fd, head, sizeof(request) + request.path_size) ||
		 remote_put(fd, out, out_size) ||
		 remote_get(fd, &answer, sizeof(answer)) ||
		 answer.data_size > in_size ||
		 remote_get(fd, in, answer.data_size);
	give(fd, failed);
	if (failed)
		return -ENOTCONN;
	if (answer.error)
		return -answer.error;
	return op == REMOTE_WRITE ? answer.arg : answer.data_size;
}

/* ---- the file system ---- */

static void *fs_init(struct fuse_conn_info *info, struct fuse_config *config)
{
	(void)info;
	config->use_ino = 1;
	config->entry_timeout = 0.05;
	config->attr_timeout = 0.05;
	config->negative_timeout = 0;
	config->direct_io = 1;
	config->nullpath_ok = 0;
	return NULL;
}

static int fs_getattr(const char *path, struct stat *st,
		      struct fuse_file_info *file)
{
	struct remote_stat in;
	int n = ask(REMOTE_LSTAT, path, 0, 0, NULL, 0, &in, sizeof(in));

	(void)file;
	if (n < 0)
		return n;
	memset(st, 0, sizeof(*st));
	st->st_mode = in.mode;
	st->st_uid = in.uid;
	st->st_gid = in.gid;
	st->st_nlink = in.nlink;
	st->st_size = in.size;
	st->st_ino = in.inode;
	st->st_mtime = in.mtime_s;
	st->st_ctime = in.mtime_s;
	st->st_atime = in.mtime_s;
	return 0;
}

static int fs_readlink(const char *path, char *buffer, size_t size)
{
	int n = ask(REMOTE_READLINK, path, 0, 0, NULL, 0, buffer, size - 1);

	if (n < 0)
		return n;
	buffer[n] = '\0';
	return 0;
}

static int fs_readdir(const char *path, void *buffer, fuse_fill_dir_t fill,
		      off_t offset, struct fuse_file_info *file,
		      enum fuse_readdir_flags flags)
{
	char *names = malloc(REMOTE_MAX_DATA);
	int n = -ENOMEM;

	(void)offset;
	(void)file;
	(void)flags;
	if (names)
		n = ask(REMOTE_READDIR, path, 0, 0, NULL, 0, names,
			REMOTE_MAX_DATA);
	for (char *at = names; n > 0 && at < names + n; at += strlen(at) + 1)
		fill(buffer, at, NULL, 0, 0);
	free(names);
	return n < 0 ? n : 0;
}

/* An open file: where a short read found its end; -1 before one did. */
static int fs_open(const char *path, struct fuse_file_info *file)
{
	int n = ask(REMOTE_OPEN, path, file->flags, 0, NULL, 0, NULL, 0);
	off_t *end = n < 0 ? NULL : malloc(sizeof(*end));

	if (!end)
		return n < 0 ? n : -ENOMEM;
	*end = -1;
	file->fh = (uintptr_t)end;
	return 0;
}

static int fs_release(const char *path, struct fuse_file_info *file)
{
	(void)path;
	free((void *)(uintptr_t)file->fh);
	return 0;
}

static int fs_read(const char *path, char *buffer, size_t size, off_t offset,
		   struct fuse_file_info *file)
{
	off_t *end = (void *)(uintptr_t)file->fh;
	int n;

	/* who reads to the end asks once more after it */
	if (offset && offset == *end)
		return 0;
	n = ask(REMOTE_READ, path, size, offset, NULL, 0, buffer, size);
	*end = n >= 0 && (size_t)n < size ? offset + n : -1;
	return n;
}

static int fs_write(const char *path, const char *buffer, size_t size,
		    off_t offset, struct fuse_file_info *file)
{
	(void)file;
	return ask(REMOTE_WRITE, path, 0, offset, buffer, size, NULL, 0);
}

/* O_TRUNC comes as this; sysfs ignores it */
static int fs_truncate(const char *path, off_t size,
		       struct fuse_file_info *file)
{
	(void)path;
	(void)size;
	(void)file;
	return 0;
}

/* O_CREAT of what is not there: what a file system without create says */
static int fs_create(const char *path, mode_t mode,
		     struct fuse_file_info *file)
{
	(void)path;
	(void)mode;
	(void)file;
	return -EACCES;
}

static const struct fuse_operations operations = {
	.init = fs_init,
	.getattr = fs_getattr,
	.readlink = fs_readlink,
	.readdir = fs_readdir,
	.open = fs_open,
	.release = fs_release,
	.read = fs_read,
	.write = fs_write,
	.truncate = fs_truncate,
	.create = fs_create,
};

int main(int argc, char **argv)
{
	char *arguments[] = { argv[0], "-f", "-o",
			      "fsname=lab-vm,subtype=remotefs", argv[1] };

	if (argc < 3) {
		fprintf(stderr, "usage: client MOUNTPOINT SOCKET...\n");
		return 2;
	}
	for (int i = 2; i < argc; i++) {
		if (attach(argv[i])) {
			perror(argv[i]);
			return 1;
		}
	}
	return fuse_main(5, arguments, &operations, NULL);
}
