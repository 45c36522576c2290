/* SPDX-License-Identifier: GPL-2.0-or-later */
/* fakedfl: what lies behind BAR 0 of an FPGA card; see fakedfl.c. */
#ifndef FAKEDFL_H
#define FAKEDFL_H

#include <stdbool.h>
#include <stdint.h>

/* Make the card of a PCI function: a BAR of at least 256 KiB. */
void fakedfl_new_bar(void *dev, void *region, const char *name,
		     uint64_t size);
/* The port alone, for a virtual function: at least 128 KiB. */
void fakedfl_new_vf_bar(void *dev, void *region, const char *name,
			uint64_t size);
/* Let a reset of the bus reach the functions of a class. */
void fakedfl_class_init(void *klass);
/* PCIDeviceClass.config_read of such a function. */
uint32_t fakedfl_read_config(void *dev, uint32_t addr, int len);
/* Does the card answer no more? */
bool fakedfl_is_gone(const void *dev);

#endif
