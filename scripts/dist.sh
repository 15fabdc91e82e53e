#!/usr/bin/env bash
# Makes the source archive that PGXN takes, from what is committed: target/package/NAME-VERSION.zip.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/release-common.sh
. "$(dirname "$0")/release-common.sh"

version=$(git show HEAD:META.json | sed -n 's/^  "version": "\(.*\)",$/\1/p')
[ -n "$version" ] || fail "META.json is not committed, or has no version"
if [ -n "$(git status --porcelain)" ]; then
    say "note: what is not committed is not in the archive"
fi
name=$extension-$version
mkdir -p "$packages"
git archive --format=zip --prefix="$name/" --output="$packages/$name.zip" HEAD
say "$packages/$name.zip"
