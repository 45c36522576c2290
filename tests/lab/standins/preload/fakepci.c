/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * fakepci: PCI Express functions of any identity inside an unmodified QEMU.
 *
 * Loaded with LD_PRELOAD into qemu-system-x86_64 (7.2 to 10.0).  QEMU is
 * linked with -rdynamic, so the object model and the PCI core are callable
 * from a preloaded library; each entry of $FAKEPCI becomes a QOM type that
 * "-device NAME,bus=ROOTPORT" instantiates.  The functions have a PCIe
 * endpoint capability, function level reset, memory BARs and, on request, an
 * SR-IOV capability whose virtual functions are a second type, NAME-vf.
 * Nothing happens behind the BARs, which are plain memory, but behind BAR 0
 * of a function with dfl=1: there is the FPGA card of fakedfl.c.
 *
 *   FAKEPCI = entry *( ";" entry )
 *   entry   = name *( "," key "=" value )
 *   keys    vendor device class revision subvendor subdevice   (hexadecimal)
 *           bar0 bar1 bar2       sizes, with K, M or G; BAR 0 is 32 bit,
 *                                the others 64 bit prefetchable (at 1, 3)
 *           vfs vfoffset vfstride   decimal; vfs > 0 adds SR-IOV
 *           vfdevice                hexadecimal; default: device
 *           vfbar0 vfbar1           sizes of the virtual functions' BARs
 *           dfl                     1: BAR 0 is that of an FPGA card
 *           aer                     1: Advanced Error Reporting; without vfs
 *
 * No QEMU header is used.  The one structure whose layout matters,
 * PCIDeviceClass, is measured at run time on QEMU's "edu" device, whose
 * identity is documented (docs/specs/edu: 1234:11e8).
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fakedfl.h"

/* ---- what is used of QEMU: include/qom/object.h, include/hw/pci ---- */

struct interface_info {
	const char *type;
};

struct type_info {
	const char *name;
	const char *parent;
	size_t instance_size;
	size_t instance_align;
	void (*instance_init)(void *obj);
	void (*instance_post_init)(void *obj);
	void (*instance_finalize)(void *obj);
	bool abstract;
	size_t class_size;
	void (*class_init)(void *klass, void *data);
	void (*class_base_init)(void *klass, void *data);
	void *class_data;
	struct interface_info *interfaces;
};

void *type_register_static(const struct type_info *info);
void *object_class_by_name(const char *name);
const char *object_get_typename(const void *obj);
int pcie_endpoint_cap_init(void *dev, uint8_t offset);
void pcie_cap_flr_init(void *dev);
void pcie_cap_flr_write_config(void *dev, uint32_t addr, uint32_t val,
			       int len);
void pcie_ari_init(void *dev, uint16_t offset, uint16_t nextfn);
int pcie_aer_init(void *dev, uint8_t version, uint16_t offset, uint16_t size,
		  void *errp);
void pcie_aer_exit(void *dev);
void pcie_sriov_pf_init(void *dev, uint16_t offset, const char *vfname,
			uint16_t vf_dev_id, uint16_t init_vfs,
			uint16_t total_vfs, uint16_t vf_offset,
			uint16_t vf_stride, void *errp);
void pcie_sriov_pf_init_vf_bar(void *dev, int region, uint8_t type,
			       uint64_t size);
void pcie_sriov_pf_exit(void *dev);
void pcie_sriov_vf_register_bar(void *dev, int region, void *mr);
void pci_register_bar(void *dev, int region, uint8_t type, void *mr);
void pci_default_write_config(void *dev, uint32_t addr, uint32_t val,
			      int len);
void memory_region_init_ram_nomigrate(void *mr, void *owner,
				      const char *name, uint64_t size,
				      void *errp);

/* PCIDeviceClass from its first own member on */
struct pci_class_tail {
	void (*realize)(void *dev, void **errp);
	void (*exit)(void *dev);
	uint32_t (*config_read)(void *dev, uint32_t addr, int len);
	void (*config_write)(void *dev, uint32_t addr, uint32_t val, int len);
	uint16_t vendor;
	uint16_t device;
	uint8_t revision;
	uint16_t class_id;
	uint16_t subvendor;
	uint16_t subdevice;
};

/* ---- constants of the PCI specification and of our layout ---- */

