/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A fake of Intel's host driver of a Flex 170, for Linux 6.1: it has the
 * name "xe", takes the card and as many of its virtual functions as the
 * kernel lets it, and enables these when sriov_numvfs is written.  Nothing
 * draws.
 */
#include <linux/module.h>
#include <linux/pci.h>

#define INTEL 0x8086
#define FLEX_170 0x56c0

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	return 0;
}

/* As Intel's driver does, it takes its virtual functions with it. */
static void unprobe(struct pci_dev *pdev)
{
	pci_disable_sriov(pdev);
}

/* No MODULE_DEVICE_TABLE: udev must not load this before a test does. */
static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(INTEL, FLEX_170) },
	{ }
};

static struct pci_driver fakexe = {
	.name = "xe",
	.id_table = ids,
	.probe = probe,
	.remove = unprobe,
	.sriov_configure = pci_sriov_configure_simple,
};

module_pci_driver(fakexe);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("fake GPU driver with SR-IOV");
