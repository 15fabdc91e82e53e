# Sourced, after common.sh and on-server.sh, by scripts that run prometheus-postgres-exporter with
# the queries of monitoring/: finds or installs it, starts it, scrapes it. Not to be run by itself.
# shellcheck shell=bash
# shellcheck disable=SC2154 # common.sh sets these

# shellcheck source=scripts/packages.sh
. "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

# Ports from below Linux's ephemeral range, so that no outgoing connection has taken one.
lowest_port=20000
port_count=12000
port_attempts=20

need_monitoring() {
    if ! { have prometheus-postgres-exporter && have prometheus && have promtool; }; then
        need_package "Prometheus with its exporter for Postgres" \
            prometheus prometheus-postgres-exporter
    fi
    # The first Python with a parser for YAML: Debian's package is for Debian's Python.
    for python in python3 /usr/bin/python3 ''; do
        ! have "$python" || ! "$python" -c 'import yaml' 2>/dev/null || break
    done
    if [ -z "$python" ]; then
        need_package "Python with yaml" python3 python3-yaml
        python=/usr/bin/python3
    fi
}

# No compiled Python among the scripts.
export PYTHONDONTWRITEBYTECODE=1

monitoring_py() { "$python" "$root/scripts/monitoring.py" "$@"; }

# Whether somebody listens on this port of this machine.
listening() { : <>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null

# page PORT PATH: what an HTTP server on this machine says; ends with 1 unless it says that all is
# well (200).
page() {
    {
        printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3
        awk 'NR == 1 { well = $2 == 200; header = 1 }
             header { if (/^\r?$/) header = 0; next }
             { print }
             END { exit !well }' <&3
    } 3<>"/dev/tcp/127.0.0.1/$1"
} 2>/dev/null

# start_server PATH LOG COMMAND…: starts a server on a port of its own, which takes the place of
# PORT in COMMAND, and waits until it gives the page PATH. Sets server_pid and server_port.
start_server() {
    local path=$1 log=$2 attempt deadline=$((SECONDS + 60))
    shift 2
    # A server that ends at once has perhaps found its port taken.
    for ((attempt = 0; attempt < port_attempts; attempt++)); do
        server_port=$((lowest_port + RANDOM % port_count))
        # Somebody else's server would answer in our server's place.
        ! listening "$server_port" || continue
        "${@//PORT/$server_port}" >"$log" 2>&1 &
        server_pid=$!
        while kill -0 "$server_pid" 2>/dev/null; do
            ! page "$server_port" "$path" >/dev/null || return 0
            [ "$SECONDS" -lt "$deadline" ] || break 2
            sleep 0.1
        done
    done
    cat "$log" >&2
    fail "$1 does not start"
}

stop_server() {
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

# start_exporter DATABASE ROLE LOG: with the queries of monitoring/ and nothing else. Sets
# server_pid and server_port.
start_exporter() {
    DATA_SOURCE_NAME="host=$PGHOST port=$PGPORT dbname=$1 user=$2 sslmode=disable" \
        start_server / "$3" prometheus-postgres-exporter \
        --web.listen-address=127.0.0.1:PORT --extend.query-path=monitoring/postgres_exporter.yaml \
        --disable-default-metrics --disable-settings-metrics \
        --no-collector.database --no-collector.bgwriter
}
