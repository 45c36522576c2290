/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover: the smallest guest that shows the state of its devices.
 *
 * A boot sector.  It finds the kernel's sample serial ports, mtty, by their
 * ids 4348:3253 (four at most, in the order of their PCI slots).  A character
 * X on the guest's own serial port makes it write X into the scratch register
 * of the first mtty, the next character into that of the second, and so on.
 * Every second it prints a line
 *     =REGISTERS TICKS
 * where REGISTERS has one character for each mtty, read from it, and TICKS are
 * the timer ticks that the guest has lived, in hexadecimal: a guest that was
 * restarted counts from 0 again.
 *
 * The image must be padded to 1 MiB: SeaBIOS ignores a smaller virtio disk.
 */
	.code16
	.globl	_start

	.set	COM1, 0x3f8
	.set	LINE_STATUS, 5		/* registers of a 16550 */
	.set	SCRATCH, 7
	.set	MTTY, 0x32534348	/* device and vendor, as PCI has them */
	.set	ENABLED, 1 << 31
	.set	DEVICE, 1 << 11		/* from one PCI device to the next */
	.set	BUSES, 32
	.set	BAR0, 0x10
	.set	MOST, 4
	.set	PORTS, 0x7e00		/* 16-bit I/O ports, behind this sector */

_start:	cli
	xorw	%ax, %ax
	movw	%ax, %ds
	movw	%ax, %ss
	movw	$_start, %sp
	sti
	xorl	%ebp, %ebp		/* ticks */
	movw	$PORTS, %di		/* the end of the table */
	movl	$ENABLED, %ebx
scan:	movl	%ebx, %eax
	call	config
	cmpl	$MTTY, %eax
	jne	next
	movl	%ebx, %eax
	movb	$BAR0, %al
	call	config
	andb	$0xf8, %al
	movw	%ax, (%di)
	addw	$2, %di
	cmpw	$PORTS + 2 * MOST, %di
	je	loop
next:	addl	$DEVICE, %ebx
	cmpl	$ENABLED + (BUSES << 16), %ebx
	jb	scan

loop:	movw	$COM1 + LINE_STATUS, %dx
	inb	%dx, %al
	testb	$1, %al
	jz	idle
	movw	$COM1, %dx
	inb	%dx, %al
	movw	$PORTS, %si
write:	cmpw	%di, %si
	je	loop
	movw	(%si), %dx
	addw	$SCRATCH, %dx
	outb	%al, %dx
	incb	%al
	addw	$2, %si
	jmp	write
idle:	hlt				/* until the next timer tick */
	incl	%ebp
	testw	$15, %bp
	jnz	loop

	movb	$'=', %al
	call	print
	movw	$PORTS, %si
read:	cmpw	%di, %si
	je	ticks
	movw	(%si), %dx
	addw	$SCRATCH, %dx
	inb	%dx, %al
	call	print
	addw	$2, %si
	jmp	read
ticks:	movb	$' ', %al
	call	print
	movl	%ebp, %ecx
	movw	$8, %bx
digit:	roll	$4, %ecx
	movb	%cl, %al
	andb	$15, %al
	addb	$'0', %al
	cmpb	$'9', %al
	jbe	plain
	addb	$'a' - '9' - 1, %al
plain:	call	print
	decw	%bx
	jnz	digit
	movb	$'\r', %al
	call	print
	movb	$'\n', %al
	call	print
	jmp	loop

/* read the configuration register at %eax */
config:	movw	$0xcf8, %dx
	outl	%eax, %dx
	movw	$0xcfc, %dx
	inl	%dx, %eax
	ret

/* write %al to the serial port */
print:	movb	%al, %ah
1:	movw	$COM1 + LINE_STATUS, %dx
	inb	%dx, %al
	testb	$0x20, %al
	jz	1b
	movw	$COM1, %dx
	movb	%ah, %al
	outb	%al, %dx
	ret

	/* Glance takes no boot sector without a partition: one of all but it */
	.org	446
	.byte	0x80, 0, 2, 0, 0x83, 0, 0, 0
	.long	1, 2047
	.org	510
	.word	0xaa55
