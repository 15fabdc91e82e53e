#!/usr/bin/env bash
# Fails when a test exists that nothing runs, or is listed and does not exist: SQL tests and
# isolation specs against their schedules, Rust tests against what cargo knows as a test.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

wrong=0
complain() {
    say "$*"
    wrong=1
}

# The names in the `test:` lines of a schedule, one a line.
scheduled() { sed -n 's/^test: *//p' "$1" | tr -s ' ' '\n' | sort; }

# The names of the files in a folder, without the ending.
files() { find "$1" -maxdepth 1 -name "*.$2" -exec basename {} ".$2" \; 2>/dev/null | sort; }

# check_schedule FOLDER SUBFOLDER ENDING
check_schedule() {
    local folder=$1 name
    local schedule=$folder/schedule
    [ -f "$schedule" ] || { complain "$schedule is missing" && return; }
    for name in $(comm -13 <(scheduled "$schedule") <(files "$folder/$2" "$3")); do
        complain "$folder/$2/$name.$3 is not in $schedule"
    done
    for name in $(scheduled "$schedule"); do
        [ -f "$folder/$2/$name.$3" ] || complain "$schedule names $name, but there is no $2/$name.$3"
        [ -f "$folder/expected/$name.out" ] || complain "$folder/expected/$name.out is missing"
    done
    for name in $(scheduled "$schedule" | uniq -d); do
        complain "$schedule names $name twice"
    done
    # An alternative result is called name_1.out.
    for name in $(comm -13 <(scheduled "$schedule") <(files "$folder/expected" out)); do
        scheduled "$schedule" | grep -qxF "${name%_[0-9]}" ||
            complain "$folder/expected/$name.out belongs to no test"
    done
}

# The files of a package's tests folder against the targets of kind "test".
check_rust_tests() {
    local known file
    known=$(cargo metadata --no-deps --format-version 1 |
        grep -o '"kind":\["test"\][^}]*"src_path":"[^"]*"' |
        sed 's/.*"src_path":"\([^"]*\)"/\1/')
    while IFS= read -r file; do
        grep -qxF "$root/$file" <<<"$known" || complain "$file is not a test that cargo runs"
    done < <(find tests client demo bench examples -path '*/target' -prune -o \
        -path '*tests/*.rs' -print 2>/dev/null | grep -E '(^|/)tests/[^/]*\.rs$' | sort)
}

check_schedule tests/pg_regress sql sql
check_schedule tests/isolation specs spec
check_rust_tests
[ "$wrong" = 0 ] && say "every test is listed"
exit "$wrong"
