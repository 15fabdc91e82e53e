#!/usr/bin/env bash
# Holds the commands and paths that the documentation names against the project: every target of a
# `make …` is in the Makefile, every variable set in it there or in a script that it runs, and every
# path of the project in a code span exists.
#
# A command is a code span, or a line of a code block, that begins with `make`. In a block it ends
# at two blanks or a `#`, after which something is told of it.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/docs-pages.sh
. "$(dirname "$0")/docs-pages.sh"

# named PAGE: what it names, one a line: its line, `target`, `variable` or `path`, the word.
named() {
    awk '
        function command(text, words, count, i) {
            sub(/^ *(sudo )?make +/, "", text)
            sub(/(  | #).*/, "", text)
            count = split(text, words, " ")
            for (i = 1; i <= count; i++) {
                if (words[i] ~ /^[A-Z]+=/) print NR, "variable", substr(words[i], 1, index(words[i], "=") - 1)
                else if (words[i] ~ /^[a-z][a-z-]*$/) print NR, "target", words[i]
            }
        }
        /^ *```/ { block = !block; next }
        block { if (/^ *(sudo )?make /) command($0); next }
        {
            # Between backticks is every second part.
            count = split($0, part, "`")
            for (i = 2; i <= count; i += 2) {
                if (part[i] ~ /^make [^ ]/) command(part[i])
                else if (part[i] ~ /^[A-Z]+=[^ ]*$/) print NR, "variable", substr(part[i], 1, index(part[i], "=") - 1)
                else if (part[i] ~ /^(bench|client|demo|docs|examples|extension|monitoring|packaging|scripts|sql|tests)\/[A-Za-z0-9_.\/-]+$/)
                    print NR, "path", part[i]
            }
        }' "$1"
}

wrong=0
count=0
while IFS= read -r page; do
    while read -r line kind word; do
        count=$((count + 1))
        case $kind in
        target) grep -q "^$word:" Makefile && continue ;;
        variable) grep -qrw "$word" Makefile scripts && continue ;;
        path) [ -e "$word" ] && continue ;;
        esac
        say "$page:$line: there is no $kind $word"
        wrong=1
    done < <(named "$page")
done < <(markdown_pages)
[ "$count" != 0 ] || fail "no page names a command"
[ "$wrong" = 0 ] && say "$count commands and paths exist"
exit "$wrong"
