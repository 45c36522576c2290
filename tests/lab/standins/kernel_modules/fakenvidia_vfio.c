/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The form "vfio" of the fake driver: each virtual function is a VFIO
 * device with the files nvidia/{creatable_vgpu_types,current_vgpu_type,
 * vgpu_params,gpu_instance_id,placement_id}.
 *
 * The errno values: EPERM to type a typed function or to clear a free one,
 * EIO for a type that can't be made now, EBUSY while the function is open,
 * ENODEV to open one without a type, ENXIO to read a place before there is
 * one.
 */
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/vfio_pci_core.h>

#include "fakenvidia.h"
#include "fakenvidia_migration.h"

struct function {
	/* the driver data of the PCI function: vfio_pci_core wants that */
	struct vfio_pci_core_device core;
	struct migration migration;
	struct card *card;
	const struct vgpu_type *type;
	unsigned int place;
	bool is_open;
	char params[256];
};

static struct function *function_of(struct device *dev)
{
	return container_of(dev_get_drvdata(dev), struct function, core);
}

static struct function *function_of_vfio(struct vfio_device *vdev)
{
	return container_of(vdev, struct function, core.vdev);
}

struct migration *migration_of(struct vfio_device *vdev)
{
	return &function_of_vfio(vdev)->migration;
}

/* Of an open function, whose type can't change. */
unsigned int type_number_of(struct vfio_device *vdev)
{
	return function_of_vfio(vdev)->type->number;
}

/* ---- places: one bit of the card for each GiB ---- */

static unsigned long long span_of(const struct vgpu_type *type,
				  unsigned int place)
{
	unsigned int size = type->framebuffer / 1024;

	return ((1ULL << size) - 1) << place;
}

/* Whether a vGPU may begin there: at a multiple of its size, on the card. */
static bool is_free(const struct card *card, const struct vgpu_type *type,
		    unsigned int place)
{
	unsigned int size = type->framebuffer / 1024;

	return place % size == 0 &&
	       place / size < type->max_instance &&
	       !(card->placed & span_of(type, place));
}

static unsigned int first_place(const struct card *card,
				const struct vgpu_type *type)
{
	unsigned int place = 0;

	while (!is_free(card, type, place))
		place += type->framebuffer / 1024;
	return place;
}

/* ---- a function's type; under the lock ---- */

static const struct vgpu_type *find_type(const struct card *card,
					 unsigned int number)
{
	for (unsigned int i = 0; i < card->type_count; i++)
		if (card->types[i].number == number)
			return &card->types[i];
	return NULL;
}

static int set_type(struct function *function, unsigned int number)
{
	const struct vgpu_type *type = find_type(function->card, number);
	int ret;

	if (function->type)
		return -EPERM;
	if (!type)
		return -EINVAL;
	ret = card_take(function->card, type);
	if (ret)
		return ret;
	function->type = type;
	function->place = first_place(function->card, type);
	function->card->placed |= span_of(type, function->place);
	return 0;
}

static void forget_type(struct function *function)
{
	function->card->placed &= ~span_of(function->type, function->place);
	card_give(function->card);
	function->type = NULL;
	function->params[0] = '\0';
}

static int clear_type(struct function *function)
{
	if (!function->type)
		return -EPERM;
	if (function->is_open)
		return -EBUSY;
	forget_type(function);
	return 0;
}

static int move_vgpu(struct function *function, unsigned int place)
{
	struct card *card = function->card;
	int ret = 0;

	if (!function->type)
		return -ENXIO;
	if (function->is_open)
		return -EBUSY;
	card->placed &= ~span_of(function->type, function->place);
	if (is_free(card, function->type, place))
		function->place = place;
	else
		ret = -EINVAL;
	card->placed |= span_of(function->type, function->place);
	return ret;
}

/* ---- nvidia/... ---- */

static ssize_t creatable_vgpu_types_show(struct device *dev,
					 struct device_attribute *attr,
					 char *text)
{
	struct function *function = function_of(dev);
	struct card *card = function->card;
	int at = sysfs_emit(text, "ID    : vGPU Name\n");

	mutex_lock(&card_lock);
	for (unsigned int i = 0; i < card->type_count; i++)
		if (!function->type && card_left(card, &card->types[i]))
			at += sysfs_emit_at(text, at, "%-5u : %s\n",
					    card->types[i].number,
					    card->types[i].name);
	mutex_unlock(&card_lock);
	return at;
}
static DEVICE_ATTR_RO(creatable_vgpu_types);

static ssize_t current_vgpu_type_show(struct device *dev,
				      struct device_attribute *attr,
				      char *text)
{
	struct function *function = function_of(dev);
	unsigned int number;

	mutex_lock(&card_lock);
	number = function->type ? function->type->number : 0;
	mutex_unlock(&card_lock);
	return sysfs_emit(text, "%u\n", number);
}

static ssize_t current_vgpu_type_store(struct device *dev,
				       struct device_attribute *attr,
				       const char *text, size_t count)
{
	struct function *function = function_of(dev);
	unsigned int number;
	int ret = kstrtouint(text, 10, &number);

	if (ret)
		return ret;
	mutex_lock(&card_lock);
	ret = number ? set_type(function, number) : clear_type(function);
	mutex_unlock(&card_lock);
	return ret ? ret : count;
}
static DEVICE_ATTR_RW(current_vgpu_type);

