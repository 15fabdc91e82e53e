#!/usr/bin/env bash
# Runs the examples, each in a database of its own, and compares what they have written with
# examples/expected.txt and with each other: one stream, equal ledgers. Then the broker delivers
# the whole stream once more, and nothing may be written again (G1).
#
#     scripts/examples.sh                 all of them
#     scripts/examples.sh python sql      some
#
# The server is the one that PGHOST, PGPORT and PGUSER (a superuser) name; without PGHOST it is a
# throwaway cluster. Drivers come from PyPI, npm and Debian and are kept under target/, as are the
# ledgers.
#
# Prints one line `ok WHAT` or `not ok WHAT` for each example, and one for their equality.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# shellcheck source=scripts/packages.sh
. "$(dirname "$0")/packages.sh"

# An example that hangs is ended after so many seconds.
patience=120

build=$target/examples
jdbc=/usr/share/java/postgresql.jar

# set_up LANGUAGE: finds or gets what it needs; quick when that is there.
set_up() {
    local wanted
    case $1 in
    rust) cargo build --quiet --package sequential-inbox-example ;;
    python)
        wanted=$root/examples/python/requirements.txt
        cmp -s "$wanted" "$build/python/requirements.txt" && return
        rm -rf "$build/python"
        # Debian keeps the part that brings pip in a package of its own.
        if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
            need_package "Python with venv" python3 python3-venv
        fi
        python3 -m venv "$build/python"
        "$build/python/bin/pip" install --quiet --disable-pip-version-check --requirement "$wanted"
        cp "$wanted" "$build/python/"
        ;;
    node)
        if ! have node || ! have npm; then
            need_package "Node with npm" nodejs npm
        fi
        wanted=$root/examples/node/package-lock.json
        mkdir -p "$build/node"
        cp "$root/examples/node/consumer.js" "$root/examples/node/package.json" "$build/node/"
        cmp -s "$wanted" "$build/node/installed.json" && return
        cp "$wanted" "$build/node/"
        (cd "$build/node" && npm ci --silent --no-audit --no-fund)
        cp "$wanted" "$build/node/installed.json"
        ;;
    java)
        have javac || need_package "a JDK" default-jdk-headless
        [ -f "$jdbc" ] || need_package "the JDBC driver" libpostgresql-jdbc-java
        mkdir -p "$build/java"
        javac -encoding UTF-8 -Xlint:all -Werror -d "$build/java" \
            "$root/examples/java/Consumer.java"
        ;;
    sql) ;;
    *) fail "there is no example in '$1'" ;;
    esac
}

# run LANGUAGE: one run over the stream, in the folder examples/, connected as PGUSER to PGDATABASE.
run() {
    local command=(timeout "$patience")
    case $1 in
    rust)
        "${command[@]}" "$target/debug/sequential-inbox-example" stream.csv \
            "host=$PGHOST port=$PGPORT user=$PGUSER dbname=$PGDATABASE"
        ;;
    python) "${command[@]}" "$build/python/bin/python" python/consumer.py stream.csv ;;
    node) "${command[@]}" node "$build/node/consumer.js" stream.csv ;;
    java)
        "${command[@]}" java -cp "$build/java:$jdbc" Consumer stream.csv \
            "jdbc:postgresql://$PGHOST:$PGPORT/$PGDATABASE?user=$PGUSER"
        ;;
    sql)
        # psql ends when its connection is lost, which happens once; whoever supervises it starts
        # it again.
        command+=(psql --no-psqlrc --quiet --file=sql/consumer.sql)
        "${command[@]}" || "${command[@]}"
        ;;
    esac
}

languages=("$@")
[ ${#languages[@]} != 0 ] || languages=(rust python node java sql)
# Before the throwaway cluster is started, and not again on it.
if [ -z "${PGHOST:-}" ]; then
    for language in "${languages[@]}"; do
        set_up "$language"
    done
fi

# shellcheck source=scripts/on-server.sh
. "$(dirname "$0")/on-server.sh"

# Dropped whatever way this ends.
trap 'for language in "${languages[@]}"; do
    on_database postgres --command="DROP DATABASE IF EXISTS examples_${language}_$$ WITH (FORCE)"
done 2>/dev/null' EXIT

# written DATABASE: the rows of the ledger, with their numbers.
written() { on_database "$1" --no-align --command="SELECT * FROM ledger ORDER BY entry"; }

# consume LANGUAGE DATABASE: one run as the role of the examples. What it tells of its failures is
# kept, and shown when it fails.
consume() {
    local log=$build/$1.log
    # In a subshell: superuser and folder are back afterwards.
    (
        cd "$root/examples"
        export PGUSER=inbox_example PGDATABASE=$2 PGCLIENTENCODING=UTF8
        run "$1"
    ) 2>>"$log" || { tail -n 20 "$log" && return 1; }
}

# run_example LANGUAGE: 1 when something is not as it should be.
run_example() {
    local language=$1 database=examples_${1}_$$ outcomes before
    rm -f "$build/$language".{txt,log}
    on_database postgres --command="CREATE DATABASE $database
        TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'" || return
    on_database "$database" --output=/dev/null \
        --file=examples/setup.sql --file=examples/faults.sql || return
    if [ "$language" = sql ]; then
        on_database "$database" --file=examples/sql/install.sql || return
    fi
    outcomes=$(consume "$language" "$database") || { say "$outcomes" && return 1; }
    {
        sort <<<"$outcomes"
        on_database "$database" --file=examples/ledger.sql
    } >"$build/$language.txt" || return
    diff "$root/examples/expected.txt" "$build/$language.txt" || return

    # As if the broker had lost every acknowledgement.
    before=$(written "$database") || return
    [ "$language" != sql ] || on_database "$database" --command="TRUNCATE topic" || return
    outcomes=$(consume "$language" "$database") || { say "$outcomes" && return 1; }
    diff <(say "$before") <(written "$database") || return
    if grep -q '^applied' <<<"$outcomes"; then
        say "a message was applied again: $outcomes"
        return 1
    fi
}

mkdir -p "$build"
status=0
for language in "${languages[@]}"; do
    start=$SECONDS
    if run_example "$language"; then
        say "ok $language, $((SECONDS - start)) s"
    else
        say "not ok $language"
        status=1
    fi
done

if [ ${#languages[@]} -gt 1 ]; then
    equal=yes
    for language in "${languages[@]}"; do
        cmp "$build/${languages[0]}.txt" "$build/$language.txt" || equal=no
    done
    if [ "$equal" = yes ]; then
        say "ok ${#languages[@]} equal ledgers"
    else
        say "not ok: the ledgers differ"
        status=1
    fi
fi
exit "$status"
