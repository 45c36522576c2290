# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Functions for jobs inside the lab VM; source it as "$LAB_GUEST/lib.sh".

# lab_say TEXT...: print a line with the seconds since boot
lab_say() {
    read -r lab_up _ < /proc/uptime
    echo "[$lab_up] $*"
}

# lab_modules NAME...: load kernel modules, fail at the first that can't be
lab_modules() {
    for lab_module in "$@"; do
        modprobe "$lab_module" || return 1
    done
}

# lab_virt_type: print the libvirt domain type for this machine; load KVM
# where it is kvm. On an emulated processor nested KVM works too, but on a
# busy host its exits cost more than a timer tick lasts, and the machine
# makes no progress: qemu there.
lab_virt_type() {
    [ "$LAB_KVM" = yes ] || { echo qemu; return; }
    for lab_module in kvm_amd kvm_intel; do
        modprobe "$lab_module" 2> /dev/null && [ -e /dev/kvm ] &&
            echo kvm && return
    done
    echo qemu
}

# lab_vfs ADDRESS COUNT: virtual functions of a physical function that has no
# driver of its own; pci-pf-stub is the kernel's driver for that
lab_vfs() {
    lab_device=/sys/bus/pci/devices/$1
    if [ ! -e "$lab_device/driver" ]; then
        lab_modules pci-pf-stub || return 1
        echo pci-pf-stub > "$lab_device/driver_override"
        echo "$1" > /sys/bus/pci/drivers_probe
    fi
    echo 0 > "$lab_device/sriov_numvfs" && [ "$2" = 0 ] && return
    echo "$2" > "$lab_device/sriov_numvfs"
}

# lab_insmod NAME [PARAMETER...]: a module of our own, unless it is loaded; by
# its path, for the host's own modprobe.d may speak of another of that name
lab_insmod() {
    lab_name=$1
    shift
    [ ! -e "/sys/module/$lab_name" ] || return 0
    insmod "/lib/modules/$(uname -r)/extra/$lab_name.ko" "$@"
}

# lab_rmmod NAME: unload a module if it is loaded
lab_rmmod() {
    [ ! -e "/sys/module/$1" ] || rmmod "$1"
}

# lab_nvidia FORM [ADDRESS [COUNT]]: the fake of NVIDIA's host driver in
# the form mdev or vfio, or off; it takes what no other driver has. With
# ADDRESS, this card gets virtual functions: COUNT, or all.
lab_nvidia() {
    if [ -e /sys/module/nvidia ]; then
        /usr/lib/nvidia/sriov-manage -d ALL && rmmod nvidia || return 1
    fi
    [ "$1" != off ] || return 0
    lab_modules mdev vfio-pci vfio_iommu_type1 pci-pf-stub || return 1
    mkdir -p /usr/lib/nvidia
    cp "$LAB_ROOT/standins/usr-lib/nvidia/sriov-manage" /usr/lib/nvidia/
    lab_insmod nvidia "form=$1" || return 1
    [ -n "$2" ] || return 0
    /usr/lib/nvidia/sriov-manage -e "$2" ${3:+"$3"} || return 1
    [ "$1" = mdev ] || [ -n "$LAB_FILES" ] || lab_detach_once "$2"
}

# lab_detach_once ADDRESS: let libvirt detach the virtual functions of a card
# once, and give them back to the driver nvidia. From 10.0 on, libvirt takes any
# driver with a vfio-dev for one of VFIO; Debian 12's takes vfio-pci only, by
# its name, or a function that it detached itself, whatever drives it now.
lab_detach_once() {
    [ ! -e "/run/known-$1" ] && pidof libvirtd > /dev/null || return 0
    for lab_link in /sys/bus/pci/devices/"$1"/virtfn*; do
        basename "$(readlink "$lab_link")"
    done > "/run/vfs-$1"
    sed 's/^/pci_/; s/[:.]/_/g' "/run/vfs-$1" > "/run/names-$1"
    udevadm settle
    # on a busy host libvirt is seconds behind udev
    for lab_try in $(seq 100); do
        virsh -q nodedev-list --cap pci > "/run/seen-$1" || return 1
        grep -qvxF -f "/run/seen-$1" "/run/names-$1" || break
        sleep 0.2
    done
    sed 's/^/nodedev-detach /' "/run/names-$1" | virsh -q > /dev/null ||
        return 1
    while read -r lab_vf; do
        lab_device=/sys/bus/pci/devices/$lab_vf
        [ "$(basename "$(readlink "$lab_device/driver")")" = vfio-pci ] ||
            return 1
        echo "$lab_vf" > "$lab_device/driver/unbind"
        echo > "$lab_device/driver_override"
        echo "$lab_vf" > /sys/bus/pci/drivers/nvidia/bind || return 1
    done < "/run/vfs-$1"
    mv "/run/vfs-$1" "/run/known-$1"
}

