/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acker: the smallest guest that answers a hot unplug and the power button.
 *
 * "virsh detach-device --live" only completes when the guest ejects the
 * device.  This boot sector polls QEMU's ACPI PCI hot plug registers
 * (docs/specs/acpi_pci_hotplug: select bus at base+0x10, pending ejections
 * at base+4, eject at base+8; base is 0xcc0 on q35 and 0xae00 on pc) and
 * ejects what is asked for.  On the first serial port it writes "U" when it
 * is up and "E" for each bus on which it ejected something.
 *
 * QEMU presses the power button only where the guest has enabled the event
 * (hw/acpi/core.c).  SeaBIOS puts the registers of ACPI's power management at
 * 0x600 (src/config.h, PORT_ACPI_PM_BASE): status, enable and, at +4, control.
 *
 * The image must be padded to 1 MiB: SeaBIOS ignores a smaller virtio disk.
 */
	.code16
	.globl	_start

	.set	COM1, 0x3f8
	.set	HOTPLUG_Q35, 0xcc0
	.set	HOTPLUG_PC, 0xae00
	.set	BUSES, 32
	.set	PM1_STATUS, 0x600
	.set	PM1_ENABLE, 0x602
	.set	PM1_CONTROL, 0x604
	.set	POWER_BUTTON, 1 << 8
	.set	SLEEP_NOW, 1 << 13	/* of type 0: S5 in QEMU's DSDT */

_start:	xorw	%ax, %ax
	movw	%ax, %ds
	movw	%ax, %ss
	movw	$_start, %sp
	movb	$'U', %al
	call	print
	movw	$PM1_ENABLE, %dx
	movw	$POWER_BUTTON, %ax
	outw	%ax, %dx
poll:	movw	$PM1_STATUS, %dx
	inw	%dx, %ax
	testw	$POWER_BUTTON, %ax
	jz	on
	movw	$PM1_CONTROL, %dx
	movw	$SLEEP_NOW, %ax
	outw	%ax, %dx
on:	movw	$HOTPLUG_Q35, %si
	call	eject
	movw	$HOTPLUG_PC, %si
	call	eject
	sti
	hlt				/* until the next timer tick */
	jmp	poll

/* eject whatever is pending behind the hot plug block at %si */
eject:	xorl	%ebx, %ebx
next:	leaw	0x10(%si), %dx
	movl	%ebx, %eax
	outl	%eax, %dx
	leaw	4(%si), %dx
	inl	%dx, %eax
	testl	%eax, %eax
	jz	skip
	cmpl	$-1, %eax		/* no such block on this machine */
	je	done
	leaw	8(%si), %dx
	outl	%eax, %dx
	movb	$'E', %al
	call	print
skip:	incl	%ebx
	cmpl	$BUSES, %ebx
	jb	next
done:	ret

/* write %al and a newline to the serial port */
print:	movw	$COM1, %dx
	outb	%al, %dx
	movb	$'\n', %al
	outb	%al, %dx
	ret

	/* Glance takes no boot sector without a partition: one of all but it */
	.org	446
	.byte	0x80, 0, 2, 0, 0x83, 0, 0, 0
	.long	1, 2047
	.org	510
	.word	0xaa55
