/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The migration of a function of the form "vfio". */
#ifndef FAKENVIDIA_MIGRATION_H
#define FAKENVIDIA_MIGRATION_H

#include <linux/vfio_pci_core.h>

struct migration {
	struct mutex lock;
	enum vfio_device_mig_state state;
	/* the file that carries the state, while the guest leaves or arrives */
	struct file *file;
};

void migration_init(struct vfio_device *vdev, struct migration *migration);
void migration_reset(struct migration *migration);

/* What fakenvidia_vfio.c knows of a function: its migration, its type. */
struct migration *migration_of(struct vfio_device *vdev);
unsigned int type_number_of(struct vfio_device *vdev);

#endif
