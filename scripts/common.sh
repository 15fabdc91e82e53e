# Sourced by every script here: where things are, which Postgres is wanted, how to say what is
# wrong. Not to be run by itself.
# shellcheck shell=bash

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# What the scripts say about themselves must not depend on the reader's language.
export LC_ALL=C.UTF-8

target=${CARGO_TARGET_DIR:-target}
case $target in
/*) ;;
*) target=$root/$target ;;
esac
extension=sequential_inbox

# Where Postgres is unpacked when the checkout is closed to the user that runs the server.
# shellcheck disable=SC2034 # used by those who source this
open_dir=/var/tmp/$extension-$(id -u)

say() { printf '%s\n' "$*"; }
heading() { printf '\n==> %s\n' "$*"; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# toml TABLE KEY: a value of pgrx.toml, empty when it is not there. The TABLE "" is the top.
toml() {
    awk -v table="$1" -v key="$2" '
        /^[[:space:]]*\[/ { current = $0; gsub(/[][[:space:]]/, "", current); next }
        /^[[:space:]]*#/ { next }
        current == table && match($0, /=/) {
            name = substr($0, 1, RSTART - 1); gsub(/[[:space:]]/, "", name)
            value = substr($0, RSTART + 1)
            if (name == key && match(value, /"[^"]*"/)) {
                print substr(value, RSTART + 1, RLENGTH - 2)
                exit
            }
        }' "$root/pgrx.toml"
}

PG=${PG:-$(toml '' default)}
majors=$(sed -n 's/^\[pg\([0-9]*\)\]$/\1/p' "$root/pgrx.toml" | tr '\n' ' ')
case " $majors" in
*" $PG "*) ;;
*) fail "PG=$PG is not supported; pgrx.toml lists: $majors" ;;
esac
feature=pg$PG

# What cargo builds. The extension's crate needs the features of exactly one major, the others are
# to be built with all theirs, hence always two calls. Each takes the same features everywhere, so
# that clippy, tests and documentation share what was compiled.
# shellcheck disable=SC2034 # used by those who source this
extension_crate=(--package "$extension" --no-default-features --features "$feature")
# shellcheck disable=SC2034 # the same
other_crates=(--workspace --exclude "$extension" --all-features)

# A user's own ~/.pgrx is left alone.
export PGRX_HOME=$target/pgrx/$feature

# cargo-pgrx would pass a linker flag to every crate of the extension's build, which makes cargo
# build them all once more than for clippy and the tests. build.rs gives that flag to the linker
# of the extension alone.
export CARGO_PGRX_DISABLE_GC_SECTIONS_WORKAROUND=1

# A cargo-pgrx of the project's own comes before one of another version.
PATH=$target/tools/bin:$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
export PATH

am_root() { [ "$(id -u)" = 0 ]; }
have() { command -v "$1" >/dev/null 2>&1; }

# Whether sudo works without asking for a password.
sudo_works() { have sudo && sudo -n true 2>/dev/null; }

# What setup.sh found out.
load_setup() {
    # shellcheck disable=SC2034 # used by those who source this
    PG_CONFIG='' pg_bindir='' pg_regress='' pg_isolation_regress='' install_with_sudo=''
    [ -f "$target/setup/$feature.env" ] || fail "run scripts/setup.sh first"
    # shellcheck source=/dev/null
    . "$target/setup/$feature.env"
    export PG_CONFIG
}
