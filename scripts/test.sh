#!/usr/bin/env bash
# What `make test` runs, against the Postgres that setup.sh found: the checks, then every suite of
# tests, then the documentation. Goes on after a failure, so that one run shows them all; ends
# with one line `N passed, N failed` over all suites, and with 1 when anything failed.
#
# A suite that ran no test has failed: it would otherwise be passed for ever by a runner that
# lost its tests. A check that fails (format, lints …) counts as one failure, a check that holds is
# no test and does not count.
#
# The order keeps the compiler's work low. `cargo pgrx test` installs a build of its own, with its
# tests in the extension's SQL; all other suites, and whoever uses this Postgres afterwards, must
# see the plain build, so that is installed right after it. After Ctrl-C, none is left.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

logs=$target/test/$feature
rm -rf "$logs"
mkdir -p "$logs"

passed=0
failed=0
problems=()

note_failure() {
    problems+=("$1")
    say "FAILED: $1"
}

# logged NAME COMMAND…: runs a command, showing and keeping what it says.
logged() {
    local log=$logs/${1// /-}.log
    shift
    "$@" 2>&1 | tee "$log"
}

# check NAME COMMAND…: something that holds or does not.
check() {
    heading "$1"
    if ! logged "$@"; then
        failed=$((failed + 1))
        note_failure "$1"
    fi
}

# suite NAME COUNTER COMMAND…: tests. COUNTER reads the log and prints how many passed and failed.
suite() {
    local name=$1 counter=$2 status=0 ok bad
    shift 2
    heading "$name"
    logged "$name" "$@" || status=$?
    read -r ok bad < <("$counter" "$logs/${name// /-}.log")
    passed=$((passed + ok))
    if [ "$bad" = 0 ] && [ "$ok" = 0 ]; then
        bad=1
        note_failure "$name: no test ran"
    elif [ "$bad" = 0 ] && [ "$status" != 0 ]; then
        bad=1
        note_failure "$name: ended with $status"
    elif [ "$bad" != 0 ]; then
        note_failure "$name: $bad failed"
    fi
    failed=$((failed + bad))
}

# Adds up the closing lines of Rust's test programs:
#     test result: ok. 12 passed; 0 failed; 0 ignored; …
# A test that was left out counts as a failure, and so does a file of tests without any test:
# nobody would notice either. Not so where the tests were left out by name, see needs_module.
count_rust() {
    awk '
        { gsub(/\033\[[0-9;]*m/, "") }
        /^ +Running [^ ]+\.rs \(/ { file = $2 }
        /^ +Running unittests/ || /^ +Doc-tests/ { file = "" }
        /^running 0 tests/ { empty = file }
        /^test result: / {
            if (empty != "" && / 0 filtered out/) { print "no test in " empty > "/dev/stderr"; bad++ }
            empty = ""
            for (i = 2; i <= NF; i++) {
                if ($i ~ /^passed/) ok += $(i - 1)
                if ($i ~ /^failed/ || $i ~ /^ignored/) bad += $(i - 1)
            }
        }
        END { print ok + 0, bad + 0 }' "$1"
}

# Reads the closing line of pg_regress, of 15 or of 16 and later:
#     All 5 tests passed.
#     1 of 5 tests failed.
count_regress() {
    awk '
        { gsub(/^[# ]+/, "") }
        /^All [0-9]+ tests passed/ { ok = $2 }
        /^[0-9]+ of [0-9]+ tests passed/ { ok = $1 }
        /^[0-9]+ of [0-9]+ tests failed/ { bad = $1; ok = $3 - $1 }
        END { print ok + 0, bad + 0 }' "$1"
}

# Adds up the lines `ok WHAT` and `not ok WHAT` of a script.
count_lines() {
    awk '/^ok / { ok++ } /^not ok/ { bad++ } END { print ok + 0, bad + 0 }' "$1"
}

# A folder that the user who runs the server may write to, with a path short enough for a Unix
# socket.
pgrx_data=$(mktemp -d /var/tmp/pgrx-XXXXXX)
pgrx_build_installed=no

# Tests that need a module of Postgres' contrib have needs_MODULE in their names. Where the
# installation lacks it, as a Python wheel may, they are left out, and that is said at the end.
skipped=()
left_out=()
needs_module() {
    [ -f "$("$PG_CONFIG" --pkglibdir)/$1.so" ] && return
    left_out+=(--skip "needs_$1")
    skipped+=("skipped: the tests that need $1, which this Postgres $PG does not have")
}

uninstall_extension() {
    local as_root=()
    [ "$install_with_sudo" = no ] || as_root=(sudo -n)
    ${as_root[@]+"${as_root[@]}"} rm -f "$("$PG_CONFIG" --pkglibdir)/$extension.so" \
        "$("$PG_CONFIG" --sharedir)/extension/$extension"{.control,--*.sql}
}

leave_tidy() {
    rm -rf "$pgrx_data"
    if [ "$pgrx_build_installed" = yes ]; then
        uninstall_extension
        say "The extension is not installed now, because its test build was; see make install."
    fi
}
trap leave_tidy EXIT

pgrx_test() {
    local arguments=(--pgdata "$pgrx_data")
    if am_root; then
        chown postgres "$pgrx_data"
        arguments+=(--runas postgres)
    elif [ "$install_with_sudo" = yes ]; then
        # That makes pgrx install with sudo.
        arguments+=(--runas "$(id -un)")
    fi
    # Installing with sudo, pgrx overwrites the library in place, which kills every server that
    # has it loaded; a removed one lives on until they let go of it.
    uninstall_extension
    # pgrx connects as the user it reads from this variable.
    USER=$(id -un) cargo pgrx test "$feature" "${arguments[@]}"
}

check "every test is listed" scripts/check-tests-listed.sh
check "format" scripts/lint.sh format
check "lints" scripts/lint.sh clippy
pgrx_build_installed=yes
suite "cargo pgrx test" count_rust pgrx_test
check "installation" scripts/install-extension.sh dev
check "released scripts and symbols" scripts/check-released.sh
pgrx_build_installed=no
check "PgBouncer for the tests" scripts/setup-pgbouncer.sh
check "RabbitMQ for the tests" scripts/setup-brokers.sh
# --include-ignored: those marked so are slow, and this is the place to run them.
needs_module auto_explain
suite "cargo test" count_rust cargo test "${other_crates[@]}" --no-fail-fast -- --include-ignored \
    ${left_out[@]+"${left_out[@]}"}
suite "pg_regress" count_regress scripts/regress.sh regress
suite "isolation" count_regress scripts/regress.sh isolation
suite "examples" count_lines scripts/examples.sh

check "SQL of the documentation" scripts/check-docs-sql.sh
check "reference against the catalog" scripts/check-docs-reference.sh
check "errors against the sources" scripts/check-docs-errors.sh
check "metrics against the database" scripts/check-docs-metrics.sh
check "links of the documentation" scripts/check-docs-links.sh
check "table of contents of the documentation" scripts/check-docs-summary.sh
check "commands of the documentation" scripts/check-docs-commands.sh
check "scheduling with pg_cron" scripts/check-pg-cron.sh
check "exporters, alerts and dashboard" scripts/check-monitoring.sh
check "documentation of the Rust code" scripts/lint.sh doc

heading "Postgres $PG"
for problem in ${problems[@]+"${problems[@]}"}; do
    say "FAILED: $problem"
done
# What cannot be checked with this Postgres is named, and not among what passed.
for what in ${skipped[@]+"${skipped[@]}"}; do
    say "$what"
done
grep -hs '^skipped: ' "$logs"/*.log || true
say "$passed passed, $failed failed"
[ "$failed" = 0 ]
