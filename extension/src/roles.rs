//! `inbox_grant`: what each kind of role may do (guarantee G14).
//!
//! The grants are listed here, one line an object; nothing is granted by pattern, so
//! a new function is usable by nobody until somebody decides.

use std::ffi::CStr;

use pgrx::pg_sys::BuiltinOid::{OIDOID, TEXTOID};
use pgrx::prelude::*;

use crate::args;
use crate::errors::{InboxError, Result, or_raise, shown};
use crate::spi::{Db, Statement, arg, quote_identifier};

/// What an access needs: functions by name, in all their forms, and relations with
/// their privileges.
struct Access {
    functions: &'static [&'static str],
    relations: &'static [(&'static str, &'static str)],
}

/// Claiming, receiving, handing out, failing.
const CONSUMER: Access = Access {
    functions: &[
        "inbox_annotate",
        "inbox_claim",
        "inbox_claim_batch",
        "inbox_fail",
        "inbox_fail_message",
        "inbox_lookup",
        "inbox_next",
        "inbox_receive",
        "inbox_sequence",
        "inbox_try_claim",
    ],
    relations: &[
        ("sequence_type", "SELECT"),
        ("sequence_message_type", "SELECT"),
        ("sequence_instance", "SELECT, INSERT, UPDATE"),
        (
            "sequential_inbox_idempotence",
            "SELECT, INSERT, UPDATE (created_at), DELETE",
        ),
        ("sequenced_message", "SELECT, INSERT, UPDATE"),
        ("buffered_message", "SELECT, INSERT, UPDATE, DELETE"),
        ("inbox_claim_ring", "SELECT"),
        ("inbox_claim_0", "SELECT, INSERT, UPDATE, DELETE"),
        ("inbox_claim_1", "SELECT, INSERT, UPDATE, DELETE"),
        ("inbox_claim_2", "SELECT, INSERT, UPDATE, DELETE"),
    ],
};

/// What an operator has beyond a consumer and a monitor.
const OPERATOR: Access = Access {
    functions: &[
        "inbox_close",
        "inbox_declare_sequence",
        "inbox_drop_sequence",
        "inbox_force",
        "inbox_force_all",
        "inbox_housekeeping",
        "inbox_release",
        "inbox_retry",
        "inbox_skip",
        "inbox_skip_gap",
    ],
    relations: &[
        ("sequence_type", "INSERT, UPDATE, DELETE"),
        ("sequence_message_type", "INSERT, UPDATE, DELETE"),
        ("sequence_instance", "DELETE"),
        ("sequenced_message", "DELETE"),
        ("inbox_claim_ring", "INSERT, UPDATE"),
        ("inbox_claim_0", "TRUNCATE"),
        ("inbox_claim_1", "TRUNCATE"),
        ("inbox_claim_2", "TRUNCATE"),
    ],
};

/// Looking, at everything but payloads.
const MONITOR: Access = Access {
    functions: &[
        "inbox_lookup",
        "inbox_metrics",
        "inbox_stat_counters",
        "inbox_status",
    ],
    relations: &[
        ("inbox_claims", "SELECT"),
        ("inbox_dead_letters", "SELECT"),
        ("inbox_sequences", "SELECT"),
        ("inbox_settings", "SELECT"),
        ("inbox_stat", "SELECT"),
        ("inbox_claim_ring", "SELECT"),
        ("inbox_worker_status", "SELECT"),
        ("sequence_instance", "SELECT"),
        ("sequence_message_type", "SELECT"),
        ("sequence_type", "SELECT"),
        ("sequential_inbox_idempotence", "SELECT"),
        ("sequenced_message", "SELECT"),
        ("inbox_claim_0", "SELECT"),
        ("inbox_claim_1", "SELECT"),
        ("inbox_claim_2", "SELECT"),
    ],
};

static ROLE_EXISTS: Statement = Statement::new(
    "SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname {=} $1",
    &[TEXTOID],
);
static MAY_USE_SCHEMA: Statement = Statement::new(
    "SELECT pg_catalog.has_schema_privilege($1::pg_catalog.name, $2, 'USAGE')",
    &[TEXTOID, OIDOID],
);
static FUNCTION_FORMS: Statement = Statement::new(
    "SELECT i.identity FROM pg_catalog.pg_proc p \
     CROSS JOIN LATERAL pg_catalog.pg_identify_object( \
        'pg_catalog.pg_proc'::pg_catalog.regclass, p.oid, 0) i \
     WHERE p.pronamespace {=} $1 AND p.proname {=} $2 \
       AND EXISTS (SELECT FROM pg_catalog.pg_depend d \
            JOIN pg_catalog.pg_extension e ON e.oid {=} d.refobjid \
            WHERE d.classid {=} 'pg_catalog.pg_proc'::pg_catalog.regclass \
              AND d.objid {=} p.oid AND d.deptype {=} 'e' \
              AND d.refclassid {=} 'pg_catalog.pg_extension'::pg_catalog.regclass \
              AND e.extname {=} 'sequential_inbox')",
    &[OIDOID, TEXTOID],
);

fn grant(db: &Db, role: &str, access: &Access) -> Result<()> {
    let grantee = quote_identifier(role);
    let schema = quote_identifier(db.schema());
    for function in access.functions {
        let forms = db.write(&FUNCTION_FORMS, &[arg(db.namespace()), arg(*function)]);
        for row in 0..forms.len() {
            if let Some(identity) = forms.get::<String>(row, 0) {
                db.utility(&format!(
                    "GRANT EXECUTE ON FUNCTION {identity} TO {grantee}"
                ))?;
            }
        }
    }
    for (relation, privileges) in access.relations {
        let relation = quote_identifier(relation);
        db.utility(&format!(
            "GRANT {privileges} ON TABLE {schema}.{relation} TO {grantee}"
        ))?;
    }
    // Often it is public, which everybody may use: a grant there would outlive the
    // extension and be in the way of DROP ROLE.
    if db
        .write(&MAY_USE_SCHEMA, &[arg(role), arg(db.namespace())])
        .get::<bool>(0, 0)
        == Some(true)
    {
        return Ok(());
    }
    db.utility(&format!("GRANT USAGE ON SCHEMA {schema} TO {grantee}"))
}

/// `inbox_grant(role_name, access)`
#[pg_extern(sql = false)]
fn inbox_grant(role_name: Option<&CStr>, access: Option<&str>, fcinfo: pg_sys::FunctionCallInfo) {
    or_raise((|| {
        let role = args::required("role_name", role_name)?.to_string_lossy();
        if role.is_empty() {
            return Err(InboxError::invalid("role_name must not be empty")
                .hint("Pass the name of the role that gets the access."));
        }
        let accesses: &[&Access] = match args::required("access", access)? {
            "consumer" => &[&CONSUMER],
            "operator" => &[&CONSUMER, &MONITOR, &OPERATOR],
            "monitor" => &[&MONITOR],
            other => {
                return Err(InboxError::invalid(format!(
                    "access is not valid: \"{}\"",
                    shown(other)
                ))
                .hint("Use 'consumer', 'operator' or 'monitor'."));
            }
        };
        let db = Db::read_write(fcinfo, "inbox_grant")?;
        // Not left to GRANT: there, a role named public would mean everybody.
        if db.write(&ROLE_EXISTS, &[arg(role.as_ref())]).is_empty() {
            return Err(InboxError::new(
                PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
                format!("role \"{}\" does not exist", shown(&role)),
            )
            .hint("Create it with CREATE ROLE first."));
        }
        accesses
            .iter()
            .try_for_each(|access| grant(&db, &role, access))
    })())
}
