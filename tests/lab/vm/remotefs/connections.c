/* SPDX-License-Identifier: Apache-2.0 */
/* remotefs client: its connections to the server; see connections.h. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "connections.h"

enum { MAX_CONNECTIONS = 16 };

static int idle[MAX_CONNECTIONS];
static int idle_count;
static int broken;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t freed = PTHREAD_COND_INITIALIZER;

int take(void)
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
void give(int fd, int failed)
{
	pthread_mutex_lock(&lock);
	idle[idle_count++] = fd;
	broken |= failed;
	pthread_cond_broadcast(&freed);
	pthread_mutex_unlock(&lock);
}

int attach(const char *name)
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
 * One request and its answer on a connection.  Returns the size of what came
 * (for a write: of what was written), or a negative errno of the far side;
 * sets failed when the connection is of no more use.
 */
int converse(int fd, const struct call *call, int *failed)
{
	struct remote_request request = { .op = call->op,
					  .arg = call->arg,
					  .offset = call->offset,
					  .data_size = call->out_size };
	struct remote_answer answer;
	char head[sizeof(request) + REMOTE_MAX_PATH];
	const char *path = call->path + (*call->path == '/');

	request.path_size = strlen(path);
	if (request.path_size >= REMOTE_MAX_PATH)
		return -ENAMETOOLONG;
	memcpy(head, &request, sizeof(request));
	memcpy(head + sizeof(request), path, request.path_size);
	*failed = remote_put(fd, head, sizeof(request) + request.path_size) ||
		  remote_put(fd, call->out, call->out_size) ||
		  remote_get(fd, &answer, sizeof(answer)) ||
		  answer.data_size > call->in_size ||
		  remote_get(fd, call->in, answer.data_size);
	if (*failed)
		return -ENOTCONN;
	if (answer.error)
		return -answer.error;
	return call->op == REMOTE_WRITE ? answer.arg : answer.data_size;
}

/* The same on a connection of its own. */
int ask(enum remote_op op, const char *path, uint32_t arg, uint64_t offset,
	const void *out, uint32_t out_size, void *in, uint32_t in_size)
{
	struct call call = { op, path, arg, offset, out, out_size, in,
			     in_size };
	int failed = 0, fd = take(), n;

	if (fd < 0)
		return -ENOTCONN;
	n = converse(fd, &call, &failed);
	give(fd, failed);
	return n;
}
