#!/usr/bin/env bash
# Follows the relative links of every Markdown file of the project: the file must exist, inside of
# the project, and the heading that a link names, too. Links to other sites are left alone.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/docs-pages.sh
. "$(dirname "$0")/docs-pages.sh"

# anchors PAGE: what its headings can be linked by, as common renderers of Markdown name them.
anchors() {
    awk '/^```/ { code = !code } !code && /^#+ / { sub(/^#+ /, ""); print }' "$1" |
        tr '[:upper:]' '[:lower:]' | sed "s/[^a-z0-9_ -]//g; s/ /-/g"
}

# has_anchor FILE ANCHOR: read once a file.
declare -A anchors_of
has_anchor() {
    [ -n "${anchors_of[$1]+read}" ] || anchors_of[$1]=$'\n'$(anchors "$1")$'\n'
    [[ ${anchors_of[$1]} == *$'\n'"$2"$'\n'* ]]
}

wrong=0
count=0
while IFS= read -r page; do
    while IFS= read -r link; do
        [ -n "$link" ] || continue
        count=$((count + 1))
        file=${link%%#*}
        file=${file:+$(dirname "$page")/$file}
        file=${file:-$page}
        if [ ! -e "$file" ]; then
            say "$page: $link leads nowhere"
            wrong=1
        elif [[ $file == *..* && $(realpath "$file") != "$root"/* ]]; then
            say "$page: $link leads out of the project"
            wrong=1
        elif [ -d "$file" ]; then
            say "$page: $link is a folder; link a file in it, which the book can show"
            wrong=1
        elif [[ $link == *#* ]] && ! has_anchor "$file" "${link#*#}"; then
            say "$page: $link names no heading of $file"
            wrong=1
        fi
    done < <(links "$page")
done < <(markdown_pages)
[ "$count" != 0 ] || fail "no page has a link"
[ "$wrong" = 0 ] && say "$count links lead somewhere"
exit "$wrong"
