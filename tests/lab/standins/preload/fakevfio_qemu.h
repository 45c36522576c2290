/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What fakevfio.c uses of QEMU's interface; as of QEMU 7.2. */
#ifndef FAKEVFIO_QEMU_H
#define FAKEVFIO_QEMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* include/qom/object.h */
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
	void *interfaces;
};

/* include/hw/pci/pci_device.h: PCIDeviceClass after its parent */
struct pci_class {
	void (*realize)(void *dev, void **errp);
	void (*exit)(void *dev);
	uint32_t (*config_read)(void *dev, uint32_t addr, int len);
	void (*config_write)(void *dev, uint32_t addr, uint32_t val, int len);
	uint16_t vendor_id;
	uint16_t device_id;
	uint8_t revision;
	uint16_t class_id;
};

/* exported by the emulator */
void *type_register_static(const struct type_info *info);
void *object_class_by_name(const char *name);
char *object_property_get_str(void *obj, const char *name, void **errp);
uint32_t pci_default_read_config(void *dev, uint32_t addr, int len);
void pci_default_write_config(void *dev, uint32_t addr, uint32_t val,
			      int len);
void pci_register_bar(void *dev, int bar, uint8_t type, void *region);
void memory_region_init_ram_nomigrate(void *region, void *owner,
				      const char *name, uint64_t size,
				      void **errp);
void error_setg_internal(void **errp, const char *file, int line,
			 const char *func, const char *fmt, ...);

#endif
