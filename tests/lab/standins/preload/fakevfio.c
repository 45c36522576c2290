/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * fakevfio: LD_PRELOAD for an unmodified qemu-system-x86_64, so that domains
 * with host devices start on the fake host, which has no VFIO.
 *
 * "-device vfio-pci" stays what it is for libvirt: the same properties, QMP
 * commands and hot plug events.  Only its realize and exit are replaced: the
 * device becomes a PCI endpoint with one RAM BAR and the ids of the sysfs
 * node it names, and it holds the IOMMU group's /dev/vfio node by flock(2)
 * for as long as it lives.  It fails like the real one when the node is
 * missing, its driver is not a VFIO one, the group is not viable or in use.
 *
 * No QEMU header is needed: QEMU exports its functions to modules, the few
 * declarations in fakevfio_qemu.h are its QOM interface, and where a class keeps
 * its PCI ids is found by looking for the ones of "edu" (1234:11e8).
 * Tried with QEMU 7.2.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fakevfio_qemu.h"

#define FAIL(errp, ...)                                                   \
	error_setg_internal(errp, __FILE__, __LINE__, __func__, __VA_ARGS__)

#define EDU_VENDOR 0x1234
#define EDU_DEVICE 0x11e8
#define EDU_REVISION 0x10
#define EDU_CLASS 0x00ff
/* how far into a class or a device we look for something */
#define SEARCH 2048
/* ids that no device has: they mark the configuration space */
#define MARK_VENDOR 0xfa4e
#define MARK_DEVICE 0x0f10
/* what a device without ids in sysfs shows: those of mtty (4348:3253) */
#define MTTY_VENDOR 0x4348
#define MTTY_DEVICE 0x3253
#define MTTY_CLASS 0x070002
#define BAR_SIZE 4096
/* more than a MemoryRegion needs in any QEMU */
#define REGION_SIZE 4096
#define NAME_SIZE (NAME_MAX + 1)

/* ---- sysfs ------------------------------------------------------------ */

static bool read_hex(const char *dir, const char *name, uint32_t *value)
{
	char path[PATH_MAX + NAME_SIZE];
	FILE *file;
	int count;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = fopen(path, "r");
	if (!file)
		return false;
	count = fscanf(file, "%x", value);
	fclose(file);
	return count == 1;
}

/* the last component of what a link points to, "" without link */
static void link_name(const char *dir, const char *name, char *out)
{
	char path[PATH_MAX + NAME_SIZE], target[PATH_MAX];
	const char *base;
	ssize_t size;

	out[0] = '\0';
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	size = readlink(path, target, sizeof(target) - 1);
	if (size < 0)
		return;
	target[size] = '\0';
	base = strrchr(target, '/');
	snprintf(out, NAME_SIZE, "%s", base ? base + 1 : target);
}

static bool has_vfio_dev(const char *dir)
{
	char path[PATH_MAX + NAME_SIZE];

	snprintf(path, sizeof(path), "%s/vfio-dev", dir);
	return access(path, F_OK) == 0;
}

/* a group is viable when no member has a driver that does its own DMA */
static bool harmless(const char *driver)
{
	return !driver[0] || !strcmp(driver, "vfio-pci") ||
	       !strcmp(driver, "pci-stub") || !strcmp(driver, "pcieport");
}

static bool viable(const char *dir, char *culprit)
{
	char path[PATH_MAX + NAME_SIZE];
	char member[PATH_MAX + NAME_SIZE + NAME_MAX + 2], driver[NAME_SIZE];
	struct dirent *entry;
	bool good = true;
	DIR *group;

	snprintf(path, sizeof(path), "%s/iommu_group/devices", dir);
	group = opendir(path);
	if (!group)
		return true;
	while (good && (entry = readdir(group))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(member, sizeof(member), "%s/%s", path,
			 entry->d_name);
		link_name(member, "driver", driver);
		good = harmless(driver) || has_vfio_dev(member);
		if (!good)
			snprintf(culprit, NAME_SIZE, "%s", entry->d_name);
	}
	closedir(group);
	return good;
}

