#!/usr/bin/env bash
# Checks what was released once and must stay (G13): the install scripts of released versions are
# what they were, and the library still has every C function that one of them, or an upgrade script,
# names. A session with an older extension, or a dump of one, would miss it otherwise.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

(cd sql/released && sha256sum --check --quiet SHA256SUMS) ||
    fail "a released script has changed; put the change into an upgrade script instead"
for script in sql/released/*.sql; do
    grep -qF "  $(basename "$script")" sql/released/SHA256SUMS ||
        fail "$script is not in sql/released/SHA256SUMS"
done
say "$(wc -l <sql/released/SHA256SUMS) released scripts are unchanged"

library=$("$PG_CONFIG" --pkglibdir)/$extension.so
[ -e "$library" ] || fail "$library is missing: run make install"
# Each function has a second symbol, with which Postgres asks how it is called.
wanted=$(sed -n "s/.*'MODULE_PATHNAME', '\([a-z0-9_]*\)'.*/\1\npg_finfo_\1/p" sql/released/*.sql sql/*--*.sql | sort -u)
# What the postmaster starts by name.
wanted+=$'\nsequential_inbox_launcher_main\nsequential_inbox_worker_main'
missing=$(comm -23 <(sort -u <<<"$wanted") <(nm --dynamic --defined-only "$library" | awk '{ print $NF }' | sort -u))
[ -z "$missing" ] || fail "the library lacks symbols of released versions: $(tr '\n' ' ' <<<"$missing")"
say "$(wc -l <<<"$wanted") symbols are in the library"
