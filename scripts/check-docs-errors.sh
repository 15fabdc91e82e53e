#!/usr/bin/env bash
# Compares docs/errors.md with the sources of the extension, both ways: each error, notice and
# warning that the extension can raise is a row of the section `## Messages`, each SQLSTATE of such
# an error a row of `## By SQLSTATE`, and neither has a row for anything else. The names beside the
# SQLSTATEs are those of Postgres.
#
# A row of `## Messages` begins `| SQLSTATE | message |`, or `| NOTICE |`, `| WARNING |`; what is put
# into the message when it is raised is shown as `…`.
#
# The messages are read from the source. So that none is missed, an error may only be made by
# InboxError::new or InboxError::invalid with a literal, or by a named constructor of errors.rs, and
# a notice or warning only by its macro with a literal; a SQL script raises with
# `RAISE … USING ERRCODE = 'condition', MESSAGE = 'literal'`, or `concat('literal', what is put in)`,
# a WARNING or NOTICE without the first.
# Whatever else raises fails the check.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

page=docs/errors.md
codes=$("$PG_CONFIG" --sharedir)/errcodes.txt
[ -f "$codes" ] || fail "$codes is missing: it belongs to Postgres' server package"

expected=$(mktemp)
trap 'rm -f "$expected"' EXIT