/* ---- groups this process holds ---------------------------------------- */

struct held {
	void *dev;
	char group[NAME_SIZE];
	int fd;
	struct held *next;
};
static struct held *all_held;

static bool hold_group(void *dev, const char *group)
{
	struct held *item, *mine = NULL;
	char path[NAME_SIZE * 2];
	int fd = -1, tries;

	for (item = all_held; item; item = item->next)
		if (!strcmp(item->group, group))
			mine = item;
	if (!mine) {
		snprintf(path, sizeof(path), "/dev/vfio/%s", group);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return false;
		/* the simulated kernel takes a short look now and then */
		for (tries = 10; flock(fd, LOCK_EX | LOCK_NB); tries--) {
			if (!tries) {
				close(fd);
				return false;
			}
			usleep(10000);
		}
	}
	item = calloc(1, sizeof(*item));
	item->dev = dev;
	item->fd = mine ? mine->fd : fd;
	snprintf(item->group, sizeof(item->group), "%s", group);
	item->next = all_held;
	all_held = item;
	return true;
}

static void let_go(void *dev)
{
	struct held **at = &all_held, *item, *other;

	while (*at && (*at)->dev != dev)
		at = &(*at)->next;
	item = *at;
	if (!item)
		return;
	*at = item->next;
	for (other = all_held; other; other = other->next)
		if (other->fd == item->fd)
			break;
	if (!other)
		close(item->fd);
	free(item);
}

/* ---- the device ------------------------------------------------------- */

/* PCIDevice.config: the pointer in the device to the ids we marked it with */
static uint8_t *config_space(void *dev)
{
	uint32_t mark = MARK_VENDOR | MARK_DEVICE << 16, seen;
	void *candidate;
	size_t at;

	for (at = sizeof(void *); at < SEARCH; at += sizeof(void *)) {
		struct iovec local = { &seen, sizeof(seen) }, remote;

		memcpy(&candidate, (char *)dev + at, sizeof(candidate));
		remote.iov_base = candidate;
		remote.iov_len = sizeof(seen);
		/* unlike a load this survives what is no pointer */
		if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) ==
			    sizeof(seen) &&
		    seen == mark)
			return candidate;
	}
	return NULL;
}

static bool write_ids(void *dev, const char *dir)
{
	uint32_t vendor = MTTY_VENDOR, device = MTTY_DEVICE;
	uint32_t class = MTTY_CLASS, subvendor = 0, subdevice = 0;
	char owner[PATH_MAX];
	uint8_t *config = config_space(dev);

	if (!config)
		return false;
	/* an mdev has no ids: take its parent's */
	snprintf(owner, sizeof(owner), "%s", dir);
	if (!read_hex(owner, "vendor", &vendor))
		*strrchr(owner, '/') = '\0';
	read_hex(owner, "vendor", &vendor);
	read_hex(owner, "device", &device);
	read_hex(owner, "class", &class);
	read_hex(owner, "subsystem_vendor", &subvendor);
	read_hex(owner, "subsystem_device", &subdevice);
	memcpy(config + 0x00, &vendor, 2);
	memcpy(config + 0x02, &device, 2);
	memcpy(config + 0x09, &class, 3);
	memcpy(config + 0x2c, &subvendor, 2);
	memcpy(config + 0x2e, &subdevice, 2);
	return true;
}

/* the node's real path; false when there is no such device */
static bool find_node(void *dev, char *named, char *path)
{
	char *sysfsdev = object_property_get_str(dev, "sysfsdev", NULL);

	if (sysfsdev && sysfsdev[0])
		snprintf(named, PATH_MAX, "%s", sysfsdev);
	else
		snprintf(named, PATH_MAX, "/sys/bus/pci/devices/%s",
			 object_property_get_str(dev, "host", NULL));
	return realpath(named, path) != NULL;
}

