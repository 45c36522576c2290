/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The form "mdev" of the fake driver: types on a parent, and the lives of the
 * vGPUs made of them.
 */
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "fakenvidia_vgpu.h"

struct parent_type {
	struct mdev_type type;
	const struct vgpu_type *vgpu;
};

struct vgpu_parent {
	struct mdev_parent parent;
	struct card *card;
	unsigned int slots;
	unsigned int used;
	struct mdev_type **pointers;
	struct parent_type types[];
};

static struct vgpu_parent *parent_of(struct mdev_type *type)
{
	return container_of(type->parent, struct vgpu_parent, parent);
}

const struct vgpu_type *vgpu_type_of(struct mdev_type *type)
{
	return container_of(type, struct parent_type, type)->vgpu;
}

struct card *card_of(struct mdev_type *type)
{
	return parent_of(type)->card;
}

/* ---- its life ---- */

static int take_slot(struct vgpu_parent *parent, const struct vgpu_type *type)
{
	int ret = -EIO;

	mutex_lock(&card_lock);
	if (parent->used < parent->slots)
		ret = card_take(parent->card, type);
	if (!ret)
		parent->used++;
	mutex_unlock(&card_lock);
	return ret;
}

static void give_slot(struct vgpu_parent *parent)
{
	mutex_lock(&card_lock);
	parent->used--;
	card_give(parent->card);
	mutex_unlock(&card_lock);
}

static int vgpu_probe(struct mdev_device *mdev)
{
	struct vgpu_parent *parent = parent_of(mdev->type);
	struct vgpu *vgpu;
	int ret = take_slot(parent, vgpu_type_of(mdev->type));

	if (ret)
		return ret;
	vgpu = vfio_alloc_device(vgpu, vdev, &mdev->dev, &vgpu_ops);
	if (IS_ERR(vgpu)) {
		ret = PTR_ERR(vgpu);
		goto give;
	}
	dev_set_drvdata(&mdev->dev, vgpu);
	ret = vfio_register_emulated_iommu_dev(&vgpu->vdev);
	if (!ret)
		return 0;
	vfio_put_device(&vgpu->vdev);
give:
	give_slot(parent);
	return ret;
}

/* Waits, in the first call, for the process that has the device open. */
static void vgpu_remove(struct mdev_device *mdev)
{
	struct vgpu *vgpu = dev_get_drvdata(&mdev->dev);

	vfio_unregister_group_dev(&vgpu->vdev);
	vfio_put_device(&vgpu->vdev);
	give_slot(parent_of(mdev->type));
}

static unsigned int show_available(struct mdev_type *type)
{
	struct vgpu_parent *parent = parent_of(type);
	unsigned int left;

	mutex_lock(&card_lock);
	left = min(card_left(parent->card, vgpu_type_of(type)),
		   parent->slots - parent->used);
	mutex_unlock(&card_lock);
	return left;
}

static ssize_t show_description(struct mdev_type *type, char *text)
{
	const struct vgpu_type *vgpu = vgpu_type_of(type);

	return sysfs_emit(text,
			  "num_heads=4, frl_config=60, framebuffer=%uM, "
			  "max_resolution=7680x4320, max_instance=%u\n",
			  vgpu->framebuffer, vgpu->max_instance);
}

static ssize_t vgpu_params_show(struct device *dev,
				struct device_attribute *attr, char *text)
{
	struct vgpu *vgpu = dev_get_drvdata(dev);

	return sysfs_emit(text, "%s\n", vgpu->params);
}

static ssize_t vgpu_params_store(struct device *dev,
				 struct device_attribute *attr,
				 const char *text, size_t count)
{
	struct vgpu *vgpu = dev_get_drvdata(dev);

	if (count >= sizeof(vgpu->params))
		return -EINVAL;
	strscpy(vgpu->params, skip_spaces(text), sizeof(vgpu->params));
	strim(vgpu->params);
	return count;
}
static DEVICE_ATTR_RW(vgpu_params);

static struct attribute *vgpu_attrs[] = { &dev_attr_vgpu_params.attr, NULL };
static const struct attribute_group vgpu_group = {
	.name = "nvidia",
	.attrs = vgpu_attrs,
};
static const struct attribute_group *vgpu_groups[] = { &vgpu_group, NULL };

static struct mdev_driver vgpu_driver = {
	.device_api = VFIO_DEVICE_API_PCI_STRING,
	.probe = vgpu_probe,
	.remove = vgpu_remove,
	.get_available = show_available,
	.show_description = show_description,
	.driver = {
		.name = "nvidia-vgpu-vfio",
		.owner = THIS_MODULE,
		.mod_name = KBUILD_MODNAME,
		.dev_groups = vgpu_groups,
	},
};

int mdev_form_init(void)
{
	return mdev_register_driver(&vgpu_driver);
}

void mdev_form_exit(void)
{
	mdev_unregister_driver(&vgpu_driver);
}

/* ---- the parent ---- */

static void free_parent(struct vgpu_parent *parent)
{
	kfree(parent->pointers);
	kfree(parent);
}

static struct vgpu_parent *new_parent(struct card *card, unsigned int slots)
{
	const unsigned int count = card->type_count;
	struct vgpu_parent *parent =
		kzalloc(struct_size(parent, types, count), GFP_KERNEL);

	if (!parent)
		return NULL;
	parent->pointers = kcalloc(count, sizeof(*parent->pointers),
				   GFP_KERNEL);
	if (!parent->pointers) {
		free_parent(parent);
		return NULL;
	}
	parent->card = card;
	parent->slots = slots;
	for (unsigned int i = 0; i < count; i++) {
		parent->types[i].vgpu = &card->types[i];
		parent->types[i].type.sysfs_name = card->types[i].id;
		parent->types[i].type.pretty_name = card->types[i].name;
		parent->pointers[i] = &parent->types[i].type;
	}
	return parent;
}

int mdev_form_probe(struct pci_dev *pdev, struct card *card,
		    unsigned int slots)
{
	struct vgpu_parent *parent = new_parent(card, slots);
	int ret;

	if (!parent)
		return -ENOMEM;
	ret = mdev_register_parent(&parent->parent, &pdev->dev, &vgpu_driver,
				   parent->pointers, card->type_count);
	if (ret)
		free_parent(parent);
	else
		pci_set_drvdata(pdev, parent);
	return ret;
}

struct card *mdev_form_remove(struct pci_dev *pdev)
{
	struct vgpu_parent *parent = pci_get_drvdata(pdev);
	struct card *card = parent->card;

	mdev_unregister_parent(&parent->parent);
	free_parent(parent);
	return card;
}
