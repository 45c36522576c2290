/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The kernel's migration of VFIO devices, version 2, for the form "vfio": a
 * function's type and the first page of its BAR 0 leave in STOP_COPY, and
 * arrive in RESUMING (include/uapi/linux/vfio.h, VFIO_DEVICE_FEATURE_MIGRATION).
 * A function of another type refuses them with EINVAL. There is no log of
 * written pages: the BAR is all that changes.
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "fakenvidia_migration.h"

#define BAR_BYTES 4096

struct function_state {
	u32 type;
	u8 bar[BAR_BYTES];
} __packed;

/* A file with the state; the position is how much of it was carried. */
struct stream {
	struct mutex lock;
	size_t position;
	struct function_state state;
};

static ssize_t stream_read(struct file *file, char __user *to, size_t count,
			   loff_t *position)
{
	struct stream *stream = file->private_data;
	ssize_t ret;

	mutex_lock(&stream->lock);
	count = min(count, sizeof(stream->state) - stream->position);
	ret = count;
	if (copy_to_user(to, (u8 *)&stream->state + stream->position, count))
		ret = -EFAULT;
	else
		stream->position += count;
	mutex_unlock(&stream->lock);
	return ret;
}

static ssize_t stream_write(struct file *file, const char __user *from,
			    size_t count, loff_t *position)
{
	struct stream *stream = file->private_data;
	ssize_t ret = count;

	mutex_lock(&stream->lock);
	if (count > sizeof(stream->state) - stream->position)
		ret = -EINVAL;
	else if (copy_from_user((u8 *)&stream->state + stream->position, from,
				count))
		ret = -EFAULT;
	else
		stream->position += count;
	mutex_unlock(&stream->lock);
	return ret;
}

static int stream_release(struct inode *inode, struct file *file)
{
	kfree(file->private_data);
	return 0;
}

static const struct file_operations saving = {
	.owner = THIS_MODULE,
	.read = stream_read,
	.release = stream_release,
};
static const struct file_operations loading = {
	.owner = THIS_MODULE,
	.write = stream_write,
	.release = stream_release,
};

static struct file *open_stream(const struct file_operations *operations,
				int flags)
{
	struct stream *stream = kzalloc(sizeof(*stream), GFP_KERNEL);
	struct file *file;

	if (!stream)
		return ERR_PTR(-ENOMEM);
	mutex_init(&stream->lock);
	file = anon_inode_getfile("nvidia-vgpu-state", operations, stream,
				  flags);
	if (IS_ERR(file))
		kfree(stream);
	else
		stream_open(file->f_inode, file);
	return file;
}

static void __iomem *map_bar(struct vfio_device *vdev)
{
	struct pci_dev *pdev = to_pci_dev(vdev->dev);

	return ioremap(pci_resource_start(pdev, 0), BAR_BYTES);
}

static int save(struct vfio_device *vdev, struct function_state *state)
{
	void __iomem *bar = map_bar(vdev);

	if (!bar)
		return -ENOMEM;
	state->type = type_number_of(vdev);
	memcpy_fromio(state->bar, bar, BAR_BYTES);
	iounmap(bar);
	return 0;
}

static int load(struct vfio_device *vdev, const struct stream *stream)
{
	void __iomem *bar;

	if (stream->position != sizeof(stream->state) ||
	    stream->state.type != type_number_of(vdev)) {
		dev_err(vdev->dev, "the state is not of a vGPU of this type\n");
		return -EINVAL;
	}
	bar = map_bar(vdev);
	if (!bar)
		return -ENOMEM;
	memcpy_toio(bar, stream->state.bar, BAR_BYTES);
	iounmap(bar);
	return 0;
}

static void drop_file(struct migration *migration)
{
	if (migration->file)
		fput(migration->file);
	migration->file = NULL;
}

/* Open the file of STOP_COPY or RESUMING: one reference for each side. */
static struct file *begin(struct vfio_device *vdev,
			  struct migration *migration, bool is_saving)
{
	struct file *file = is_saving ? open_stream(&saving, O_RDONLY)
				      : open_stream(&loading, O_WRONLY);
	struct stream *stream;
	int ret = 0;

	if (IS_ERR(file))
		return file;
	stream = file->private_data;
	if (is_saving)
		ret = save(vdev, &stream->state);
	if (ret) {
		fput(file);
		return ERR_PTR(ret);
	}
	migration->file = file;
	get_file(file);
	return file;
}

/* Take one step between two states; the core allows no others than these. */
static struct file *step(struct vfio_device *vdev, struct migration *migration,
			 enum vfio_device_mig_state next)
{
	int ret = 0;

	if (next == VFIO_DEVICE_STATE_STOP_COPY)
		return begin(vdev, migration, true);
	if (next == VFIO_DEVICE_STATE_RESUMING)
		return begin(vdev, migration, false);
	if (migration->state == VFIO_DEVICE_STATE_RESUMING)
		ret = load(vdev, migration->file->private_data);
	drop_file(migration);
	return ERR_PTR(ret);
}

static struct file *set_state(struct vfio_device *vdev,
			      enum vfio_device_mig_state state)
{
	struct migration *migration = migration_of(vdev);
	enum vfio_device_mig_state next;
	struct file *file = NULL;
	int ret;

	mutex_lock(&migration->lock);
	while (migration->state != state && !file) {
		ret = vfio_mig_get_next_state(vdev, migration->state, state,
					      &next);
		file = ret ? ERR_PTR(ret) : step(vdev, migration, next);
		if (!IS_ERR(file))
			migration->state = next;
	}
	mutex_unlock(&migration->lock);
	return file;
}

static int get_state(struct vfio_device *vdev,
		     enum vfio_device_mig_state *state)
{
	struct migration *migration = migration_of(vdev);

	mutex_lock(&migration->lock);
	*state = migration->state;
	mutex_unlock(&migration->lock);
	return 0;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static int get_data_size(struct vfio_device *vdev, unsigned long *bytes)
{
	*bytes = sizeof(struct function_state);
	return 0;
}
#endif

static const struct vfio_migration_ops operations = {
	.migration_set_state = set_state,
	.migration_get_state = get_state,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	.migration_get_data_size = get_data_size,
#endif
};

void migration_init(struct vfio_device *vdev, struct migration *migration)
{
	mutex_init(&migration->lock);
	migration->state = VFIO_DEVICE_STATE_RUNNING;
	vdev->migration_flags = VFIO_MIGRATION_STOP_COPY;
	vdev->mig_ops = &operations;
}

/* A function that is opened anew runs, whatever a guest has left. */
void migration_reset(struct migration *migration)
{
	mutex_lock(&migration->lock);
	drop_file(migration);
	migration->state = VFIO_DEVICE_STATE_RUNNING;
	mutex_unlock(&migration->lock);
}