enum {
	BAR_MEM32 = 0x00,
	BAR_MEM64_PREFETCH = 0x0c,
	CAP_EXPRESS = 0x80,	/* in conventional configuration space */
	ECAP_ARI = 0x100,	/* extended capabilities; the first is here */
	ECAP_AER = 0x100,
	AER_VERSION = 2,
	AER_SIZE = 0x48,
	ECAP_SRIOV = 0x160,
	MEMORY_REGION_ROOM = 4096,	/* > sizeof(MemoryRegion), any QEMU */
	MAX_BARS = 3,
	MAX_FUNCTIONS = 32,
};

struct function {
	char name[64];
	const struct function *physical;	/* set in a virtual function */
	unsigned vendor, device, class_id, revision, subvendor, subdevice;
	unsigned vfs, vf_device, vf_offset, vf_stride, dfl, aer;
	uint64_t bar[MAX_BARS];
	uint64_t vf_bar[MAX_BARS];
};

static struct function functions[MAX_FUNCTIONS];
static int function_count;

static void die(const char *what, const char *which)
{
	fprintf(stderr, "fakepci: %s: %s\n", what, which);
	exit(1);
}

static struct function *function_of(void *dev)
{
	const char *name = object_get_typename(dev);

	for (int i = 0; i < function_count; i++)
		if (!strcmp(functions[i].name, name))
			return &functions[i];
	die("no such function", name);
	return NULL;
}

/* ---- the device ---- */

static void *new_bar(void *dev, const struct function *f, int number,
		     uint64_t size)
{
	void *region = calloc(1, MEMORY_REGION_ROOM);
	char name[96];

	snprintf(name, sizeof(name), "%.63s-bar%d", f->name, number);
	if (f->dfl && !number) {
		(f->physical ? fakedfl_new_vf_bar : fakedfl_new_bar)(
			dev, region, name, size);
		return region;
	}
	memory_region_init_ram_nomigrate(region, dev, name, size, NULL);
	return region;
}

static void realize_virtual(void *dev, const struct function *f)
{
	pcie_ari_init(dev, ECAP_ARI, 1);
	for (int i = 0; i < MAX_BARS; i++)
		if (f->physical->vf_bar[i])
			pcie_sriov_vf_register_bar(
				dev, i * 2,
				new_bar(dev, f, i, f->physical->vf_bar[i]));
}

static void realize_physical(void *dev, const struct function *f)
{
	char vf_name[80];

	for (int i = 0; i < MAX_BARS; i++)
		if (f->bar[i])
			pci_register_bar(dev, i ? i * 2 - 1 : 0,
					 i ? BAR_MEM64_PREFETCH : BAR_MEM32,
					 new_bar(dev, f, i, f->bar[i]));
	if (f->aer)
		pcie_aer_init(dev, AER_VERSION, ECAP_AER, AER_SIZE, NULL);
	if (!f->vfs)
		return;
	snprintf(vf_name, sizeof(vf_name), "%.60s-vf", f->name);
	pcie_ari_init(dev, ECAP_ARI, 1);
	pcie_sriov_pf_init(dev, ECAP_SRIOV, strdup(vf_name), f->vf_device,
			   f->vfs, f->vfs, f->vf_offset, f->vf_stride, NULL);
	for (int i = 0; i < MAX_BARS; i++)
		if (f->vf_bar[i])
			pcie_sriov_pf_init_vf_bar(dev, i * 2,
						  BAR_MEM64_PREFETCH,
						  f->vf_bar[i]);
}

static void fake_realize(void *dev, void **errp)
{
	const struct function *f = function_of(dev);

	(void)errp;
	pcie_endpoint_cap_init(dev, CAP_EXPRESS);
	pcie_cap_flr_init(dev);
	if (f->physical)
		realize_virtual(dev, f);
	else
		realize_physical(dev, f);
}

static void fake_exit(void *dev)
{
	const struct function *f = function_of(dev);

	if (f->aer)
		pcie_aer_exit(dev);
	if (f->vfs)
		pcie_sriov_pf_exit(dev);
}

static void fake_write_config(void *dev, uint32_t addr, uint32_t val, int len)
{
	if (fakedfl_is_gone(dev))
		return;
	pci_default_write_config(dev, addr, val, len);
	pcie_cap_flr_write_config(dev, addr, val, len);
}

/* ---- the class ---- */

/* Offset of pci_class_tail: where "edu" keeps 1234:11e8, rev 10, 00ff. */
static ptrdiff_t tail_offset(void)
{
	static ptrdiff_t found;
	const unsigned char *edu = object_class_by_name("edu");

	for (ptrdiff_t o = 0; edu && !found && o < 1024; o += 8) {
		const struct pci_class_tail *t = (const void *)(edu + o);

		if (t->vendor == 0x1234 && t->device == 0x11e8 &&
		    t->revision == 0x10 && t->class_id == 0x00ff)
			found = o;
	}
	if (!found)
		die("this QEMU's PCIDeviceClass is not understood", "edu");
	return found;
}

