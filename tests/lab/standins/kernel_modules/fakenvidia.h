/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Declarations of the three parts of the fake NVIDIA host driver. */
#ifndef FAKENVIDIA_H
#define FAKENVIDIA_H

#include <linux/mutex.h>
#include <linux/pci.h>

/* One vGPU type; framebuffer in MiB. */
struct vgpu_type {
	unsigned int number;
	const char *id;
	const char *name;
	unsigned int framebuffer;
	unsigned int max_instance;
};

/* One card: the state that all of its functions share. */
struct card {
	struct list_head node;
	struct pci_dev *physical;
	unsigned int functions;
	const struct vgpu_type *types;
	unsigned int type_count;
	unsigned int framebuffer;
	unsigned int vgpus;
	/* one bit for each GiB that a vGPU of the vfio form occupies */
	unsigned long long placed;
};

/* Held while the state of a card, or the type of a VF, changes. */
extern struct mutex card_lock;

unsigned int card_left(const struct card *card, const struct vgpu_type *type);
int card_take(struct card *card, const struct vgpu_type *type);
void card_give(struct card *card);

/* The form "mdev": fakenvidia_mdev.c */
int mdev_form_init(void);
void mdev_form_exit(void);
int mdev_form_probe(struct pci_dev *pdev, struct card *card,
		    unsigned int slots);
struct card *mdev_form_remove(struct pci_dev *pdev);

/* The form "vfio": fakenvidia_vfio.c */
int vfio_form_probe(struct pci_dev *pdev, struct card *card);
struct card *vfio_form_remove(struct pci_dev *pdev);

#endif
