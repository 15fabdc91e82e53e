#!/usr/bin/env bash
# Draws docs/images/dashboard.svg: the panels of monitoring/grafana.json, with what Prometheus answers
# to their own queries after it has watched the workload of monitoring/demo/ for three minutes. In the
# second of them nobody sweeps.
#
# Prometheus and the exporter are those of Debian, on ports of their own. The server is the one that
# PGHOST, PGPORT and PGUSER (a superuser) name, with the settings below; without PGHOST it is a
# throwaway cluster.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# A ring that moves on twice a minute.
# shellcheck disable=SC2034 # used by on-server.sh
cluster_options=(--preload --conf=sequential_inbox.claim_retention=1min
    --conf=sequential_inbox.housekeeping_interval=5s)
# shellcheck source=scripts/on-server.sh
. "$(dirname "$0")/on-server.sh"
# shellcheck source=scripts/exporter.sh
. "$(dirname "$0")/exporter.sh"
need_monitoring
have pgbench || fail "pgbench is missing: take a Postgres that comes with it (PG=15)"

picture=docs/images/dashboard.svg
minute=60
database=dashboard_$$
role=dashboard_$$
scratch=$(mktemp -d)
jobs=()
tidy() {
    local job
    for job in ${jobs[@]+"${jobs[@]}"}; do
        stop_server "$job"
    done
    rm -rf "$scratch"
    on_database postgres --command="DROP DATABASE IF EXISTS $database WITH (FORCE)" \
        --command="DROP ROLE IF EXISTS $role" 2>/dev/null
}
trap tidy EXIT

on_database postgres --command="CREATE DATABASE $database" --command="CREATE ROLE $role LOGIN"
on_database "$database" --output=/dev/null --file=monitoring/demo/setup.sql \
    --command="SELECT inbox_grant('$role', 'monitor')"

start_exporter "$database" "$role" "$scratch/exporter.log"
jobs+=("$server_pid")
sed "s/EXPORTER/'127.0.0.1:$server_port'/" monitoring/demo/prometheus.yml >"$scratch/prometheus.yml"
start_server /-/ready "$scratch/prometheus.log" prometheus \
    --config.file="$scratch/prometheus.yml" --storage.tsdb.path="$scratch/data" \
    --web.listen-address=127.0.0.1:PORT --log.level=warn
jobs+=("$server_pid")

# load CLIENTS RATE SECONDS SCRIPT…: so many transactions a second of these scripts, in the
# background.
load() {
    local clients=$1 rate=$2 seconds=$3 script files=()
    shift 3
    for script in "$@"; do
        files+=(--file="monitoring/demo/$script")
    done
    pgbench --no-vacuum --client="$clients" --rate="$rate" --time="$seconds" "${files[@]}" \
        "$database" >"$scratch/pgbench.log" 2>&1 &
    jobs+=("$!")
}

heading "three minutes of work"
begin=$(date +%s)
load 6 150 $((3 * minute)) claim.sql@14 receive.sql@30 fail.sql@1
load 1 60 $minute sweep.sql
sleep $((2 * minute))
load 1 150 $minute sweep.sql
sleep $minute
end=$(date +%s)

mkdir -p "$(dirname "$picture")"
"$python" scripts/dashboard-picture.py monitoring/grafana.json \
    "http://127.0.0.1:$server_port" "$begin" "$end" >"$scratch/picture.svg"
mv "$scratch/picture.svg" "$picture"
say "$picture: $(wc -c <"$picture") bytes"