# raised FILE…: what these sources raise, one a line: SQLSTATE or level, a tab, the message.
# SQLSTATEs are those of the table of Postgres, given first.
raised() {
    awk -v codes="$codes" '
        function trimmed(text) { sub(/^[ \n]+/, "", text); return text }
        function complain(what) {
            print FILENAME ": " what > "/dev/stderr"
            wrong = 1
        }
        # The literal that the text begins with, as the server shows it.
        function literal(text, end) {
            if (!match(text, /^"([^"\\]|\\.|\\\n)*"/)) return ""
            end = RLENGTH
            text = substr(text, 2, end - 2)
            gsub(/\\\n[ ]*/, "", text)
            gsub(/\\"/, "\"", text)
            gsub(/[{][^}]*[}]/, "…", text)
            return text
        }
        # raises TEXT CODE: notes the message that the text begins with.
        function raises(text, code, message) {
            text = trimmed(text)
            if (sub(/^format!\(/, "", text)) text = trimmed(text)
            message = literal(text)
            if (message != "") print code "\t" message
            else complain("cannot read the message at: " substr(text, 1, 60))
        }
        function error_at(text, name) {
            text = trimmed(text)
            if (!match(text, /^PgSqlErrorCode::ERRCODE_[A-Z_]+,/)) {
                complain("cannot read the SQLSTATE at: " substr(text, 1, 60))
                return
            }
            name = substr(text, 17, RLENGTH - 17)
            text = trimmed(substr(text, RLENGTH + 1))
            # The constructor that all errors of 22023 go through.
            if (in_errors && text ~ /^message\)/) return
            if (!(name in sqlstate)) complain("Postgres has no " name)
            else raises(text, sqlstate[name])
        }
        BEGIN {
            while ((getline line < codes) > 0)
                if (split(line, field) >= 3 && field[1] ~ /^[0-9A-Z][0-9A-Z][0-9A-Z][0-9A-Z][0-9A-Z]$/)
                    sqlstate[field[3]] = field[1]
            RS = "\001"
        }
        {
            in_errors = FILENAME ~ /\/errors\.rs$/
            source = $0
            # Without comments and without the module of tests at the end.
            gsub(/(^|\n)[ ]*\/\/[^\n]*/, "\n", source)
            if (match(source, /#\[cfg\(test\)\]\n(pub )?mod /)) source = substr(source, 1, RSTART - 1)
            rest = source
            while (match(rest, /(InboxError|Self)::(new|invalid)\(|(debug|info|notice|warning|error|log)!\(|(panic|ereport|unimplemented|todo)!\(|ErrorReport::new\(/)) {
                call = substr(rest, RSTART, RLENGTH)
                before = RSTART > 1 ? substr(rest, RSTART - 1, 1) : " "
                rest = substr(rest, RSTART + RLENGTH)
                if (call ~ /^Self/ && !in_errors) continue
                if (before ~ /[A-Za-z0-9_:]/) continue
                if (call ~ /::new\($/ && call !~ /^ErrorReport/) error_at(rest)
                else if (call ~ /::invalid\($/) raises(rest, sqlstate["ERRCODE_INVALID_PARAMETER_VALUE"])
                else if (call == "notice!(") raises(rest, "NOTICE")
                else if (call == "warning!(") raises(rest, "WARNING")
                else if (call == "info!(") raises(rest, "INFO")
                else if (call == "log!(") raises(rest, "LOG")
                else if (call ~ /^debug/) continue
                else if (!(in_errors && call == "ErrorReport::new(" && rest ~ /^self\.code, self\.message/))
                    complain("raises by other means: " call)
            }
        }
        END { exit wrong }' "$@"
}

# raised_by_scripts FILE…: the same for SQL scripts.
raised_by_scripts() {
    awk -v codes="$codes" '
        function complain(what) {
            print FILENAME ": " what > "/dev/stderr"
            wrong = 1
        }
        # The literal that a word of RAISE is set to.
        function value(text, word, is_begin) {
            if (!match(text, word " = (pg_catalog[.]concat[(])?\047([^\047]|\047\047)*\047")) return ""
            text = substr(text, RSTART, RLENGTH)
            is_begin = text ~ /^[A-Z]+ = pg_catalog/
            sub(/^[^\047]*\047/, "", text)
            sub(/\047$/, "", text)
            gsub(/\047\047/, "\047", text)
            return is_begin ? text "…" : text
        }
        BEGIN {
            while ((getline line < codes) > 0)
                if (split(line, field, " +") >= 4) sqlstate[field[4]] = field[1]
            RS = "\001"
        }
        {
            rest = $0
            while (match(rest, /(^|[^A-Za-z_])RAISE[ \n]+(EXCEPTION|WARNING|NOTICE|INFO|LOG)[ \n]/)) {
                level = substr(rest, RSTART, RLENGTH)
                gsub(/.*RAISE|[ \n]/, "", level)
                rest = substr(rest, RSTART + RLENGTH)
                statement = substr(rest, 1, index(rest, ";"))
                message = value(statement, "MESSAGE")
                if (level == "EXCEPTION") level = sqlstate[value(statement, "ERRCODE")]
                if (level == "" || message == "" || statement !~ /^[ \n]*USING/)
                    complain("cannot read what is raised at: " substr(statement, 1, 60))
                else
                    print level "\t" message
            }
        }
        END { exit wrong }' "$@"
}

mapfile -t sources < <(find extension/src -name '*.rs' ! -name pg_tests.rs | sort)
raised "${sources[@]}" | sort -u >"$expected" || fail "the sources cannot be read"
raised_by_scripts sql/*.sql | sort -u - "$expected" --output="$expected" || fail "the scripts cannot be read"

awk -F '\t' -v page="$page" -v codes="$codes" '
    function cells(row) {
        split(row, cell, " [|] ")
        sub(/^[|] /, "", cell[1])
        sub(/ [|]$/, "", cell[2])
    }
    BEGIN {
        while ((getline line < codes) > 0)
            if (split(line, field, " +") >= 4) condition[field[1] " " field[4]] = 1
    }
    FILENAME == ARGV[1] {
        message[$1 "\t" $2] = 1
        if ($1 ~ /^[0-9]/ || $1 ~ /^[A-Z0-9]+[0-9]+$/) state[$1] = 1
        count++
        next
    }
    /^## / { section = substr($0, 4) }
    !/^[|] [A-Z0-9]+ [|] / { next }
    { cells($0) }
    # 08xxx is a class, and the column is headed by its name.
    cell[1] == "SQLSTATE" || section !~ /^(By SQLSTATE|Messages|From Postgres)/ { next }
    section == "Messages" {
        row = cell[1] "\t" cell[2]
        if (!(row in message)) { print page ":" FNR ": nothing raises: " cell[1] " " cell[2]; wrong = 1 }
        else if (message[row]++ == 2) { print page ":" FNR ": twice: " cell[1] " " cell[2]; wrong = 1 }
        next
    }
    !((cell[1] " " cell[2]) in condition) {
        print page ":" FNR ": Postgres does not call " cell[1] " " cell[2]
        wrong = 1
    }
    section == "By SQLSTATE" {
        if (!(cell[1] in state)) { print page ":" FNR ": nothing raises " cell[1]; wrong = 1 }
        else state[cell[1]] = 2
    }
    END {
        for (row in message) if (message[row] == 1) {
            gsub(/\t/, " | ", row)
            print page ": section Messages lacks: | " row " |"
            wrong = 1
        }
        for (code in state) if (state[code] == 1) {
            print page ": section By SQLSTATE lacks " code
            wrong = 1
        }
        if (!count) { print "the sources raise nothing"; wrong = 1 }
        if (!wrong) print page ": " count " messages as in the sources"
        exit wrong
    }' "$expected" "$page"
