#!/usr/bin/env bash
# Compares docs/SUMMARY.md, the table of contents of the book, with the pages there are, both ways:
# every Markdown file of the project is in it exactly once, and nothing else is. A page that is not
# in it would not be in the book.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/docs-pages.sh
. "$(dirname "$0")/docs-pages.sh"

summary=docs/SUMMARY.md

# The pages it lists, one a line, as paths from the root. Its links are relative to docs/.
listed() {
    grep -o '](\([^)]*\))' "$summary" | sed 's|^](||; s|)$||; s|^\./||; s|^|docs/|; s|^docs/\.\./||' | sort
}

wrong=0
complain() {
    say "$*"
    wrong=1
}

[ -f "$summary" ] || fail "$summary is missing"
while IFS= read -r page; do
    complain "$page is not in $summary"
done < <(comm -13 <(listed | uniq) <(markdown_pages))
while IFS= read -r page; do
    complain "$summary lists $page, which is no page"
done < <(comm -23 <(listed | uniq) <(markdown_pages))
while IFS= read -r page; do
    complain "$summary lists $page twice"
done < <(listed | uniq -d)
[ "$wrong" = 0 ] && say "$summary: $(listed | wc -l) pages, every one there is"
exit "$wrong"
