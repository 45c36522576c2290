/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the two halves of the form "mdev" share. */
#ifndef FAKENVIDIA_VGPU_H
#define FAKENVIDIA_VGPU_H

#include <linux/mdev.h>
#include <linux/vfio.h>

#include "fakenvidia.h"

struct vgpu {
	struct vfio_device vdev;
	struct mutex lock;
	u8 config[PCI_CFG_SPACE_SIZE];
	/* the bits of the configuration space that a guest may write */
	u8 writable[PCI_CFG_SPACE_SIZE];
	u8 *bar;
	char params[256];
};

extern const struct vfio_device_ops vgpu_ops;

const struct vgpu_type *vgpu_type_of(struct mdev_type *type);
struct card *card_of(struct mdev_type *type);

#endif