static void fake_realize(void *dev, void **errp)
{
	char named[PATH_MAX], path[PATH_MAX];
	char driver[NAME_SIZE], group[NAME_SIZE], culprit[NAME_SIZE];
	void *region;

	if (!find_node(dev, named, path)) {
		FAIL(errp, "vfio %s: no such host device", named);
		return;
	}
	link_name(path, "driver", driver);
	link_name(path, "iommu_group", group);
	if (!group[0]) {
		FAIL(errp, "vfio %s: no iommu_group found", path);
		return;
	}
	if (!strstr(driver, "vfio") && !has_vfio_dev(path)) {
		FAIL(errp, "vfio %s: not bound to a vfio driver but to '%s'",
		     path, driver);
		return;
	}
	if (!viable(path, culprit)) {
		FAIL(errp, "vfio %s: group %s is not viable: %s has another "
		     "driver", path, group, culprit);
		return;
	}
	if (!hold_group(dev, group)) {
		FAIL(errp, "vfio %s: failed to open /dev/vfio/%s: Device or "
		     "resource busy", path, group);
		return;
	}
	if (!write_ids(dev, path)) {
		let_go(dev);
		FAIL(errp, "fakevfio: this QEMU's PCIDevice is not known");
		return;
	}
	region = calloc(1, REGION_SIZE);
	memory_region_init_ram_nomigrate(region, dev, "fakevfio", BAR_SIZE,
					 NULL);
	pci_register_bar(dev, 0, 0, region);
}

static void fake_exit(void *dev)
{
	let_go(dev);
}

static void fake_reset(void *dev)
{
}

/* ---- getting there ---------------------------------------------------- */

/* where every PCI class keeps its struct pci_class, 0 when not found */
static size_t find_pci_class(void)
{
	char *edu = object_class_by_name("edu");
	size_t at;

	for (at = 0; edu && at < SEARCH; at += sizeof(void *)) {
		struct pci_class *seen = (struct pci_class *)(edu + at);

		if (seen->vendor_id == EDU_VENDOR &&
		    seen->device_id == EDU_DEVICE &&
		    seen->revision == EDU_REVISION &&
		    seen->class_id == EDU_CLASS)
			return at;
	}
	return 0;
}

static void replace_reset(void *class)
{
	void (*legacy)(void *, void *) =
		dlsym(RTLD_DEFAULT, "device_class_set_legacy_reset");
	void (*older)(void *, void *, void **) =
		dlsym(RTLD_DEFAULT, "device_class_set_parent_reset");
	void *before;

	if (legacy)
		legacy(class, fake_reset);
	else if (older)
		older(class, fake_reset, &before);
}

static void patch(char *class, size_t at)
{
	struct pci_class *pci = (struct pci_class *)(class + at);

	pci->realize = fake_realize;
	pci->exit = fake_exit;
	pci->config_read = pci_default_read_config;
	pci->config_write = pci_default_write_config;
	pci->vendor_id = MARK_VENDOR;
	pci->device_id = MARK_DEVICE;
	replace_reset(class);
}

/*
 * QEMU initialises the classes of all types when it looks for machines,
 * before it makes a device; this class is derived from vfio-pci, which is
 * therefore complete when this runs.
 */
static void class_init(void *class, void *data)
{
	static const char *const names[] = { "vfio-pci",
					     "vfio-pci-nohotplug" };
	size_t at = find_pci_class(), i;

	if (!at) {
		fprintf(stderr, "fakevfio: cannot find PCIDeviceClass in "
				"this QEMU\n");
		exit(1);
	}
	patch(class, at);
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char *known = object_class_by_name(names[i]);

		if (known)
			patch(known, at);
	}
}

__attribute__((constructor)) static void load(void)
{
	static const struct type_info hook = {
		.name = "x-fakevfio-hook",
		.parent = "vfio-pci",
		.class_init = class_init,
	};

	type_register_static(&hook);
	/* children of the emulator are none of our business */
	unsetenv("LD_PRELOAD");
}
