#!/usr/bin/env bash
# Builds the book of the documentation into target/book, with mdBook, and checks that each of its
# links leads somewhere. mdBook and its preprocessor for diagrams are installed into target/tools
# when they are not there: some minutes, once.
#
# The pages stay where a code host shows them, and link each other there. The book's source is a
# copy with the same folders, so the same links hold.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/docs-pages.sh
. "$(dirname "$0")/docs-pages.sh"

source=$target/book-source
book=$target/book

# install_tool NAME VERSION OPTION…: a program of crates.io, in exactly this version.
install_tool() {
    local name=$1 version=$2
    shift 2
    [ "$("$target/tools/bin/$name" --version 2>/dev/null | grep -o '[0-9][0-9.]*' | head -n 1)" != "$version" ] ||
        return 0
    have cargo || fail "cargo is missing: install Rust"
    heading "installing $name $version (some minutes, once)"
    cargo install --locked --quiet "$name" --version "=$version" --root "$target/tools" "$@"
}

# Copies the pages, and what they link or show, to where the book expects them.
put_together() {
    local page link file
    rm -rf "$source"
    mkdir -p "$source/src"
    cp docs/book.toml "$source"
    while IFS= read -r page; do
        copy "$page"
        while IFS= read -r link; do
            file=$(realpath --canonicalize-missing --relative-to="$root" "$(dirname "$page")/${link%%#*}")
            [ ! -f "$file" ] || copy "$file"
        done < <(links "$page" | grep -v '^#')
    done < <(markdown_pages)
    sed 's|](|](docs/|; s|](docs/\.\./|](|' docs/SUMMARY.md >"$source/src/SUMMARY.md"
}

# copy FILE: into the book's source, in the same folder.
copy() {
    mkdir -p "$source/src/$(dirname "$1")"
    cp "$1" "$source/src/$1"
}

# Follows the links of the pages that were built.
check_links() {
    (
        cd "$book"
        # shellcheck disable=SC2016 # awk's own
        find . -name '*.html' ! -name 404.html | sort | xargs awk '
            function directory(path) { sub(/[^\/]*$/, "", path); return path }
            # Without `.` and `..`.
            function plain(path, part, count, i, out) {
                count = split(path, part, "/")
                out = ""
                for (i = 1; i <= count; i++) {
                    if (part[i] == "" || part[i] == ".") continue
                    if (part[i] == "..") sub(/[^\/]*\/$/, "", out)
                    else out = out part[i] (i < count ? "/" : "")
                }
                return out
            }
            FNR == 1 { page = plain(FILENAME); pages[page] = 1 }
            {
                line = $0
                while (match(line, / (href|src|id)="[^"]*"/)) {
                    found = substr(line, RSTART + 1, RLENGTH - 2)
                    line = substr(line, RSTART + RLENGTH)
                    split(found, pair, "=\"")
                    value = substr(found, length(pair[1]) + 3)
                    if (pair[1] == "id") { ids[page "#" value] = 1; continue }
                    if (value ~ /^[a-z]+:/ || value == "" || value == "#") continue
                    file = value
                    sub(/#.*/, "", file)
                    target = file == "" ? page : plain(directory(page) file)
                    anchor = index(value, "#") ? substr(value, index(value, "#") + 1) : ""
                    links[++count] = page "\t" value "\t" target "\t" anchor
                }
            }
            END {
                for (i = 1; i <= count; i++) {
                    split(links[i], link, "\t")
                    if (!(link[3] in pages) && (getline line < link[3]) < 0) {
                        print link[1] ": " link[2] " leads nowhere"
                        wrong = 1
                    } else if (link[4] != "" && !((link[3] "#" link[4]) in ids)) {
                        print link[1] ": " link[2] " names no heading"
                        wrong = 1
                    }
                    close(link[3])
                }
                if (!count) { print "the book has no links"; wrong = 1 }
                if (!wrong) print count " links of the book lead somewhere"
                exit wrong
            }'
    ) || fail "links of the book are wrong"
}

install_tool mdbook 0.5.4 --no-default-features --features search
install_tool mdbook-mermaid 0.17.1
scripts/check-docs-summary.sh
put_together
rm -rf "$book"
# Brings the scripts that draw diagrams.
mdbook-mermaid install "$source" 2>/dev/null
mdbook build "$source" --dest-dir "$book"
check_links
say "the book is $book/index.html"
