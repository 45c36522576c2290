/* SPDX-License-Identifier: Apache-2.0 */
/*
 * norlimit: for a libvirtd whose root lacks CAP_SYS_RESOURCE (containers,
 * small virtual machines).  libvirt raises RLIMIT_MEMLOCK of a domain with a
 * VFIO device and gives up when the kernel says EPERM.  Loaded with
 * LD_PRELOAD, this makes exactly that refusal look like success.  It does
 * not raise the limit: good for a simulated VFIO, useless for a real one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/resource.h>
#include <sys/types.h>

static int forgive(int rc, int resource)
{
	return rc && errno == EPERM && resource == RLIMIT_MEMLOCK ? 0 : rc;
}

int prlimit64(pid_t pid, __rlimit_resource_t resource,
	      const struct rlimit64 *new_limit, struct rlimit64 *old_limit)
{
	int (*next)(pid_t, __rlimit_resource_t, const struct rlimit64 *,
		    struct rlimit64 *) = dlsym(RTLD_NEXT, "prlimit64");

	return forgive(next(pid, resource, new_limit, old_limit), resource);
}

int prlimit(pid_t pid, __rlimit_resource_t resource,
	    const struct rlimit *new_limit, struct rlimit *old_limit)
{
	int (*next)(pid_t, __rlimit_resource_t, const struct rlimit *,
		    struct rlimit *) = dlsym(RTLD_NEXT, "prlimit");

	return forgive(next(pid, resource, new_limit, old_limit), resource);
}

int setrlimit64(__rlimit_resource_t resource, const struct rlimit64 *limit)
{
	int (*next)(__rlimit_resource_t, const struct rlimit64 *) =
		dlsym(RTLD_NEXT, "setrlimit64");

	return forgive(next(resource, limit), resource);
}

int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit)
{
	int (*next)(__rlimit_resource_t, const struct rlimit *) =
		dlsym(RTLD_NEXT, "setrlimit");

	return forgive(next(resource, limit), resource);
}
