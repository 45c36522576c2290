/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * fakedfl: an FPGA card with a device feature list, as far as the kernel's
 * own drivers (drivers/fpga/dfl*.c) look: behind BAR 0 of a function of
 * fakepci are an FPGA management engine with a partial reconfiguration
 * engine, and one port with one function ("AFU") behind it.  Registers and
 * offsets are those of Documentation/fpga/dfl.rst and of the drivers.
 *
 * What is pushed into the partial reconfiguration engine decides: its first
 * 16 bytes are the id of the function that the port has from then on.  A
 * word right behind them asks for a failure:
 *
 *   ERROR   the engine refuses the data (its CRC error; the ioctl: EIO);
 *           the function stays
 *   SAME    all went well, it says, and the function stays
 *   HANG    the engine never says that it is done (ETIMEDOUT after 8 s)
 *   VANISH  the card falls off the bus in the middle of the data: all its
 *           registers and its configuration space read as ones, writes go
 *           nowhere, until its bus is reset (then it is what it was)
 *
 * What is loaded survives every reset, as with a card that keeps its power.
 * A virtual function has the port and what is behind it for itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fakedfl.h"

/* ---- what is used of QEMU: include/exec/memory.h, include/hw/pci ---- */

struct memory_region_ops {
	uint64_t (*read)(void *opaque, uint64_t addr, unsigned size);
	void (*write)(void *opaque, uint64_t addr, uint64_t data,
		      unsigned size);
	void *read_with_attrs, *write_with_attrs;
	int endianness;
	struct {
		unsigned min_access_size, max_access_size;
		bool unaligned;
		void *accepts;
	} valid;
	struct {
		unsigned min_access_size, max_access_size;
		bool unaligned;
	} impl;
};

void memory_region_init_io(void *mr, void *owner,
			   const struct memory_region_ops *ops, void *opaque,
			   const char *name, uint64_t size);
uint32_t pci_default_read_config(void *dev, uint32_t addr, int len);
void *pcie_sriov_get_pf(void *dev);

/* ---- the card's registers ---- */

enum {
	LITTLE_ENDIAN_DEVICE = 2,	/* enum device_endian */

	FME = 0x0,
	FME_CAP = FME + 0x30,
	FME_PORT_OFFSET = FME + 0x38,
	FME_BITSTREAM_ID = FME + 0x60,
	FME_BITSTREAM_META = FME + 0x68,
	PR = 0x1000,		/* a private feature of the FME */
	PR_CTRL = PR + 0x8,
	PR_STATUS = PR + 0x10,
	PR_DATA = PR + 0x18,
	PR_ERROR = PR + 0x20,
	PR_INTERFACE = PR + 0xa8,
	PORT = 0x10000,
	PORT_NEXT_AFU = PORT + 0x18,
	PORT_CAP = PORT + 0x30,
	PORT_CTRL = PORT + 0x38,
	AFU = 0x20000,
	REGISTERS = 0x30000,	/* bytes that are behind the BAR */

	GUID = 0x8,		/* in the header of an FIU and of an AFU */
	TYPE_AFU = 1,
	TYPE_PRIVATE = 3,
	TYPE_FIU = 4,
	ID_FME = 0,
	ID_PORT = 1,
	ID_PR = 5,
	AFU_KIB = 64,
	CREDITS = 256,		/* words that the engine has room for */
	ID_BYTES = 16,
	HEAD_BYTES = 24,	/* the id and a directive */
};

#define BIT(n) (1ull << (n))
#define CTRL_RESET BIT(0)	/* of the engine, and of the port */
#define CTRL_RESET_ACK BIT(4)
#define PR_START BIT(12)
#define PR_COMPLETE BIT(13)
#define PR_FAILED BIT(16)
#define PR_CRC_ERROR BIT(1)
#define END_OF_LIST BIT(40)

/* The static part of an Intel PAC with an Arria 10, and its first function:
 * the loopback example that every card comes with. */
static const uint8_t fme_guid[ID_BYTES] = {
	0xbf, 0xaf, 0x2a, 0xe9, 0x4a, 0x52, 0x46, 0xe3,
	0x82, 0xfe, 0x38, 0xf0, 0xf9, 0xe1, 0x77, 0x64,
};
static const uint8_t interface_id[ID_BYTES] = {
	0x69, 0x52, 0x8d, 0xb6, 0xeb, 0x31, 0x57, 0x7a,
	0x8c, 0x36, 0x68, 0xf9, 0xfa, 0xa0, 0x81, 0xf6,
};
static const uint8_t first_function[ID_BYTES] = {
	0xd8, 0x42, 0x4d, 0xc4, 0xa4, 0xa3, 0xc4, 0x13,
	0xf8, 0x9e, 0x43, 0x36, 0x83, 0xf9, 0x04, 0x0b,
};

