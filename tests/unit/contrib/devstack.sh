# SPDX-License-Identifier: Apache-2.0
# Substitutes of the functions of DevStack that the plugin calls. Each call of
# setup_develop is a line of $CALLS. The names and arguments are those of
# DevStack's functions-common, inc/ini-config and inc/python.

function is_service_enabled {
    local service
    for service in "$@"; do
        [[ ",$ENABLED_SERVICES," == *",$service,"* ]] && return 0
    done
    return 1
}

function echo_summary { echo "$@"; }

function setup_develop { echo "setup_develop $*" >> "$CALLS"; }

function _edit { python3 "$(dirname "${BASH_SOURCE[0]}")/devstack_ini.py" "$@"; }

function iniset { _edit set "$@"; }

function iniset_multiline { _edit set "$@"; }

function inidelete { _edit set "$@"; }

function iniget { _edit get "$@"; }
