/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acker: the smallest guest that answers a hot unplug.
 *
 * "virsh detach-device --live" only completes when the guest ejects the
 * device.  This boot sector polls QEMU's ACPI PCI hot plug registers
 * (docs/specs/acpi_pci_hotplug: select bus at base+0x10, pending ejections
 * at base+4, eject at base+8; base is 0xcc0 on q35 and 0xae00 on pc) and
 * ejects what is asked for.  On the first serial port it writes "U" when it
 * is up and "E" for each bus on which it ejected something.
 *
 * The image must be padded to 1 MiB: SeaBIOS ignores a smaller virtio disk.
 */
	.code16
	.globl	_start

	.set	COM1, 0x3f8
	.set	HOTPLUG_Q35, 0xcc0
	.set	HOTPLUG_PC, 0xae00
	.set	BUSES, 32

_start:	xorw	%ax, %ax
	movw	%ax, %ds
	movw	%ax, %ss
	movw	$_start, %sp
	movb	$'U', %al
	call	print
poll:	movw	$HOTPLUG_Q35, %si
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
	je	skip
	leaw	8(%si), %dx
	outl	%eax, %dx
	movb	$'E', %al
	call	print
skip:	incl	%ebx
	cmpl	$BUSES, %ebx
	jb	next
	ret

/* write %al and a newline to the serial port */
print:	movw	$COM1, %dx
	outb	%al, %dx
	movb	$'\n', %al
	outb	%al, %dx
	ret

	.org	510
	.word	0xaa55
