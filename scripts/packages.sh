# Sourced, after common.sh, by scripts that need a Debian package for a test. Not to be run by
# itself.
# shellcheck shell=bash

# Debian asks this program whether a package may start its service.
service_policy=/usr/sbin/policy-rc.d

# install_packages PACKAGE…: as root, or with a sudo that asks no password; elsewhere it ends with
# 1. A service that a package brings is not started, now or at the next boot: tests start their
# own, on ports of their own.
install_packages() (
    have apt-get || exit 1
    sudo=()
    if ! am_root; then
        sudo_works || exit 1
        sudo=(sudo -n)
    fi
    heading "installing $*"
    if [ ! -e "$service_policy" ]; then
        trap '${sudo[@]+"${sudo[@]}"} rm -f "$service_policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' |
            ${sudo[@]+"${sudo[@]}"} tee "$service_policy" >/dev/null
        ${sudo[@]+"${sudo[@]}"} chmod 755 "$service_policy"
    fi
    apt=(${sudo[@]+"${sudo[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -q
        -o DPkg::Lock::Timeout=300)
    "${apt[@]}" update || exit
    "${apt[@]}" install -y --no-install-recommends "$@" || exit
    for package in "$@"; do
        if [ -e "/etc/init.d/$package" ]; then
            ${sudo[@]+"${sudo[@]}"} update-rc.d "$package" disable
        fi
    done
)

# need_package WHAT PACKAGE…: installs what is missing, or says so and ends.
need_package() {
    local what=$1
    shift
    install_packages "$@" || fail "$what is missing: install the Debian packages $*"
}
