# Sourced, after common.sh, by what checks or builds the documentation: which pages there are. Not
# to be run by itself.
# shellcheck shell=bash

# The Markdown files of the project, one a line, without what was built or installed. SUMMARY.md is
# the book's table of contents, and no page.
markdown_pages() {
    find . \( -path ./target -o -path './.*' -o -path ./examples/build -o -name venv -o \
        -name node_modules \) -prune -o \
        -type f -name '*.md' ! -path ./docs/SUMMARY.md -print | sed 's|^\./||' | sort
}

# links PAGE: the targets of its links, pictures included, one a line; those to other sites are
# left out.
links() {
    # shellcheck disable=SC2016 # backticks of Markdown
    awk '/^ *```/ { code = !code } !code' "$1" | sed 's/`[^`]*`//g' |
        grep -o '\](\([^)]*\))' | sed 's/^](//; s/)$//' | grep -v '^[a-z]*:' || true
}
