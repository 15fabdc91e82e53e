#!/usr/bin/env bash
# Runs `make test` against every Postgres of pgrx.toml, one after the other, and goes on after a
# failure. Shows one line a major while it runs, and all of them at the end; the whole output of
# each is kept in target/test-all/. Ends with 1 when any of them failed, or did not get to its end.
#
# MAJORS="16 18" takes some of them.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# A pg_config belongs to one major.
unset PG_CONFIG

logs=$target/test-all
mkdir -p "$logs"
failed=0
summary=()
for major in ${MAJORS:-$majors}; do
    log=$logs/pg$major.log
    heading "Postgres $major: make test PG=$major, see $log"
    started=$SECONDS
    verdict=passed
    if ! make --no-print-directory test PG="$major" >"$log" 2>&1 </dev/null; then
        verdict=FAILED
        failed=1
    fi
    took=$((SECONDS - started))
    count=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1 || true)
    line="Postgres $major: $verdict: ${count:-did not get to its end}, $((took / 60)) min $((took % 60)) s"
    say "$line"
    grep -E '^(FAILED|skipped): ' "$log" | sort -u | sed 's/^/    /' || true
    summary+=("$line")
done

heading "every Postgres"
printf '%s\n' "${summary[@]}"
# The closing line adds up the tests; a major that failed without one counts as one failure.
printf '%s\n' "${summary[@]}" | awk '
    match($0, /[0-9]+ passed/) { ok += substr($0, RSTART, RLENGTH) }
    match($0, /[0-9]+ failed/) { bad += substr($0, RSTART, RLENGTH) }
    /FAILED/ && !/[1-9][0-9]* failed/ { bad++ }
    END { printf "%d passed, %d failed\n", ok, bad }'
exit "$failed"
