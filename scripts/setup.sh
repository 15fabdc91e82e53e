#!/usr/bin/env bash
# Finds or installs all that building and testing needs: a Postgres server of the major PG (see
# pgrx.toml) with its headers, libclang, a C compiler, cargo-pgrx and its configuration. Writes
# what it found to target/setup/. Run by every make target; quick when everything is there.
#
# As root, or with a sudo that asks no password, it installs with apt what is missing. Elsewhere
# it names the packages and ends with 1.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# The user that runs the server when root asks for it: Postgres refuses to run as root.
server_user=postgres

missing=()

# need WHAT PACKAGE…: notes that something is missing and what brings it.
need() {
    say "missing: $1"
    shift
    missing+=("$@")
}

check_rust() {
    have cargo || fail "cargo is missing: install Rust (with rustup, or your distribution's rustc and cargo)"
    cargo fmt --version >/dev/null 2>&1 || fail "rustfmt is missing: rustup component add rustfmt"
    cargo clippy --version >/dev/null 2>&1 || fail "clippy is missing: rustup component add clippy"
}

# bindgen reads Postgres' headers with libclang, from one of these places.
have_libclang() {
    local place
    for place in "${LIBCLANG_PATH:-}" \
        "$(llvm-config --libdir 2>/dev/null || true)" \
        /usr/lib/llvm*/lib /usr/lib /usr/lib64 /usr/local/lib /usr/lib/*-linux-gnu; do
        if [ -n "$place" ] && compgen -G "$place/libclang*.so*" >/dev/null; then
            return 0
        fi
    done
    return 1
}

check_tools() {
    have cc || need "a C compiler" gcc libc6-dev
    # librdkafka, which examples/kafka compiles, has C++ in it.
    have c++ || need "a C++ compiler" g++
    have make || need make make
    have pkg-config || need pkg-config pkg-config
    have_libclang || need libclang libclang-dev
    # cargo pgrx test starts its server through sudo when it may not start it itself.
    if am_root && ! have sudo; then
        need sudo sudo
    fi
}

# Whether this user may put an extension into the installation of a pg_config.
writable() { [ -w "$("$1" --pkglibdir)" ] && [ -w "$("$1" --sharedir)/extension" ]; }

# complete PG_CONFIG: whether it belongs to a server of the wanted major that one can build for.
complete() {
    local version
    version=$("$1" --version 2>/dev/null) || return 1
    [[ $version == "PostgreSQL $PG"[.a-z]* ]] &&
        [ -f "$("$1" --includedir-server)/postgres.h" ] &&
        [ -x "$("$1" --bindir)/initdb" ]
}

# Sets PG_CONFIG to a system installation, if there is one that is complete and that this user may
# install into; otherwise sets read_only to one that is complete at least. Who has set PG_CONFIG
# wants that one, and no other instead of it.
named=${PG_CONFIG:-}
find_system_postgres() {
    local candidate candidates=("$(toml "$feature" pg_config)" "$(command -v pg_config || true)")
    [ -z "$named" ] || candidates=("$named")
    read_only=
    for candidate in "${candidates[@]}"; do
        if [ -n "$candidate" ] && complete "$candidate"; then
            if writable "$candidate" || sudo_works; then
                PG_CONFIG=$candidate
                return 0
            fi
            read_only=$candidate
        fi
    done
    PG_CONFIG=
    return 1
}

wheel_dir=$target/pg/$PG

# Sets PG_CONFIG to the wheel's installation, if it is unpacked and is the one pgrx.toml names.
find_wheel_postgres() {
    [ "$(cat "$wheel_dir/.wheel" 2>/dev/null)" = "$(toml "$feature" wheel)" ] || return 1
    PG_CONFIG=$wheel_dir/$(toml "$feature" wheel_pg_config)
    complete "$PG_CONFIG"
}

# Whether the server's user can get at a path. Root's own folders are often closed to it.
reachable() {
    ! am_root || sudo -n -u "$server_user" test -x "$1"
}

install_wheel() {
    local wheel
    wheel=$(toml "$feature" wheel)
    heading "unpacking Postgres $PG from the wheel $wheel"
    rm -rf "$wheel_dir"
    mkdir -p "$wheel_dir"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --no-compile --only-binary=:all: \
        --implementation cp --python-version "$(toml "$feature" wheel_python)" \
        --target "$wheel_dir" "$wheel" ||
        fail "cannot get the wheel $wheel; install Postgres $PG with its server headers instead"
    chmod -R u+w,a+rX "$wheel_dir"
    chmod a+x "$wheel_dir/$(dirname "$(toml "$feature" wheel_pg_config)")"/*
    say "$wheel" >"$wheel_dir/.wheel"
    find_wheel_postgres ||
        fail "the wheel $wheel has no complete Postgres $PG in $wheel_dir"
}

# A checkout under a closed folder, /root say: the server's user could not run what is in it.
# Postgres then goes to a folder of this user's under /var/tmp.
choose_wheel_dir() {
    mkdir -p "$target/pg"
    reachable "$target/pg" && return
    mkdir -p "$open_dir"
    if [ -L "$open_dir" ] || [ ! -O "$open_dir" ]; then
        fail "$open_dir belongs to somebody else; remove it"
    fi
    chmod 755 "$open_dir"
    wheel_dir=$open_dir/pg$PG
}

apt_install() {
    have apt-get || return 1
    local sudo=()
    if ! am_root; then
        sudo_works || return 1
        sudo=(sudo -n)
    fi
    heading "installing $*"
    "${sudo[@]}" apt-get update -q &&
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -q -y --no-install-recommends "$@"
}

install_missing() {
    [ ${#missing[@]} = 0 ] && return
    apt_install "${missing[@]}" && missing=() && return
    say "Install these packages (Debian's names), or run this as root or with a sudo that asks no"
    say "password on a system with apt:"
    printf '    %s\n' "${missing[@]}"
    if [ "$PG" = 15 ]; then
        say "For Postgres 16 and 18 no server package is needed: make … PG=16, make … PG=18."
    fi
    exit 1
}

install_server_user() {
    am_root || return 0
    id "$server_user" >/dev/null 2>&1 && return
    heading "adding the system user $server_user, because Postgres refuses to run as root"
    useradd --system --user-group --home-dir /nonexistent --shell /usr/sbin/nologin "$server_user"
}

# The pgrx that Cargo.toml pins: cargo-pgrx must be of the very same version.
pgrx_version() { sed -n 's/^pgrx *= *"=\([0-9.]*\)".*/\1/p' Cargo.toml; }

install_cargo_pgrx() {
    local wanted found
    wanted=$(pgrx_version)
    [ -n "$wanted" ] || fail "Cargo.toml does not pin pgrx as pgrx = \"=X.Y.Z\""
    found=$(cargo pgrx --version 2>/dev/null || true)
    [ "$found" = "cargo-pgrx $wanted" ] && return
    heading "installing cargo-pgrx $wanted (some minutes, once)"
    if [ -z "$found" ]; then
        cargo install --locked cargo-pgrx --version "=$wanted"
    else
        say "$found stays where it is; the project gets its own in $target/tools"
        cargo install --locked cargo-pgrx --version "=$wanted" --root "$target/tools"
    fi
}

# The file is left alone when it is right: a newer one makes pgrx generate its bindings again.
configure_pgrx() {
    grep -qsxF "$feature = \"$PG_CONFIG\"" "$PGRX_HOME/config.toml" && return
    mkdir -p "$PGRX_HOME"
    cargo pgrx init --no-run "--$feature=$PG_CONFIG"
}

write_down() {
    local tests sudo
    tests=$(cd "$(dirname "$("$PG_CONFIG" --pgxs)")/../test" && pwd)
    if writable "$PG_CONFIG"; then sudo=no; else sudo=yes; fi
    mkdir -p "$target/setup"
    {
        printf 'PG_CONFIG=%q\n' "$PG_CONFIG"
        printf 'pg_bindir=%q\n' "$("$PG_CONFIG" --bindir)"
        printf 'pg_regress=%q\n' "$tests/regress/pg_regress"
        printf 'pg_isolation_regress=%q\n' "$tests/isolation/pg_isolation_regress"
        printf 'install_with_sudo=%q\n' "$sudo"
    } >"$target/setup/$feature.env"
}

check_rust
check_tools
postgres=system
if ! find_system_postgres; then
    if [ -n "$named" ] && [ -z "$read_only" ]; then
        fail "PG_CONFIG=$named is not that of a Postgres $PG with its server and its headers"
    elif [ -z "$named" ] && [ -n "$(toml "$feature" wheel)" ]; then
        postgres=wheel
        python3 -m pip --version >/dev/null 2>&1 || need "Python with pip" python3 python3-pip
    elif [ -n "$read_only" ]; then
        fail "you may not install into the Postgres of $read_only: run this as root or with a" \
            "sudo that asks no password, or take a Postgres that needs neither: PG=16 or PG=18"
    else
        # shellcheck disable=SC2046 # one package a word
        need "a Postgres $PG server with its headers" $(toml "$feature" apt)
    fi
fi
install_missing
install_server_user
if [ "$postgres" = wheel ]; then
    choose_wheel_dir
    find_wheel_postgres || install_wheel
elif [ -z "$PG_CONFIG" ]; then
    find_system_postgres ||
        fail "still no Postgres $PG server with its headers"
fi
install_cargo_pgrx
configure_pgrx
write_down
