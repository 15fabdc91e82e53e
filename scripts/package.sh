#!/usr/bin/env bash
# Builds the Debian package of the extension for the Postgres major PG, from `cargo pgrx package`,
# into target/package/.
#
# With Debian's own tools: debhelper does what every package of the distribution does (strips,
# compresses, sets modes, computes the dependencies on libraries from what the library asks for),
# so that a Debian maintainer finds in packaging/debian/ what they find elsewhere. The files that
# depend on major and version are made here, the version is that of Cargo.toml.
#
# The maintainer is taken from DEBFULLNAME and DEBEMAIL, as Debian's tools do. Without them it is
# an address that cannot exist, which is honest and fit for one's own machines.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/release-common.sh
. "$(dirname "$0")/release-common.sh"
load_setup

[ "$pg_bindir" = "/usr/lib/postgresql/$PG/bin" ] ||
    fail "a Debian package needs Debian's own Postgres $PG, for its paths; found $pg_bindir"
need_debian dpkg-buildpackage dpkg-dev
need_debian dh debhelper

name=postgresql-$PG-sequential-inbox
version=$(debian_version)
staging=$packages/deb-$PG
build=$staging/build
rm -rf "$staging" "$packages/$name"_*.deb
mkdir -p "$build/doc/docs"

heading "building the extension (release) for Postgres $PG"
cargo pgrx package --pg-config "$PG_CONFIG" --out-dir "$build"
# cargo-pgrx takes upgrade scripts along, not the install scripts of earlier versions.
find sql -name "$extension--*.sql" -exec \
    cp --no-clobber --target-directory="$build/usr/share/postgresql/$PG/extension" {} +

heading "packaging $name $version"
cp -R packaging/debian "$build/debian"
for file in install docs lintian-overrides; do
    mv "$build/debian/$file" "$build/debian/$name.$file"
done
maintainer="${DEBFULLNAME:-The sequential_inbox authors} <${DEBEMAIL:-authors@sequential-inbox.invalid}>"
control=$(<"$build/debian/control.in")
control=${control//@PG@/"$PG"}
printf '%s\n' "${control//@MAINTAINER@/"$maintainer"}" >"$build/debian/control"
rm "$build/debian/control.in"

# Two builds of one commit give the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
cat >"$build/debian/changelog" <<END
sequential-inbox ($version) unstable; urgency=medium

  * Release $(project_version). What changed is in the changelog of the project.

 -- $maintainer  $(date --utc --date="@$SOURCE_DATE_EPOCH" --rfc-email)
END

cp README.md CONTRIBUTING.md "$build/doc/"
cp docs/*.md "$build/doc/docs/"
cp CHANGELOG.md "$build/"
cargo metadata --format-version 1 --no-default-features --features "$feature" \
    --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" |
    scripts/third-party-licences.py "$extension" >"$build/doc/third-party-licences.txt"

# The release profile has no debugging information, so there is none to put into a package of its
# own. The build dependencies are those of setup.sh, cargo among them, which Debian's does not know.
(cd "$build" && DEB_BUILD_OPTIONS=noautodbgsym dpkg-buildpackage --build=binary --no-sign --no-check-builddeps)
mv "$staging/$name"_*.deb "$packages/"
say "$packages/$(basename "$packages/$name"_*.deb)"