struct card {
	bool is_gone;
	unsigned pushed;		/* bytes of the data so far */
	char head[HEAD_BYTES + 1];
	uint8_t registers[REGISTERS];
};

/* What a function shows of its card: the registers from one on. */
struct view {
	const void *dev;
	struct card *card;
	unsigned from;
};

enum { MAX_VIEWS = 16 };
static struct view views[MAX_VIEWS];

static struct card *card_of(const void *dev)
{
	for (int i = 0; i < MAX_VIEWS; i++)
		if (views[i].dev == dev)
			return views[i].card;
	return NULL;
}

/* A virtual function that comes again takes the place it had. */
static struct view *new_view(const void *dev, struct card *card,
			     unsigned from)
{
	for (int i = 0; i < MAX_VIEWS; i++) {
		struct view *v = &views[i];

		if (v->dev && (v->card != card || v->from != from))
			continue;
		*v = (struct view){ dev, card, from };
		return v;
	}
	return NULL;
}

static uint64_t get(const struct card *card, unsigned at)
{
	uint64_t value;

	memcpy(&value, card->registers + at, sizeof(value));
	return value;
}

static void set(struct card *card, unsigned at, uint64_t value)
{
	memcpy(card->registers + at, &value, sizeof(value));
}

/* An id as people write it: its first byte is the highest one. */
static void set_id(struct card *card, unsigned at, const uint8_t *id)
{
	uint64_t low, high;

	memcpy(&high, id, sizeof(high));
	memcpy(&low, id + sizeof(high), sizeof(low));
	set(card, at, __builtin_bswap64(low));
	set(card, at + sizeof(low), __builtin_bswap64(high));
}

static uint64_t header(unsigned type, unsigned id, unsigned next)
{
	return (uint64_t)type << 60 | (uint64_t)next << 16 | id |
	       (next ? 0 : END_OF_LIST);
}

static void set_registers(struct card *card)
{
	set(card, FME, header(TYPE_FIU, ID_FME, PR - FME));
	set_id(card, FME + GUID, fme_guid);
	set(card, FME_CAP, BIT(17));			/* one port */
	set(card, FME_PORT_OFFSET, BIT(60) | PORT);	/* in BAR 0 */
	set(card, FME_BITSTREAM_ID, 0x23000410010310);
	set(card, FME_BITSTREAM_META, 0x0000000217011234);
	set(card, PR, header(TYPE_PRIVATE, ID_PR, 0));
	set(card, PR_STATUS, CREDITS);
	set_id(card, PR_INTERFACE, interface_id);
	set(card, PORT, header(TYPE_FIU, ID_PORT, 0));
	set(card, PORT_NEXT_AFU, AFU - PORT);
	set(card, PORT_CAP, AFU_KIB << 8);
	set(card, AFU, header(TYPE_AFU, 0, 0));
	set_id(card, AFU + GUID, first_function);
}

/* ---- the partial reconfiguration engine ---- */

static bool is_asked(const struct card *card, const char *directive)
{
	return !strncmp(card->head + ID_BYTES, directive, strlen(directive));
}

static void start_over(struct card *card)
{
	card->pushed = 0;
	memset(card->head, 0, sizeof(card->head));
	set(card, PR_STATUS, CREDITS);
	set(card, PR_ERROR, 0);
}

static void push(struct card *card, uint32_t word)
{
	if (!(get(card, PR_CTRL) & PR_START))
		return;
	if (card->pushed + sizeof(word) <= HEAD_BYTES)
		memcpy(card->head + card->pushed, &word, sizeof(word));
	card->pushed += sizeof(word);
	if (card->pushed == HEAD_BYTES && is_asked(card, "VANISH"))
		card->is_gone = true;
}

/* All data is there.  Returns whether the engine says that it is done. */
static bool load(struct card *card)
{
	if (is_asked(card, "HANG"))
		return false;
	if (card->pushed < ID_BYTES || is_asked(card, "ERROR")) {
		set(card, PR_ERROR, PR_CRC_ERROR);
		set(card, PR_STATUS, CREDITS | PR_FAILED);
	} else if (!is_asked(card, "SAME")) {
		set_id(card, AFU + GUID, (const uint8_t *)card->head);
	}
	return true;
}

