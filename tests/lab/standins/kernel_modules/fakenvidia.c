/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A fake of NVIDIA's vGPU host driver, for Linux 6.1 (Debian 12).
 *
 * It binds a T4 and an A40, with its virtual functions, under the driver
 * name "nvidia" and shows what the vendor's driver shows of its vGPUs, in
 * the form that the parameter chooses:
 *
 *   form=mdev   mediated device types, on the physical function of a card
 *               without SR-IOV, else on each virtual function
 *   form=vfio   the files nvidia/... of each virtual function, which is a
 *               VFIO device itself
 *
 * What it keeps of the original's rules: all vGPUs of a card have the same
 * framebuffer size; a card holds max_instance of a type; a virtual function
 * carries one vGPU; what can't be made is EIO.  Virtual functions come by
 * the script sriov-manage, for this driver, as the original, offers no
 * sriov_configure.  No vGPU computes anything.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/list.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "fakenvidia.h"

#define VENDOR 0x10de
#define T4 0x1eb8
#define A40 0x2235

static char *form = "mdev";
module_param(form, charp, 0444);
MODULE_PARM_DESC(form, "mdev or vfio");

DEFINE_MUTEX(card_lock);
static LIST_HEAD(cards);
static bool is_mdev;

#define TYPE(n, text, gib, most) \
	{ .number = n, .id = #n, .name = text, \
	  .framebuffer = (gib) * 1024, .max_instance = most }

/* Numbers and names: public listings, drivers 510 (T4) and 550 (A40). */
static const struct vgpu_type t4_types[] = {
	TYPE(230, "GRID T4-1Q", 1, 16),
	TYPE(231, "GRID T4-2Q", 2, 8),
	TYPE(232, "GRID T4-4Q", 4, 4),
	TYPE(233, "GRID T4-8Q", 8, 2),
	TYPE(234, "GRID T4-16Q", 16, 1),
	TYPE(319, "GRID T4-4C", 4, 4),
};

static const struct vgpu_type a40_types[] = {
	TYPE(555, "NVIDIA A40-1B", 1, 32),
	TYPE(560, "NVIDIA A40-4Q", 4, 12),
	TYPE(562, "NVIDIA A40-8Q", 8, 6),
	TYPE(564, "NVIDIA A40-16Q", 16, 3),
	TYPE(565, "NVIDIA A40-24Q", 24, 2),
	TYPE(566, "NVIDIA A40-48Q", 48, 1),
};

/* Return how many more of a type the card takes; under the lock. */
unsigned int card_left(const struct card *card, const struct vgpu_type *type)
{
	if (card->vgpus && card->framebuffer != type->framebuffer)
		return 0;
	if (card->vgpus >= type->max_instance)
		return 0;
	return type->max_instance - card->vgpus;
}

/* Account for one vGPU; -EIO when the card has no room; under the lock. */
int card_take(struct card *card, const struct vgpu_type *type)
{
	if (!card_left(card, type)) {
		pr_err("%s: no room for %s beside %u vGPUs of %u MiB\n",
		       pci_name(card->physical), type->name, card->vgpus,
		       card->framebuffer);
		return -EIO;
	}
	card->framebuffer = type->framebuffer;
	card->vgpus++;
	return 0;
}

/* Forget one vGPU; under the lock. */
void card_give(struct card *card)
{
	card->vgpus--;
}

static struct card *new_card(struct pci_dev *physical)
{
	struct card *card = kzalloc(sizeof(*card), GFP_KERNEL);

	if (!card)
		return NULL;
	card->physical = pci_dev_get(physical);
	if (physical->device == T4) {
		card->types = t4_types;
		card->type_count = ARRAY_SIZE(t4_types);
	} else {
		card->types = a40_types;
		card->type_count = ARRAY_SIZE(a40_types);
	}
	list_add(&card->node, &cards);
	return card;
}

static struct card *get_card(struct pci_dev *pdev)
{
	struct pci_dev *physical = pci_physfn(pdev);
	struct card *card, *found = NULL;

	mutex_lock(&card_lock);
	list_for_each_entry(card, &cards, node)
		if (card->physical == physical)
			found = card;
	if (!found)
		found = new_card(physical);
	if (found)
		found->functions++;
	mutex_unlock(&card_lock);
	return found;
}

static void put_card(struct card *card)
{
	mutex_lock(&card_lock);
	if (!--card->functions) {
		list_del(&card->node);
		pci_dev_put(card->physical);
		kfree(card);
	}
	mutex_unlock(&card_lock);
}

/* A function that offers nothing has no driver data. */
static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct card *card;
	int ret;

	if (!pdev->is_virtfn && (!is_mdev || pci_sriov_get_totalvfs(pdev)))
		return 0;
	card = get_card(pdev);
	if (!card)
		return -ENOMEM;
	if (is_mdev)
		ret = mdev_form_probe(pdev, card,
				      pdev->is_virtfn ? 1 : UINT_MAX);
	else
		ret = vfio_form_probe(pdev, card);
	if (ret)
		put_card(card);
	return ret;
}

static void unprobe(struct pci_dev *pdev)
{
	if (!pci_get_drvdata(pdev))
		return;
	put_card(is_mdev ? mdev_form_remove(pdev) : vfio_form_remove(pdev));
}

/* No MODULE_DEVICE_TABLE: udev must not load this before a test does. */
static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(VENDOR, T4) },
	{ PCI_DEVICE(VENDOR, A40) },
	{ }
};

static struct pci_driver driver = {
	.name = "nvidia",
	.id_table = ids,
	.probe = probe,
	.remove = unprobe,
	.driver_managed_dma = true,
};

static int __init fakenvidia_init(void)
{
	int ret = 0;

	is_mdev = !strcmp(form, "mdev");
	if (!is_mdev && strcmp(form, "vfio")) {
		pr_err("form=%s: give mdev or vfio\n", form);
		return -EINVAL;
	}
	if (is_mdev)
		ret = mdev_form_init();
	if (ret)
		return ret;
	ret = pci_register_driver(&driver);
	if (ret && is_mdev)
		mdev_form_exit();
	return ret;
}

static void __exit fakenvidia_exit(void)
{
	pci_unregister_driver(&driver);
	if (is_mdev)
		mdev_form_exit();
}

module_init(fakenvidia_init);
module_exit(fakenvidia_exit);
MODULE_LICENSE("GPL");
MODULE_VERSION("550.90.05");
MODULE_DESCRIPTION("fake vGPU host driver");