# lab_dfl [off]: the kernel's drivers of FPGA cards with a device feature list,
# which take the PAC; off unloads them
lab_dfl() {
    lab_dfls="fpga-mgr fpga-bridge fpga-region dfl dfl-fme-mgr dfl-fme-br
        dfl-fme-region dfl-fme dfl-afu dfl-pci"
    if [ "$1" = off ]; then
        for lab_module in $lab_dfls; do
            lab_unload="$lab_module ${lab_unload:-}"
        done
        for lab_module in $lab_unload; do
            lab_rmmod "$(echo "$lab_module" | tr - _)" || return 1
        done
        return 0
    fi
    # shellcheck disable=SC2086 # a list of names
    for lab_module in $lab_dfls; do
        [ -e "/sys/module/$(echo "$lab_module" | tr - _)" ] ||
            insmod "/lib/modules/$(uname -r)/extra/$lab_module.ko" || return 1
    done
}

# lab_revive ADDRESS: restore a card that fell off the bus: remove it,
# reset its bus, rescan
lab_revive() {
    lab_device=/sys/bus/pci/devices/$1
    [ -e "$lab_device" ] || return 1
    lab_port=$(basename "$(dirname "$(readlink -f "$lab_device")")")
    echo 1 > "$lab_device/remove"
    setpci -s "$lab_port" BRIDGE_CONTROL=40:40 && sleep 0.1 &&
        setpci -s "$lab_port" BRIDGE_CONTROL=00:40 && sleep 0.2
    echo 1 > "/sys/bus/pci/devices/$lab_port/rescan"
    [ -e "$lab_device" ]
}

# lab_network: the static address that QEMU's user network expects, and the
# machine's own on the wire to another machine
lab_network() {
    modprobe virtio_net || return 1
    for lab_try in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "$(lab_nic 52:54:00:6c:61:62)" ] && break
        sleep 0.1
    done
    lab_first=$(lab_nic 52:54:00:6c:61:62)
    ip address add 10.0.2.15/24 dev "$lab_first" &&
        ip link set "$lab_first" up || return 1
    lab_wire=$(lab_nic 52:54:00:6c:62:)
    [ -n "$lab_wire" ] || return 0
    ip address add "$LAB_ADDRESS/24" dev "$lab_wire" &&
        ip link set "$lab_wire" up
}

# lab_nic MAC: print the network interface whose address begins so
lab_nic() {
    for lab_device in /sys/class/net/*; do
        case $(cat "$lab_device/address") in
        "$1"*) echo "${lab_device##*/}" ;;
        esac
    done
}

# lab_udev: udevd for the events to come (libvirt listens to it)
lab_udev() {
    mkdir -p /run/udev
    /lib/systemd/systemd-udevd --daemon --resolve-names=never
}

# lab_load_modules: load the modules that systemd's services load at the start:
# those of modules-load.d, and those of the PCI functions
lab_load_modules() {
    /usr/lib/systemd/systemd-modules-load && lab_udev &&
        udevadm trigger --action=add --subsystem-match=pci &&
        udevadm settle --timeout=600
}

# lab_qemu: let guests migrate with their mdevs where another Debian's kernel
# has no IOMMUFD: guest/qemu takes the place of QEMU
lab_qemu() {
    [ -n "$LAB_FILES" ] && [ ! -e /sys/class/misc/iommu ] || return 0
    lab_binary=/usr/bin/qemu-system-x86_64
    touch "$lab_binary.real" &&
        mount --bind "$lab_binary" "$lab_binary.real" &&
        mount --bind "$LAB_GUEST/qemu" "$lab_binary"
}

# lab_libvirtd [ADDRESS]: libvirtd; with ADDRESS also on TCP port 16509 there
lab_libvirtd() {
    mkdir -p /run/libvirt /run/lab/capabilities /var/lib/libvirt/qemu
    rm -rf /etc/libvirt/secrets /etc/libvirt/storage \
        /var/lib/libvirt/qemu/* /run/libvirtd.pid
    # what a host has on its disk: the domains, and the memory of those that
    # were saved
    for lab_directory in /etc/libvirt/qemu /var/lib/libvirt/qemu/save; do
        mkdir -p "$lab_directory" "/run/lab/disk$lab_directory" &&
            mount --bind "/run/lab/disk$lab_directory" "$lab_directory" ||
            return 1
    done
    # probing QEMU takes seconds: keep the result between two boots
    lab_cache=/var/cache/libvirt/qemu/capabilities
    rm -rf "$lab_cache" && mkdir -p "$lab_cache"
    mount --bind /run/lab/capabilities "$lab_cache"
    cat > /run/libvirtd.conf << END
auth_unix_ro = "none"
auth_unix_rw = "none"
unix_sock_rw_perms = "0770"
listen_tls = 0
keepalive_interval = -1
log_filters = "4:util.file 4:util.object"
log_outputs = "3:file:/run/lab/libvirtd.log"
END
    if [ -n "$1" ]; then
        printf 'listen_tcp = 1\nlisten_addr = "%s"\nauth_tcp = "none"\n' "$1" \
            >> /run/libvirtd.conf
    fi
    cat > /etc/libvirt/qemu.conf << END
stdio_handler = "file"
security_driver = "none"
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
namespaces = []
cgroup_controllers = []
shared_filesystems = [ "$LAB_SHARE" ]
migration_address = "0.0.0.0"
END
    libvirtd --daemon ${1:+--listen} --config /run/libvirtd.conf || return 1
    for lab_try in $(seq 100); do
        virsh -q uri > /dev/null 2>&1 && return 0
        sleep 0.2
    done
    return 1
}