static void fake_class_init(void *klass, void *data)
{
	const struct function *f = data;
	struct pci_class_tail *t = (void *)((char *)klass + tail_offset());

	t->realize = fake_realize;
	t->exit = fake_exit;
	t->config_write = fake_write_config;
	if (f->dfl) {
		t->config_read = fakedfl_read_config;
		fakedfl_class_init(klass);
	}
	t->vendor = f->vendor;
	t->device = f->device;
	t->revision = f->revision;
	t->class_id = f->class_id;
	t->subvendor = f->subvendor;
	t->subdevice = f->subdevice;
}

static void register_function(struct function *f)
{
	static struct interface_info interfaces[] = {
		{ "pci-express-device" }, { NULL }
	};
	struct type_info info = {
		.name = f->name,
		.parent = "pci-device",
		.class_init = fake_class_init,
		.class_data = f,
		.interfaces = interfaces,
	};

	type_register_static(&info);
}

/* ---- $FAKEPCI ---- */

static uint64_t parse_size(const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 0);

	switch (*end) {
	case 'K':
		return n << 10;
	case 'M':
		return n << 20;
	case 'G':
		return n << 30;
	default:
		return n;
	}
}

static bool set_number(struct function *f, const char *key, const char *value)
{
	const struct {
		const char *key;
		int base;
		unsigned *where;
	} fields[] = {
		{ "vendor", 16, &f->vendor },
		{ "device", 16, &f->device },
		{ "class", 16, &f->class_id },
		{ "revision", 16, &f->revision },
		{ "subvendor", 16, &f->subvendor },
		{ "subdevice", 16, &f->subdevice },
		{ "vfdevice", 16, &f->vf_device },
		{ "vfs", 10, &f->vfs },
		{ "vfoffset", 10, &f->vf_offset },
		{ "vfstride", 10, &f->vf_stride },
		{ "dfl", 10, &f->dfl },
		{ "aer", 10, &f->aer },
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (strcmp(key, fields[i].key))
			continue;
		*fields[i].where = strtoul(value, NULL, fields[i].base);
		return true;
	}
	return false;
}

static bool set_bar(struct function *f, const char *key, const char *value)
{
	bool vf = !strncmp(key, "vf", 2);
	const char *rest = vf ? key + 2 : key;
	int n = rest[0] && rest[1] && rest[2] ? rest[3] - '0' : -1;

	if (strncmp(rest, "bar", 3) || n < 0 || n >= MAX_BARS || rest[4])
		return false;
	(vf ? f->vf_bar : f->bar)[n] = parse_size(value);
	return true;
}

static struct function *next_function(void)
{
	if (function_count == MAX_FUNCTIONS)
		die("too many functions in", "FAKEPCI");
	return &functions[function_count++];
}

static void parse_entry(char *entry)
{
	struct function *f = next_function(), *vf;
	char vf_name[64], *state, *word = strtok_r(entry, ",", &state);

	snprintf(f->name, sizeof(f->name), "%s", word ? word : "");
	f->vf_offset = 1;
	f->vf_stride = 1;
	while ((word = strtok_r(NULL, ",", &state))) {
		char *value = strchr(word, '=');

		if (!value)
			die("not key=value", word);
		*value++ = '\0';
		if (!set_number(f, word, value) && !set_bar(f, word, value))
			die("unknown key", word);
	}
	if (f->aer && f->vfs)
		die("aer with vfs", f->name);
	if (!f->subvendor)
		f->subvendor = f->vendor;
	if (!f->vf_device)
		f->vf_device = f->device;
	register_function(f);
	if (!f->vfs)
		return;
	vf = next_function();
	*vf = *f;
	vf->physical = f;
	vf->vfs = 0;
	vf->device = f->vf_device;
	snprintf(vf_name, sizeof(vf_name), "%.60s-vf", f->name);
	memcpy(vf->name, vf_name, sizeof(vf->name));
	register_function(vf);
}

__attribute__((constructor)) static void fakepci_init(void)
{
	const char *env = getenv("FAKEPCI");
	char *text, *state;

	/* what QEMU starts is not our business */
	unsetenv("LD_PRELOAD");
	if (!env)
		return;
	text = strdup(env);
	for (char *entry = strtok_r(text, ";", &state); entry;
	     entry = strtok_r(NULL, ";", &state))
		parse_entry(entry);
}
