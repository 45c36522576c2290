# SPDX-License-Identifier: Apache-2.0
"""Script of a guest that gives the token to NVIDIA's driver.

It is vendordata for cloud-init: a text under the key ``cloud-init``. An
object there is an error for cloud-init (convert_vendordata in
cloudinit/sources/__init__.py). It is a script, and not cloud-config: lists
of a user's own cloud-config, such as write_files, replace those of the
vendor.

Paths, the option and the file's mode are those of NVIDIA's licensing guide.
"""

import json
import shlex

from placement_sync.licenses import tokens

#: Values of FeatureType in gridd.conf: no licence, vGPU, RTX virtual
#: workstation and compute server; the last two are for whole cards.
FEATURE_TYPES = (0, 1, 2, 4)
#: Of a vGPU; its type decides which licence is taken.
VGPU_FEATURE = 1
_KEY = "cloud-init"
_SCRIPT = """\
#!/bin/sh
# Licence of NVIDIA's driver, written by nova-accel.
set -eu
cut -f 2 /proc/bus/pci/devices | grep -q '^10de' || exit 0
umask 022
directory=/etc/nvidia/ClientConfigToken
file=$directory/client_configuration_token_nova-accel.tok
mkdir -p "$directory"
touch /etc/nvidia/gridd.conf
sed -i '/^[[:space:]]*FeatureType[[:space:]]*=/d' /etc/nvidia/gridd.conf
echo 'FeatureType={feature}' >> /etc/nvidia/gridd.conf
printf '%s' {token} > "$file.new"
chmod 744 "$file.new"
mv "$file.new" "$file"
if systemctl cat nvidia-gridd.service > /dev/null 2>&1; then
    systemctl restart nvidia-gridd.service
fi
"""


def build_script(token: tokens.Token, feature: int = VGPU_FEATURE) -> str:
    """Return the script; it does nothing in a guest without a GPU.

    :param feature: one of FEATURE_TYPES.
    """
    return _SCRIPT.format(feature=feature, token=shlex.quote(token.text))


def build_vendordata(script: str) -> str:
    """Return the content of Nova's static vendordata with a script."""
    return json.dumps({_KEY: script}, indent=2) + "\n"
