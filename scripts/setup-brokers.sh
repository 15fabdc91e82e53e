#!/usr/bin/env bash
# Finds or installs RabbitMQ, which the tests of the examples and `make demo BROKER=rabbitmq` start
# themselves, as nodes of their own on ports of their own.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# shellcheck source=scripts/packages.sh
. "$(dirname "$0")/packages.sh"

# Where tests/broker looks for it, in the same order.
server=${RABBITMQ_SERVER:-}
if [ -n "$server" ]; then
    [ -x "$server" ] || fail "RABBITMQ_SERVER=$server is no program"
elif ! [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] && ! have rabbitmq-server; then
    need_package RabbitMQ rabbitmq-server
fi
