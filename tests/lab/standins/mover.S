/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover: the smallest guest that shows the state of its devices.
 *
 * A boot sector.  It finds the kernel's sample serial ports, mtty, by their
 * ids 4348:3253, and virtual functions of the A40, 10de:2235 (four at most, in
 * the order of their PCI slots).  Of an mtty it uses the scratch register, of
 * a function the byte at 8 in BAR 0.  A character X on the guest's own serial
 * port makes it write X into the first of them, the next character into the
 * second, and so on.  Every second it prints a line
 *     =REGISTERS TICKS
 * where REGISTERS has one character for each device, read from it, and TICKS
 * are the timer ticks that the guest has lived, in hexadecimal: a guest that
 * was restarted counts from 0 again.
 *
 * The image must be padded to 1 MiB: SeaBIOS ignores a smaller virtio disk.
 */
	.code16
	.globl	_start

	.set	COM1, 0x3f8
	.set	LINE_STATUS, 5		/* registers of a 16550 */
	.set	SCRATCH, 7
	.set	IN_BAR, 8		/* a bit that a BAR's flags may have set */
	.set	MTTY, 0x32534348	/* device and vendor, as PCI has them */
	.set	A40, 0x223510de
	.set	ENABLED, 1 << 31
	.set	DEVICE, 1 << 11		/* from one PCI device to the next */
	.set	BUSES, 32
	.set	BAR0, 0x10
	.set	MOST, 4
	.set	PORTS, 0x7e00		/* of registers, 32 bit, behind this sector */
	.set	LAST_PORT, 0xffff	/* larger numbers are memory */

_start:	cli
	xorw	%ax, %ax
	movw	%ax, %ds
	movw	%ax, %ss
	movw	$_start, %sp
	lgdt	descriptor		/* let %fs reach all memory */
	movl	%cr0, %eax
	orb	$1, %al
	movl	%eax, %cr0
	movw	$8, %bx
	movw	%bx, %fs
	andb	$0xfe, %al
	movl	%eax, %cr0
	xorw	%bx, %bx
	movw	%bx, %fs
	sti
	xorl	%ebp, %ebp		/* ticks */
	movw	$PORTS, %di		/* the end of the table */
	movl	$ENABLED, %ebx
scan:	movl	%ebx, %eax
	call	config
	movb	$SCRATCH, %ch
	cmpl	$MTTY, %eax
	je	found
	movb	$IN_BAR, %ch
	cmpl	$A40, %eax
	jne	next
found:	movl	%ebx, %eax
	movb	$BAR0, %al
	call	config
	andb	$0xf8, %al
	orb	%ch, %al
	movl	%eax, (%di)
	addw	$4, %di
	cmpw	$PORTS + 4 * MOST, %di
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
	movl	(%si), %edx
	cmpl	$LAST_PORT, %edx
	ja	store
	outb	%al, %dx
	jmp	more
store:	movb	%al, %fs:(%edx)
more:	incb	%al
	addw	$4, %si
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
	movl	(%si), %edx
	cmpl	$LAST_PORT, %edx
	ja	fetch
	inb	%dx, %al
	jmp	shown
fetch:	movb	%fs:(%edx), %al
shown:	call	print
	addw	$4, %si
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

	.balign	8
table:	.quad	0			/* a table's first entry is not used */
	.quad	0x00cf92000000ffff	/* data, from 0, 4 GiB */
descriptor:
	.word	. - table - 1
	.long	table

	/* Glance takes no boot sector without a partition: one of all but it */
	.org	446
	.byte	0x80, 0, 2, 0, 0x83, 0, 0, 0
	.long	1, 2047
	.org	510
	.word	0xaa55
