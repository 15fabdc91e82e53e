# Sourced, after common.sh, by the scripts that make and check what is released: the version, and
# tools that building and testing do not need. Not to be run by itself.
# shellcheck shell=bash
# shellcheck disable=SC2154 # common.sh sets these

# shellcheck source=scripts/packages.sh
. "$root/scripts/packages.sh"

# Where finished packages go.
# shellcheck disable=SC2034 # used by those who source this
packages=$target/package

# The version of the extension, as Cargo.toml has it.
project_version() {
    local id
    id=$(cargo pkgid --offline --package "$extension" 2>/dev/null || cargo pkgid --package "$extension")
    printf '%s\n' "${id##*[#@]}"
}

# Debian's way to write that version: a pre-release sorts before its release.
debian_version() {
    local version
    version=$(project_version)
    printf '%s-1\n' "${version/-/\~}"
}

# need_debian COMMAND PACKAGE: installs the package of a command that is missing.
need_debian() { have "$1" || need_package "$1" "$2"; }

# need_cargo_tool NAME VERSION: a cargo subcommand of exactly that version, in a place of the
# project's own if there is none or another one.
need_cargo_tool() {
    local found
    found=$(cargo "${1#cargo-}" --version 2>/dev/null || true)
    case " $found " in
    *" $2 "*) return ;;
    esac
    heading "installing $1 $2 (some minutes, once)"
    cargo install --locked "$1" --version "=$2" --root "$target/tools"
}
