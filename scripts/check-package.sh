#!/usr/bin/env bash
# Checks the Debian package that package.sh built (G13: it survives installation, upgrade and
# removal):
#
# - lintian has nothing to say,
# - it carries the library, the control file, the install script of its version and every script
#   that sql/ has for earlier ones, and it depends on its Postgres and on libc,
# - installed into a Debian that has never seen the project, it does what it is for, and removed
#   again it leaves no file behind: check-package-inside.sh.
#
# That Debian is of the release that runs here, made with debootstrap (some minutes, once) and kept
# as an archive in target/chroot/. Each run unpacks it anew. What runs in it has process ids, mounts
# and a network of its own, all of which end with the run. Needs root, or a sudo that asks no
# password.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/release-common.sh
. "$(dirname "$0")/release-common.sh"
load_setup

name=postgresql-$PG-sequential-inbox
package=$packages/${name}_$(debian_version)_$(dpkg --print-architecture).deb
[ -f "$package" ] || fail "$package is missing: make package"

grep -qx ID=debian /etc/os-release || fail "a Debian package is tested on Debian"
# For those who are not root and have no debootstrap on their path.
PATH=$PATH:/usr/sbin

as_root=()
if ! am_root; then
    sudo_works || fail "a Debian to test in can be made by root only, or with a sudo that asks no password"
    as_root=(sudo -n)
fi
need_debian lintian lintian
need_debian debootstrap debootstrap

heading "lintian"
hidden=()
if [ -z "${DEBEMAIL:-}" ]; then
    # package.sh's stand-in for a maintainer's address cannot receive mail, and lintian sees that.
    hidden=(--suppress-tags bogus-mail-host)
fi
lintian --allow-root --fail-on error,warning --tag-display-limit 0 \
    ${hidden[@]+"${hidden[@]}"} "$package"

heading "contents"
contents=$(dpkg-deb --fsys-tarfile "$package" | tar --list)
share=./usr/share/postgresql/$PG/extension
wanted=("./usr/lib/postgresql/$PG/lib/$extension.so" "$share/$extension.control"
    "$share/$extension--$(project_version).sql")
while IFS= read -r script; do
    wanted+=("$share/$(basename "$script")")
done < <(find sql -name "$extension--*.sql")
for file in "${wanted[@]}"; do
    grep -qxF "$file" <<<"$contents" || fail "the package lacks $file"
done
depends=$(dpkg-deb --field "$package" Depends)
for dependency in "postgresql-$PG" libc6; do
    grep -qE "(^|, )$dependency( |,|$)" <<<"$depends" || fail "does not depend on $dependency: $depends"
done
say "${#wanted[@]} files of the extension; depends on $depends"

suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
chroots=$target/chroot
archive=$chroots/$suite-pg$PG.tar
work=$chroots/pg$PG-$$
cleanup() { "${as_root[@]}" rm -rf --one-file-system "$work"; }
trap cleanup EXIT

# inside NETWORK COMMAND…: runs a command as root in the chroot, with a /proc of its own. NETWORK is
# none or host. Whatever the command starts ends with it.
inside() {
    local own=(--mount --pid --fork --kill-child)
    [ "$1" = host ] || own+=(--net)
    shift
    # shellcheck disable=SC2016 # the inner shell's
    "${as_root[@]}" unshare "${own[@]}" sh -c '
        root=$1; shift
        mount -t proc proc "$root/proc" && mount -t tmpfs shm "$root/dev/shm" &&
            exec chroot "$root" /usr/bin/env -i LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
                PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' sh "$work" "$@"
}

make_archive() {
    heading "making a Debian $suite with Postgres $PG to test in (some minutes, once)"
    "${as_root[@]}" debootstrap --variant=minbase "$suite" "$work" >"$chroots/debootstrap.log" 2>&1 ||
        { tail -n 20 "$chroots/debootstrap.log"; fail "debootstrap failed"; }
    # No package starts a server, and none makes a cluster.
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$work/usr/sbin/policy-rc.d" >/dev/null
    "${as_root[@]}" chmod +x "$work/usr/sbin/policy-rc.d"
    "${as_root[@]}" mkdir -p "$work/etc/postgresql-common"
    echo "create_main_cluster = false" |
        "${as_root[@]}" tee "$work/etc/postgresql-common/createcluster.conf" >/dev/null
    inside host apt-get install -q -y --no-install-recommends "postgresql-$PG"
    inside host apt-get clean
    "${as_root[@]}" tar --create --numeric-owner --one-file-system --directory="$work" \
        --file="$archive.part" .
    "${as_root[@]}" mv "$archive.part" "$archive"
    cleanup
}

mkdir -p "$chroots"
[ -f "$archive" ] || make_archive
mkdir "$work"
"${as_root[@]}" tar --extract --numeric-owner --directory="$work" --file="$archive"
"${as_root[@]}" cp "$package" "$root/scripts/check-package-inside.sh" "$work/tmp/"
inside none /tmp/check-package-inside.sh "/tmp/$(basename "$package")" "$PG" "$(project_version)"
