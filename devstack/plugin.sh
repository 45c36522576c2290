# SPDX-License-Identifier: Apache-2.0
# DevStack plugin: nova-accel in nova-compute, nova-scheduler and nova-api.
#
# local.conf:
#     enable_plugin nova-accel URL [BRANCH]
#
# DevStack installs Nova editable, so that nova-compute finds the driver by
# config_source, which a line compute_driver would precede.

_XTRACE_NOVA_ACCEL=$(set +o | grep xtrace)
set +o xtrace

_NOVA_ACCEL_FILTER=AcceleratorFilter
_NOVA_ACCEL_FILTER_CLASS=filters.accelerator_filter.$_NOVA_ACCEL_FILTER
_NOVA_ACCEL_WEIGHER=filters.accelerator_weigher.AcceleratorWeigher

# Install the library where a service of Nova runs, with the extras of
# nova-compute where that does.
function install_nova_accel {
    if is_service_enabled n-cpu; then
        setup_develop "$NOVA_ACCEL_DIR" "$NOVA_ACCEL_EXTRAS"
    elif is_service_enabled n-sch n-api; then
        setup_develop "$NOVA_ACCEL_DIR"
    fi
}

# Print the files that DevStack reads nova-compute's configuration from, or
# copies it of when it starts the service.
function _list_nova_accel_compute_conf {
    local file
    for file in "$NOVA_CONF" "$NOVA_CONF_DIR"/nova_cell*.conf \
        "${NOVA_CPU_CONF:-}"; do
        if [[ -f "$file" ]]; then
            echo "$file"
        fi
    done
}

function configure_nova_accel_compute {
    local file line i
    local lines=()
    while read -r line; do
        if [[ -n "$line" ]]; then
            # The sed of iniadd_literal removes one level of backslashes.
            lines+=("${line//\\/\\\\}")
        fi
    done <<< "$NOVA_ACCEL_DEVICE_SPEC"
    for file in $(_list_nova_accel_compute_conf); do
        inidelete "$file" DEFAULT compute_driver
        iniset "$file" DEFAULT config_source accel
        iniset "$file" accel driver nova_accel
        iniset "$file" nova_accel state_dir "$NOVA_ACCEL_STATE_DIR"
        if [[ ${#lines[@]} -gt 0 ]]; then
            # iniset_multiline splits values at spaces. Each line is added
            # below the section's name, so the last one comes first.
            inidelete "$file" nova_accel device_spec
            for ((i = ${#lines[@]} - 1; i >= 0; i--)); do
                iniadd_literal "$file" nova_accel device_spec "${lines[i]}"
            done
        fi
    done
}

# Enable the filter behind all others, and the weigher.
function configure_nova_accel_scheduler {
    local enabled
    enabled=$(iniget "$NOVA_CONF" filter_scheduler enabled_filters)
    if [[ -z "$enabled" ]]; then
        enabled=$NOVA_FILTERS
    fi
    enabled=${enabled//,$_NOVA_ACCEL_FILTER/}
    iniset "$NOVA_CONF" filter_scheduler enabled_filters \
        "$enabled,$_NOVA_ACCEL_FILTER"
    iniset_multiline "$NOVA_CONF" filter_scheduler available_filters \
        nova.scheduler.filters.all_filters "$_NOVA_ACCEL_FILTER_CLASS"
    iniset "$NOVA_CONF" filter_scheduler weight_classes \
        "nova.scheduler.weights.all_weighers,$_NOVA_ACCEL_WEIGHER"
}

function configure_nova_accel {
    if is_service_enabled n-cpu; then
        configure_nova_accel_compute
    fi
    if is_service_enabled n-sch; then
        configure_nova_accel_scheduler
    fi
}

function cleanup_nova_accel {
    rm -rf "$NOVA_ACCEL_STATE_DIR"
}

case "$1/${2:-}" in
    stack/install)
        echo_summary "Installing nova-accel"
        install_nova_accel
        ;;
    stack/post-config)
        echo_summary "Configuring nova-accel"
        configure_nova_accel
        ;;
    clean/)
        cleanup_nova_accel
        ;;
esac

$_XTRACE_NOVA_ACCEL
