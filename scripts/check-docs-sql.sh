#!/usr/bin/env bash
# Runs the SQL of the documentation: every ```sql block of every Markdown file of the project, in
# the order of the page, one session a page, each page in a fresh database with the extension. A
# page that creates the extension itself starts without it. A block of SQL that would not be run,
# because it is marked in another way, fails its page; one that is not to be run is marked `text`.
#
#     scripts/check-docs-sql.sh                    all pages
#     scripts/check-docs-sql.sh docs/failures.md   some pages
#
# The server is the one that PGHOST, PGPORT and PGUSER (a superuser) name; without PGHOST it is a
# throwaway cluster.
#
# A statement may tell what it gives, at the end of its last line:
#     SELECT inbox_claim('billing', 'evt-7');  -- => t
#     SELECT inbox_claim(NULL, 'evt-7');       -- => ERROR 22004
# Columns are separated by ` | `, rows by ` ; `, a NULL is shown as NULL, no row as nothing. What
# is not as told, and every other error, fails the page.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# shellcheck source=scripts/docs-pages.sh
. "$(dirname "$0")/docs-pages.sh"

# shellcheck source=scripts/on-server.sh
. "$(dirname "$0")/on-server.sh"

pages=("$@")
[ ${#pages[@]} != 0 ] || mapfile -t pages < <(markdown_pages)

scratch=$(mktemp -d)
database=docs_$$
tidy() {
    rm -rf "$scratch"
    on_database postgres --command="DROP DATABASE IF EXISTS $database WITH (FORCE)" 2>/dev/null
}
trap tidy EXIT

# blocks_left_out PAGE: its blocks of SQL that `extract` passes over, and nobody else runs; 0 when
# there is one. The blocks for pg_cron are those of check-pg-cron.sh.
blocks_left_out() {
    awk -v page="$1" '
        !/^[ >]*(```|~~~)/ { next }
        inside { inside = 0; next }
        {
            inside = 1
            info = tolower($0)
            sub(/^[ >]*[`~]+ */, "", info)
            if (info !~ /^(sql|postgres|postgresql|pgsql|plpgsql|psql)([^a-z]|$)/ || $0 == "```sql") next
            if (page == "docs/scheduling.md" && $0 == "```sql pg_cron") next
            printf "%s:%d: this block of SQL is not run: %s\n", page, NR, $0
            found = 1
        }
        END { exit !found }' "$1"
}

# extract PAGE: its SQL blocks as a script whose line numbers are the page's. What is told of a
# result goes to PAGE.told, a line number and the words.
extract() {
    awk -v told="$scratch/$1.told" '
        { script[NR] = "" }
        /^```sql$/ { inside = 1; blocks++; first = 0; next }
        /^```/ { inside = 0; next }
        !inside { next }
        # The marker goes before the statement: its last line may begin inside of a literal.
        first == 0 && !/^ *(--.*)?$/ { first = NR }
        match($0, /; *-- => ?/) {
            expected = substr($0, RSTART + RLENGTH)
            print NR "\t" expected > told
            script[NR] = substr($0, 1, RSTART)
            if (expected ~ /^ERROR /) script[NR] = script[NR] " \\echo ERROR :SQLSTATE \\\\"
            script[NR] = script[NR] " \\echo @@end"
            script[first] = "\\echo @@begin " NR " \\\\ " script[first]
            first = 0
            next
        }
        { script[NR] = $0 }
        /; *(--.*)?$/ { first = 0 }
        END {
            for (line = 1; line <= NR; line++) print script[line]
            exit blocks == 0
        }' "$1"
}

# The errors that psql reported, `psql:PAGE:LINE: ERROR: …`, but for those that the page tells.
unexpected_errors() {
    awk -v page="$1" -F '\t' '
        FILENAME == ARGV[1] { told[$1] = $2; next }
        match($0, /^psql:[^:]*:[0-9]+: (ERROR|FATAL|PANIC|error): /) {
            split($0, part, ":")
            shown = !(told[part[3]] ~ /^ERROR /)
            wrong = wrong || shown
        }
        /^psql:[^:]*:[0-9]+: (NOTICE|WARNING|INFO): / { shown = 0 }
        shown { sub(/^psql:/, ""); print }
        END { exit wrong }' "$scratch/$1.told" "$scratch/$1.err"
}

# Compares what psql printed with what the page tells.
compare() {
    awk -v page="$1" -F '\t' '
        FILENAME == ARGV[1] { told[$1] = $2; next }
        /^@@begin / { line = substr($0, 9); shown = ""; rows = 0; next }
        /^@@end$/ {
            checked++
            if (shown != told[line]) {
                printf "%s:%s: the page tells \"%s\", the server \"%s\"\n", page, line, told[line], shown
                wrong = 1
            }
            line = ""
            next
        }
        line != "" { shown = rows++ ? shown " ; " $0 : $0 }
        END {
            for (line in told) count++
            if (checked + 0 != count + 0) { printf "%s: %d results of %d\n", page, checked, count; wrong = 1 }
            exit wrong
        }' "$scratch/$1.told" "$scratch/$1.out"
}

# run_sql PAGE: runs what was extracted, and tells what is wrong.
run_sql() {
    local page=$1 status=0
    # From its own folder, so that psql reports an error as PAGE:LINE. It goes on after an error:
    # one run shows them all.
    (cd "$scratch" && psql --no-psqlrc --quiet --dbname="$database" \
        --tuples-only --no-align --field-separator=' | ' --pset=null=NULL --file="$page") \
        >"$scratch/$page.out" 2>"$scratch/$page.err" || { status=1 && tail -n 3 "$scratch/$page.err"; }
    unexpected_errors "$page" || status=1
    compare "$page" || status=1
    return "$status"
}

# run_page PAGE: in a database of its own.
run_page() {
    local page=$1
    ! blocks_left_out "$page" || return
    mkdir -p "$scratch/$(dirname "$page")"
    : >"$scratch/$page.told"
    extract "$page" >"$scratch/$page" || return 0
    # What `||` follows runs without `set -e`, and so does this function.
    on_database postgres \
        --command="CREATE DATABASE $database TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'" || return
    local status=0
    if ! grep -qi '^CREATE EXTENSION.*sequential_inbox' "$scratch/$page"; then
        on_database "$database" --command="CREATE EXTENSION sequential_inbox" || status=1
    fi
    [ "$status" != 0 ] || run_sql "$page" || status=1
    on_database postgres --command="DROP DATABASE $database WITH (FORCE)"
    [ "$status" = 0 ] || return
    ran=$((ran + 1))
    say "$page: $(grep -c '^```sql$' "$page") blocks, $(wc -l <"$scratch/$page.told") results as told"
}

ran=0
failed=0
for page in "${pages[@]}"; do
    run_page "$page" || failed=$((failed + 1))
done
[ "$failed" = 0 ] || fail "SQL that is wrong on $failed of $((ran + failed)) pages"
[ "$ran" != 0 ] || fail "no page has SQL"
