/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The vGPU of the form "mdev" as a guest sees it: a PCI function of 256 bytes
 * of configuration space and one 4 KiB BAR of plain memory, without
 * interrupts.
 */
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "fakenvidia_vgpu.h"

#define BAR_BYTES 4096
/* A region's place in the device file; vfio_pci_core keeps 40 bits too. */
#define REGION_SHIFT 40

static struct vgpu *to_vgpu(struct vfio_device *vdev)
{
	return container_of(vdev, struct vgpu, vdev);
}

static void put16(u8 *space, unsigned int at, u16 value)
{
	space[at] = value & 0xff;
	space[at + 1] = value >> 8;
}

static int vgpu_init(struct vfio_device *vdev)
{
	struct vgpu *vgpu = to_vgpu(vdev);
	struct mdev_type *type = to_mdev_device(vdev->dev)->type;
	struct pci_dev *card = card_of(type)->physical;

	vgpu->bar = kzalloc(BAR_BYTES, GFP_KERNEL);
	if (!vgpu->bar)
		return -ENOMEM;
	mutex_init(&vgpu->lock);
	put16(vgpu->config, PCI_VENDOR_ID, card->vendor);
	put16(vgpu->config, PCI_DEVICE_ID, card->device);
	put16(vgpu->config, PCI_SUBSYSTEM_VENDOR_ID, card->vendor);
	put16(vgpu->config, PCI_SUBSYSTEM_ID, vgpu_type_of(type)->number);
	put16(vgpu->config, PCI_CLASS_DEVICE, PCI_CLASS_DISPLAY_3D);
	put16(vgpu->writable, PCI_COMMAND,
	      PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	vgpu->writable[PCI_INTERRUPT_LINE] = 0xff;
	/* the read-only bits of a BAR give its size */
	put16(vgpu->writable, PCI_BASE_ADDRESS_0, (u16)~(BAR_BYTES - 1));
	put16(vgpu->writable, PCI_BASE_ADDRESS_0 + 2, 0xffff);
	return 0;
}

static void vgpu_release(struct vfio_device *vdev)
{
	kfree(to_vgpu(vdev)->bar);
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	/* since then the core does it */
	vfio_free_device(vdev);
#endif
}

static size_t region_bytes(unsigned int index)
{
	switch (index) {
	case VFIO_PCI_CONFIG_REGION_INDEX:
		return PCI_CFG_SPACE_SIZE;
	case VFIO_PCI_BAR0_REGION_INDEX:
		return BAR_BYTES;
	default:
		return 0;
	}
}

/* Return the memory behind a position, and clamp the count to its end. */
static u8 *find_region(struct vgpu *vgpu, loff_t position, size_t *count)
{
	unsigned int index = position >> REGION_SHIFT;
	u64 at = position & ((1ULL << REGION_SHIFT) - 1);
	size_t size = region_bytes(index);

	if (at >= size)
		return NULL;
	*count = min_t(size_t, *count, size - at);
	return (size == BAR_BYTES ? vgpu->bar : vgpu->config) + at;
}

static ssize_t vgpu_read(struct vfio_device *vdev, char __user *to,
			 size_t count, loff_t *position)
{
	struct vgpu *vgpu = to_vgpu(vdev);
	u8 *from = find_region(vgpu, *position, &count);
	unsigned long left;

	if (!from)
		return -EINVAL;
	mutex_lock(&vgpu->lock);
	left = copy_to_user(to, from, count);
	mutex_unlock(&vgpu->lock);
	if (left)
		return -EFAULT;
	*position += count;
	return count;
}

static void write_config(struct vgpu *vgpu, u8 *to, const u8 *from,
			 size_t count)
{
	const u8 *mask = vgpu->writable + (to - vgpu->config);

	for (size_t i = 0; i < count; i++)
		to[i] = (to[i] & ~mask[i]) | (from[i] & mask[i]);
}

static ssize_t vgpu_write(struct vfio_device *vdev, const char __user *from,
			  size_t count, loff_t *position)
{
	struct vgpu *vgpu = to_vgpu(vdev);
	u8 *to = find_region(vgpu, *position, &count);
	u8 words[64];

	if (!to)
		return -EINVAL;
	/* the caller comes again with what is left */
	count = min(count, sizeof(words));
	if (copy_from_user(words, from, count))
		return -EFAULT;
	mutex_lock(&vgpu->lock);
	if (*position >> REGION_SHIFT == VFIO_PCI_CONFIG_REGION_INDEX)
		write_config(vgpu, to, words, count);
	else
		memcpy(to, words, count);
	mutex_unlock(&vgpu->lock);
	*position += count;
	return count;
}

static long tell_device(void __user *arg)
{
	struct vfio_device_info info;
	const size_t size = offsetofend(struct vfio_device_info, num_irqs);

	if (copy_from_user(&info, arg, size))
		return -EFAULT;
	if (info.argsz < size)
		return -EINVAL;
	info.flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET;
	info.num_regions = VFIO_PCI_NUM_REGIONS;
	info.num_irqs = VFIO_PCI_NUM_IRQS;
	return copy_to_user(arg, &info, size) ? -EFAULT : 0;
}

static long tell_region(void __user *arg)
{
	struct vfio_region_info info;
	const size_t size = offsetofend(struct vfio_region_info, offset);

	if (copy_from_user(&info, arg, size))
		return -EFAULT;
	if (info.argsz < size || info.index >= VFIO_PCI_NUM_REGIONS)
		return -EINVAL;
	info.size = region_bytes(info.index);
	info.offset = (u64)info.index << REGION_SHIFT;
	info.flags = 0;
	if (info.size)
		info.flags = VFIO_REGION_INFO_FLAG_READ |
			     VFIO_REGION_INFO_FLAG_WRITE;
	return copy_to_user(arg, &info, size) ? -EFAULT : 0;
}

static long tell_irq(void __user *arg)
{
	struct vfio_irq_info info;
	const size_t size = offsetofend(struct vfio_irq_info, count);

	if (copy_from_user(&info, arg, size))
		return -EFAULT;
	if (info.argsz < size || info.index >= VFIO_PCI_NUM_IRQS)
		return -EINVAL;
	info.flags = 0;
	info.count = 0;
	return copy_to_user(arg, &info, size) ? -EFAULT : 0;
}

static long vgpu_ioctl(struct vfio_device *vdev, unsigned int command,
		       unsigned long arg)
{
	switch (command) {
	case VFIO_DEVICE_GET_INFO:
		return tell_device((void __user *)arg);
	case VFIO_DEVICE_GET_REGION_INFO:
		return tell_region((void __user *)arg);
	case VFIO_DEVICE_GET_IRQ_INFO:
		return tell_irq((void __user *)arg);
	case VFIO_DEVICE_RESET:
		return 0;
	default:
		return -ENOTTY;
	}
}

const struct vfio_device_ops vgpu_ops = {
	.name = "nvidia-vgpu-vfio",
	.init = vgpu_init,
	.release = vgpu_release,
	.read = vgpu_read,
	.write = vgpu_write,
	.ioctl = vgpu_ioctl,
};
