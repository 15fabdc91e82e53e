#!/usr/bin/env bash
# Compares docs/reference.md with the catalog, both ways: each function with its signature, each
# view and table with its columns, and each setting with its default has an entry, and there is no
# entry for anything else. So does what each kind of access may call, and which functions only read.
# The table of indexes in docs/internals.md is compared with the indexes.
#
# A function's entry is a section `### name` that holds `name(arguments) → result` for each of its
# forms, as the catalog has them; line breaks do not matter. A view or table has a section
# `### name` with a table row for each column. The settings are the rows of the section
# `## Settings`.
#
# The server is the one that PGHOST, PGPORT and PGUSER (a superuser) name; without PGHOST it is a
# throwaway cluster.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/on-server.sh
. "$(dirname "$0")/on-server.sh"

page=docs/reference.md
database=reference_$$
expected=$(mktemp)
tidy() {
    rm -f "$expected"
    on_database postgres --command="DROP DATABASE IF EXISTS $database WITH (FORCE)" 2>/dev/null
}
trap tidy EXIT

on_database postgres --command="CREATE DATABASE $database"
on_database "$database" --command="CREATE EXTENSION sequential_inbox"

# What must be there: section, a tab, the words. The ring's three tables are equal; the columns
# are told of the first.
on_database "$database" --tuples-only --no-align --field-separator=$'\t' >"$expected" <<'SQL'
LOAD 'sequential_inbox';
CREATE TEMPORARY VIEW member AS
    SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
    WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'sequential_inbox';
SELECT p.proname,
       replace(regexp_replace(
           format('%s(%s) → %s', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)),
           '::[a-z ]+', '', 'g'), 'timestamp with time zone', 'timestamptz')
FROM member m JOIN pg_proc p ON p.oid = m.objid WHERE m.classid = 'pg_proc'::regclass;
SELECT c.relname, CASE WHEN c.relname ~ '^inbox_claim_[12]$' THEN '' ELSE
       replace(format('| `%s` | %s |', a.attname, format_type(a.atttypid, a.atttypmod)),
           'timestamp with time zone', 'timestamptz') END
FROM member m
JOIN pg_class c ON c.oid = m.objid AND c.relkind IN ('r', 'v')
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE m.classid = 'pg_class'::regclass;
SELECT 'Settings', format('| `%s` | %s |', s.name,
       CASE WHEN s.boot_val = '' THEN 'empty' ELSE format('`%s`', current_setting(s.name)) END)
FROM pg_settings s WHERE s.name LIKE 'sequential\_inbox.%';

CREATE TEMPORARY VIEW function AS
    SELECT p.oid, p.proname::text COLLATE "C" AS name, p.provolatile, p.proparallel
    FROM member m JOIN pg_proc p ON p.oid = m.objid WHERE m.classid = 'pg_proc'::regclass;
SELECT 'Functions', format('but for %s, which only read (STABLE)',
       regexp_replace(format('`%s`', string_agg(DISTINCT name, '`, `' ORDER BY name)), ', ([^,]*)$', ' and \1'))
FROM function WHERE provolatile <> 'v' HAVING count(*) > 0;
SELECT 'Functions', format('but for `%s` (PARALLEL SAFE)', string_agg(DISTINCT name, '`, `' ORDER BY name))
FROM function WHERE proparallel <> 'u' HAVING count(*) > 0;
-- The roles are gone with the transaction.
BEGIN;
CREATE ROLE "docs consumer";
CREATE ROLE "docs monitor";
CREATE ROLE "docs operator";
\o /dev/null
SELECT inbox_grant('docs consumer', 'consumer'), inbox_grant('docs monitor', 'monitor'),
       inbox_grant('docs operator', 'operator');
\o
SELECT 'Access', format('| `%s` | %s`%s` |', a.access, CASE a.access WHEN 'operator' THEN 'all of both, and ' END,
       string_agg(DISTINCT f.name, '`, `' ORDER BY f.name))
FROM unnest(ARRAY['consumer', 'monitor', 'operator']) AS a (access)
JOIN function f ON has_function_privilege('docs ' || a.access, f.oid, 'EXECUTE')
    AND (a.access <> 'operator' OR NOT has_function_privilege('docs consumer', f.oid, 'EXECUTE')
         AND NOT has_function_privilege('docs monitor', f.oid, 'EXECUTE'))
GROUP BY a.access;
ROLLBACK;
SQL

wrong=0
awk -F '\t' -v page="$page" '
    function squeezed(text) {
        gsub(/[ \n]+/, " ", text)
        gsub(/\( /, "(", text)
        return text
    }
    FILENAME == ARGV[1] { section[NR] = $1; words[NR] = $2; known[$1] = 1; count = NR; next }
    /^##+ / { name = $0; sub(/^##+ /, "", name); is_entry[name] = /^### /; text[name] = "" ; next }
    # A setting that is gone.
    name == "Settings" && /^\| `/ { split($0, cell, "`"); rows[cell[2]] = 1 }
    { text[name] = text[name] "\n" $0 }
    END {
        for (line = 1; line <= count; line++) {
            name = section[line]
            if (!(name in text)) {
                if (!(name in missed)) print page ": no section for " name
                missed[name] = wrong = 1
            } else if (!index(squeezed(text[name]), squeezed(words[line]))) {
                print page ": section " name " lacks: " words[line]
                wrong = 1
            }
            if (name == "Settings") { split(words[line], cell, "`"); delete rows[cell[2]] }
        }
        for (name in text) if (is_entry[name] && !(name in known)) {
            print page ": " name " is not in the catalog"
            wrong = 1
        }
        for (name in rows) { print page ": there is no setting " name; wrong = 1 }
        if (count == 0) { print "the catalog is empty"; wrong = 1 }
        if (!wrong) print page ": " count " entries as in the catalog"
        exit wrong
    }' "$expected" "$page" || wrong=1

# The indexes of the extension, against the table of docs/internals.md that begins `| index |`.
# shellcheck disable=SC2016 # backticks of Markdown
while read -r side index; do
    case $side in
    catalog) say "docs/internals.md: no row for the index $index" ;;
    page) say "docs/internals.md: there is no index $index" ;;
    esac
    wrong=1
done < <(comm -3 --output-delimiter=@ \
    <(on_database "$database" --tuples-only --no-align --command="
        SELECT x.indexrelid::regclass FROM pg_index x
        JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = x.indrelid AND d.deptype = 'e'
        JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
        WHERE e.extname = 'sequential_inbox'" | sort) \
    <(awk '/^[|] index / { table = 1 } !/^[|]/ { table = 0 } table' docs/internals.md |
        sed -n 's/^| `\([a-z0-9_]*\)` .*/\1/p' | sort) |
    sed 's/^@/page /; t; s/^/catalog /')
[ "$wrong" = 0 ]
