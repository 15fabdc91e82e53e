#!/usr/bin/env bash
# Follows the relative links of README.md, docs/*.md and the other pages: the file must exist, and
# the heading that a link names, too. Links to other sites are left alone.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# anchors PAGE: what its headings can be linked by, as common renderers of Markdown name them.
anchors() {
    awk '/^```/ { code = !code } !code && /^#+ / { sub(/^#+ /, ""); print }' "$1" |
        tr '[:upper:]' '[:lower:]' | sed "s/[^a-z0-9_ -]//g; s/ /-/g"
}

# links PAGE: the targets of its links, one a line.
links() {
    # shellcheck disable=SC2016 # backticks of Markdown
    awk '/^ *```/ { code = !code } !code' "$1" | sed 's/`[^`]*`//g' |
        grep -o '\](\([^)]*\))' | sed 's/^](//; s/)$//' | grep -v '^[a-z]*:' || true
}

wrong=0
count=0
for page in *.md docs/*.md client/*.md; do
    while IFS= read -r link; do
        [ -n "$link" ] || continue
        count=$((count + 1))
        file=${link%%#*}
        file=${file:+$(dirname "$page")/$file}
        file=${file:-$page}
        if [ ! -e "$file" ]; then
            say "$page: $link leads nowhere"
            wrong=1
        elif [ "$link" != "${link#*#}" ] && ! anchors "$file" | grep -qxF -- "${link#*#}"; then
            say "$page: $link names no heading of $file"
            wrong=1
        fi
    done < <(links "$page")
done
[ "$count" != 0 ] || fail "no page has a link"
[ "$wrong" = 0 ] && say "$count links lead somewhere"
exit "$wrong"