static void control(struct card *card, uint64_t value)
{
	if (value & CTRL_RESET) {
		start_over(card);
		value &= ~(PR_START | PR_COMPLETE);
		value |= CTRL_RESET_ACK;
	} else {
		value &= ~CTRL_RESET_ACK;
	}
	set(card, PR_CTRL, value);
	if (value & PR_COMPLETE && load(card))
		set(card, PR_CTRL, value & ~(PR_START | PR_COMPLETE));
}

/* ---- the BAR ---- */

static uint64_t read_bar(void *opaque, uint64_t addr, unsigned size)
{
	const struct view *view = opaque;
	const struct card *card = view->card;
	uint64_t value = 0;

	addr += view->from;
	if (card->is_gone)
		return UINT64_MAX;
	if (addr + size <= REGISTERS)
		memcpy(&value, card->registers + addr, size);
	return value;
}

static void write_bar(void *opaque, uint64_t addr, uint64_t data,
		      unsigned size)
{
	const struct view *view = opaque;
	struct card *card = view->card;

	if (card->is_gone)
		return;
	switch (addr + view->from) {
	case FME_PORT_OFFSET:	/* whose the port is */
		set(card, FME_PORT_OFFSET, data);
		break;
	case PR_CTRL:
		control(card, data);
		break;
	case PR_DATA:
		push(card, data);
		break;
	case PR_ERROR:		/* written ones clear */
		set(card, PR_ERROR, get(card, PR_ERROR) & ~data);
		if (!get(card, PR_ERROR))
			set(card, PR_STATUS, CREDITS);
		break;
	case PORT_CTRL:		/* a reset is acknowledged at once */
		data &= ~CTRL_RESET_ACK;
		data |= data & CTRL_RESET ? CTRL_RESET_ACK : 0;
		set(card, PORT_CTRL, data);
		break;
	}
	(void)size;
}

static const struct memory_region_ops bar_ops = {
	.read = read_bar,
	.write = write_bar,
	.endianness = LITTLE_ENDIAN_DEVICE,
	.valid = { .min_access_size = 1, .max_access_size = 8 },
	.impl = { .min_access_size = 1, .max_access_size = 8 },
};

static void new_bar(struct view *view, void *region, const char *name,
		    uint64_t size)
{
	if (!view || size < REGISTERS - view->from) {
		fprintf(stderr, "fakepci: no room for %s\n", name);
		exit(1);
	}
	memory_region_init_io(region, (void *)view->dev, &bar_ops, view, name,
			      size);
}

void fakedfl_new_bar(void *dev, void *region, const char *name,
		     uint64_t size)
{
	struct card *card = calloc(1, sizeof(*card));

	set_registers(card);
	new_bar(new_view(dev, card, FME), region, name, size);
}

void fakedfl_new_vf_bar(void *dev, void *region, const char *name,
			uint64_t size)
{
	struct card *card = card_of(pcie_sriov_get_pf(dev));

	new_bar(new_view(dev, card, PORT), region, name, size);
}

/* ---- the function ---- */

bool fakedfl_is_gone(const void *dev)
{
	const struct card *card = card_of(dev);

	return card && card->is_gone;
}

uint32_t fakedfl_read_config(void *dev, uint32_t addr, int len)
{
	uint32_t ones = UINT32_MAX >> (32 - 8 * len);

	return fakedfl_is_gone(dev) ? ones :
				      pci_default_read_config(dev, addr, len);
}

static void reset(void *dev)
{
	struct card *card = card_of(dev);

	if (!card || pcie_sriov_get_pf(dev))
		return;
	card->is_gone = false;
	start_over(card);
	set(card, PR_CTRL, 0);
	set(card, PORT_CTRL, 0);
	set(card, FME_PORT_OFFSET, BIT(60) | PORT);
}

void fakedfl_class_init(void *klass)
{
	void (*set_reset)(void *, void (*)(void *)) =
		dlsym(RTLD_DEFAULT, "device_class_set_legacy_reset");
	void (*set_old)(void *, void (*)(void *), void (**)(void *)) =
		dlsym(RTLD_DEFAULT, "device_class_set_parent_reset");
	void (*parent)(void *);

	if (set_reset) {
		set_reset(klass, reset);
	} else if (set_old) {		/* before QEMU 9.2 */
		set_old(klass, reset, &parent);
	} else {
		fprintf(stderr, "fakepci: this QEMU's reset is unknown\n");
		exit(1);
	}
}