static ssize_t vgpu_params_show(struct device *dev,
				struct device_attribute *attr, char *text)
{
	struct function *function = function_of(dev);
	ssize_t size;

	mutex_lock(&card_lock);
	size = sysfs_emit(text, "%s\n", function->params);
	mutex_unlock(&card_lock);
	return size;
}

static ssize_t vgpu_params_store(struct device *dev,
				 struct device_attribute *attr,
				 const char *text, size_t count)
{
	struct function *function = function_of(dev);
	ssize_t ret = count;

	if (count >= sizeof(function->params))
		return -EINVAL;
	mutex_lock(&card_lock);
	if (function->is_open) {
		ret = -EBUSY;
	} else {
		strscpy(function->params, skip_spaces(text),
			sizeof(function->params));
		strim(function->params);
	}
	mutex_unlock(&card_lock);
	return ret;
}
static DEVICE_ATTR_RW(vgpu_params);

/* No card of the lab has GPU instances. */
static ssize_t gpu_instance_id_show(struct device *dev,
				    struct device_attribute *attr, char *text)
{
	return -ENXIO;
}
static DEVICE_ATTR_RO(gpu_instance_id);

static ssize_t placement_id_show(struct device *dev,
				 struct device_attribute *attr, char *text)
{
	struct function *function = function_of(dev);
	ssize_t size = -ENXIO;

	mutex_lock(&card_lock);
	if (function->type)
		size = sysfs_emit(text, "%u\n", function->place);
	mutex_unlock(&card_lock);
	return size;
}

static ssize_t placement_id_store(struct device *dev,
				  struct device_attribute *attr,
				  const char *text, size_t count)
{
	struct function *function = function_of(dev);
	unsigned int place;
	int ret = kstrtouint(text, 10, &place);

	if (ret)
		return ret;
	/* no bit of the card lies beyond */
	if (place >= 64)
		return -EINVAL;
	mutex_lock(&card_lock);
	ret = move_vgpu(function, place);
	mutex_unlock(&card_lock);
	return ret ? ret : count;
}
static DEVICE_ATTR_RW(placement_id);

static struct attribute *attrs[] = {
	&dev_attr_creatable_vgpu_types.attr,
	&dev_attr_current_vgpu_type.attr,
	&dev_attr_vgpu_params.attr,
	&dev_attr_gpu_instance_id.attr,
	&dev_attr_placement_id.attr,
	NULL
};
static const struct attribute_group group = {
	.name = "nvidia",
	.attrs = attrs,
};

/* ---- the VFIO device ---- */

static int init_function(struct vfio_device *vdev)
{
	migration_init(vdev, migration_of(vdev));
	return vfio_pci_core_init_dev(vdev);
}

static int open_function(struct vfio_device *vdev)
{
	struct function *function = function_of_vfio(vdev);
	int ret = -ENODEV;

	mutex_lock(&card_lock);
	if (function->type) {
		function->is_open = true;
		ret = 0;
	}
	mutex_unlock(&card_lock);
	if (ret) {
		dev_err(vdev->dev, "current_vgpu_type is not set\n");
		return ret;
	}
	ret = vfio_pci_core_enable(&function->core);
	if (ret) {
		mutex_lock(&card_lock);
		function->is_open = false;
		mutex_unlock(&card_lock);
		return ret;
	}
	migration_reset(&function->migration);
	vfio_pci_core_finish_enable(&function->core);
	return 0;
}

static void close_function(struct vfio_device *vdev)
{
	struct function *function = function_of_vfio(vdev);

	vfio_pci_core_close_device(vdev);
	migration_reset(&function->migration);
	mutex_lock(&card_lock);
	function->is_open = false;
	mutex_unlock(&card_lock);
}

static const struct vfio_device_ops function_ops = {
	.name = "nvidia-vgpu-vfio-pci",
	.init = init_function,
	.release = vfio_pci_core_release_dev,
	.open_device = open_function,
	.close_device = close_function,
	.ioctl = vfio_pci_core_ioctl,
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = vfio_pci_core_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
};

int vfio_form_probe(struct pci_dev *pdev, struct card *card)
{
	struct function *function = vfio_alloc_device(
		function, core.vdev, &pdev->dev, &function_ops);
	int ret;

	if (IS_ERR(function))
		return PTR_ERR(function);
	function->card = card;
	pci_set_drvdata(pdev, &function->core);
	ret = vfio_pci_core_register_device(&function->core);
	if (ret)
		goto put;
	ret = device_add_group(&pdev->dev, &group);
	if (!ret)
		return 0;
	vfio_pci_core_unregister_device(&function->core);
put:
	pci_set_drvdata(pdev, NULL);
	vfio_put_device(&function->core.vdev);
	return ret;
}

/* Waits until no process has the function open. */
struct card *vfio_form_remove(struct pci_dev *pdev)
{
	struct function *function = function_of(&pdev->dev);
	struct card *card = function->card;

	device_remove_group(&pdev->dev, &group);
	vfio_pci_core_unregister_device(&function->core);
	mutex_lock(&card_lock);
	if (function->type)
		forget_type(function);
	mutex_unlock(&card_lock);
	vfio_put_device(&function->core.vdev);
	return card;
}
