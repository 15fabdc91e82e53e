# Sourced, after common.sh, by scripts that need a server: the one that PGHOST, PGPORT and PGUSER
# (a superuser) name; without PGHOST the script is run again on a throwaway cluster that has the
# extension installed, made with the options in the array `cluster_options` if that is set. Not to
# be run by itself.
# shellcheck shell=bash
# shellcheck disable=SC2154 # common.sh sets these

if [ -z "${PGHOST:-}" ]; then
    load_setup
    cargo build --quiet --package throwaway-cluster
    exec "$target/debug/throwaway-cluster" run --no-fsync \
        ${cluster_options[@]+"${cluster_options[@]}"} -- "$root/scripts/$(basename "$0")" "$@"
fi

# The psql of the Postgres that setup.sh found comes first.
if [ -f "$target/setup/$feature.env" ]; then
    load_setup
    PATH=$pg_bindir:$PATH
fi

# on_database DATABASE OPTION…: psql as a script wants it, ending at the first error.
on_database() {
    local database=$1
    shift
    psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --dbname="$database" "$@"
}
