#!/usr/bin/env bash
# Finds or installs PgBouncer, which the tests start themselves, on ports of their own.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# shellcheck source=scripts/packages.sh
. "$(dirname "$0")/packages.sh"

# Debian puts it where only root has its PATH.
PATH=$PATH:/usr/sbin
have pgbouncer || need_package PgBouncer pgbouncer
pgbouncer --version | head -n 1
