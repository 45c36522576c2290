/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remotefs client: "client MOUNTPOINT SOCKET..." mounts what a remotefs
 * server shows, and stays in the foreground.  Each Unix socket is QEMU's end
 * of one virtio-serial port.
 *
 * No value is cached, and a name for a twentieth of a second only: less than
 * a program waits between two reads of a directory that changes.
 * As many requests run at once as there are sockets, so that a slow write
 * (sriov_numvfs) delays no other call.
 *
 * "client --devices ..." is for a server that shows a /dev: its devices whose
 * names begin with "dfl-" are files here that know their ioctls, and all else
 * is this machine's own /dev, so that the mount can be laid over that.
 */
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "connections.h"

/* ---- this machine's devices, beside those of the far side ---- */

static int devices = -1;	/* our /dev, with --devices */

static int is_ours(const char *path)
{
	return devices >= 0 && strncmp(path, "/dfl-", 5);
}

static const char *relative(const char *path)
{
	return path[1] ? path + 1 : ".";
}

static int list_ours(const char *path, void *buffer, fuse_fill_dir_t fill)
{
	int fd = openat(devices, relative(path), O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	if (!dir)
		return -errno;
	while ((entry = readdir(dir)))
		if (strncmp(entry->d_name, "dfl-", 4))
			fill(buffer, entry->d_name, NULL, 0, 0);
	closedir(dir);
	return 0;
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
	int n;

	(void)file;
	if (is_ours(path))
		return fstatat(devices, relative(path), st,
			       AT_SYMLINK_NOFOLLOW) ?
			       -errno :
			       0;
	n = ask(REMOTE_LSTAT, path, 0, 0, NULL, 0, &in, sizeof(in));
	if (n < 0)
		return n;
	memset(st, 0, sizeof(*st));
	/* a device number means nothing here: a file of the server */
	st->st_mode = devices < 0 ? in.mode :
				    S_IFREG | (in.mode & ~S_IFMT);
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
	int n = is_ours(path) ? readlinkat(devices, relative(path), buffer,
					   size - 1) :
				ask(REMOTE_READLINK, path, 0, 0, NULL, 0,
				    buffer, size - 1);

	if (n < 0)
		return is_ours(path) ? -errno : n;
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
	if (is_ours(path) && path[1]) {
		free(names);
		return list_ours(path, buffer, fill);
	}
	if (names)
		n = ask(REMOTE_READDIR, path, 0, 0, NULL, 0, names,
			REMOTE_MAX_DATA);
	for (char *at = names; n > 0 && at < names + n; at += strlen(at) + 1)
		if (devices < 0 || !strncmp(at, "dfl-", 4))
			fill(buffer, at, NULL, 0, 0);
	free(names);
	if (n >= 0 && devices >= 0)
		n = list_ours(path, buffer, fill);
	return n < 0 ? n : 0;
}

/* An open file: where a short read found its end; -1 before one did. */
static int fs_open(const char *path, struct fuse_file_info *file)
{
	int n = is_ours(path) ? -EACCES :
				ask(REMOTE_OPEN, path, file->flags, 0, NULL,
				    0, NULL, 0);
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

/* ---- ioctls ---- */

/* Copy from the caller's memory. */
static int copy_from_caller(void *to, uint64_t from, size_t size)
{
	struct iovec here = { to, size };
	struct iovec there = { (void *)(uintptr_t)from, size };
	pid_t caller = fuse_get_context()->pid;

	if (process_vm_readv(caller, &here, 1, &there, 1, 0) !=
	    (ssize_t)size)
		return -EFAULT;
	return 0;
}

/* Send the caller's buffer in pieces. */
static int send_buffer(int fd, const char *path, uint64_t from,
		       uint32_t size, int *failed)
{
	char *piece = malloc(REMOTE_MAX_DATA);
	int n = piece ? 0 : -ENOMEM;

	for (uint64_t at = 0; !n && at < size; at += REMOTE_MAX_DATA) {
		struct call call = { .op = REMOTE_LOAD, .path = path,
				     .offset = at, .out = piece };

		call.out_size = size - at < REMOTE_MAX_DATA ?
					size - at :
					REMOTE_MAX_DATA;
		n = copy_from_caller(piece, from + at, call.out_size);
		if (!n)
			n = converse(fd, &call, failed);
	}
	free(piece);
	return n;
}

/* Partial reconfiguration: arg is a pointer in the caller, to a pointer. */
static int program_port(const char *path, uint64_t arg)
{
	struct remote_port_pr pr;
	struct call call = { .op = REMOTE_IOCTL, .path = path,
			     .arg = REMOTE_PORT_PR, .out = &pr,
			     .out_size = sizeof(pr) };
	int failed = 0, fd, n = copy_from_caller(&pr, arg, sizeof(pr));

	if (n)
		return n;
	fd = take();
	if (fd < 0)
		return -ENOTCONN;
	n = send_buffer(fd, path, pr.buffer_address, pr.buffer_size, &failed);
	if (!n)
		n = converse(fd, &call, &failed);
	give(fd, failed);
	return n;
}

static int fs_ioctl(const char *path, unsigned int request, void *arg,
		    struct fuse_file_info *file, unsigned int flags,
		    void *data)
{
	(void)file;
	(void)flags;
	switch (is_ours(path) ? 0 : request) {
	case REMOTE_PORT_PR:
		return program_port(path, (uintptr_t)arg);
	case REMOTE_PORT_RELEASE:
	case REMOTE_PORT_ASSIGN:
		return ask(REMOTE_IOCTL, path, request, 0, data, sizeof(int),
			   NULL, 0);
	}
	return -ENOTTY;
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
	.ioctl = fs_ioctl,
};

int main(int argc, char **argv)
{
	const char *program = argv[0];

	if (argc > 1 && !strcmp(argv[1], "--devices")) {
		devices = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
		argc--;
		argv++;
	}
	if (argc < 3) {
		fprintf(stderr,
			"usage: client [--devices] MOUNTPOINT SOCKET...\n");
		return 2;
	}
	for (int i = 2; i < argc; i++) {
		if (attach(argv[i])) {
			perror(argv[i]);
			return 1;
		}
	}
	/* our own devices work through the mount, too */
	char *options = devices < 0 ? "fsname=lab-vm,subtype=remotefs" :
				      "fsname=lab-vm,subtype=remotefs,dev";
	char *arguments[] = { (char *)program, "-f", "-o", options, argv[1] };

	return fuse_main(5, arguments, &operations, NULL);
}
