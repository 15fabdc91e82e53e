//! Looks a key up in an index with a dirty snapshot: who holds it, if anyone.
//!
//! SQL cannot see an uncommitted row; it can only wait for it. Two promises need
//! the look: `inbox_try_claim` answers `in_flight` at once, from the row itself and
//! not from a hash that may collide, and the ring and its sealed tables are read as
//! they are now, at every isolation level (G10). It costs a fraction of a statement,
//! which is why it also answers what is nearly always "nothing there".

use std::ptr;

use pgrx::{FromDatum, IntoDatum, pg_sys};

use crate::spi::{Db, uses_transaction_snapshot};

/// What stands under a key at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Nothing that is committed or may still be.
    Nobody,
    /// A committed row, or one of this transaction.
    Settled {
        /// The row is hidden from this transaction's snapshot (REPEATABLE READ).
        after_snapshot: bool,
    },
    /// Another transaction has inserted, changed or deleted the row and is not done.
    InFlight(pg_sys::TransactionId),
}

/// A table of the extension and one of its btree indexes, open for probes.
pub struct IndexProbe {
    table: pg_sys::Relation,
    index: pg_sys::Relation,
}

impl IndexProbe {
    /// Opens both; the locks stay until the transaction ends, as a query's would.
    pub fn open(db: &Db, table: &str, index: &str) -> Self {
        let (table, index) = (db.relation(table), db.relation(index));
        const MODE: pg_sys::LOCKMODE = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        // SAFETY: both raise an error where the relation is gone; the references are
        // given back in Drop.
        unsafe {
            Self {
                table: pg_sys::table_open(table, MODE),
                index: pg_sys::index_open(index, MODE),
            }
        }
    }

    /// Who holds the key, given as the values of the index's leading text columns.
    pub fn text_key(&self, key: &[&str]) -> Holder {
        let datums: Vec<_> = key.iter().map(|text| text.into_datum()).collect();
        self.holder(&datums, pg_sys::F_TEXTEQ.into())
    }

    /// Who holds the key of an index on one bigint column.
    pub fn bigint_key(&self, key: i64) -> Holder {
        self.holder(&[key.into_datum()], pg_sys::F_INT8EQ.into())
    }

    fn holder(&self, key: &[Option<pg_sys::Datum>], equal: pg_sys::Oid) -> Holder {
        // SAFETY: the scan keys have one element a column and outlive the scan, as do
        // the snapshot and the slot; the index is a btree whose columns have the type
        // that `equal` compares, in the collation of the index itself.
        unsafe {
            let mut scan_keys: Vec<pg_sys::ScanKeyData> = Vec::with_capacity(key.len());
            for (column, value) in key.iter().enumerate() {
                let mut scan_key = pg_sys::ScanKeyData::default();
                pg_sys::ScanKeyEntryInitialize(
                    &mut scan_key,
                    0,
                    column as pg_sys::AttrNumber + 1,
                    pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber,
                    pg_sys::InvalidOid,
                    *(*self.index).rd_indcollation.add(column),
                    equal,
                    value.unwrap_or(pg_sys::Datum::from(0_usize)),
                );
                scan_keys.push(scan_key);
            }
            let mut dirty = pg_sys::SnapshotData {
                snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
                ..Default::default()
            };
            let slot = pg_sys::table_slot_create(self.table, ptr::null_mut());
            let scan = begin_scan(self.table, self.index, &mut dirty, scan_keys.len());
            pg_sys::index_rescan(
                scan,
                scan_keys.as_mut_ptr(),
                scan_keys.len() as i32,
                ptr::null_mut(),
                0,
            );
            let mut holder = Holder::Nobody;
            // A key may have a committed, deleted-in-flight version and no other, or an
            // uncommitted one beside dead ones, which the snapshot leaves out.
            while pg_sys::index_getnext_slot(
                scan,
                pg_sys::ScanDirection::ForwardScanDirection,
                slot,
            ) {
                let unfinished = [dirty.xmin, dirty.xmax]
                    .into_iter()
                    .find(|xid| *xid != pg_sys::InvalidTransactionId);
                holder = match unfinished {
                    Some(xid) => Holder::InFlight(xid),
                    None => Holder::Settled {
                        after_snapshot: is_after_snapshot(slot),
                    },
                };
                if unfinished.is_some() {
                    break;
                }
            }
            pg_sys::index_endscan(scan);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            holder
        }
    }
}

impl Drop for IndexProbe {
    fn drop(&mut self) {
        const KEEP_LOCK: pg_sys::LOCKMODE = pg_sys::NoLock as pg_sys::LOCKMODE;
        // SAFETY: gives back the references taken in `open`. While an error unwinds the
        // resource owner still holds them, so this is the one release.
        unsafe {
            pg_sys::index_close(self.index, KEEP_LOCK);
            pg_sys::table_close(self.table, KEEP_LOCK);
        }
    }
}

/// An integer column, from 1, of the one row of a table of the extension, as it is now
/// at every isolation level; none where there is no row or no value.
pub fn integer_of_one_row(db: &Db, table: &str, column: usize) -> Option<i32> {
    const MODE: pg_sys::LOCKMODE = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    // SAFETY: the arrays have one element a column; the tuple is read before the scan
    // ends. A catalog scan takes a new snapshot for a table that has no system cache.
    unsafe {
        let relation = pg_sys::table_open(db.relation(table), MODE);
        let scan = pg_sys::table_beginscan_catalog(relation, 0, ptr::null_mut());
        let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
        let value = if tuple.is_null() {
            None
        } else {
            let columns = (*(*relation).rd_att).natts as usize;
            let mut values = vec![pg_sys::Datum::from(0_usize); columns];
            let mut nulls = vec![true; columns];
            pg_sys::heap_deform_tuple(
                tuple,
                (*relation).rd_att,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
            values
                .get(column - 1)
                .zip(nulls.get(column - 1))
                .and_then(|(value, is_null)| i32::from_datum(*value, *is_null))
        };
        pg_sys::table_endscan(scan);
        pg_sys::table_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        value
    }
}

/// Whether the row in the slot was committed by a transaction that this
/// transaction's snapshot counts as still running.
///
/// # Safety
/// The slot holds a heap tuple.
unsafe fn is_after_snapshot(slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: see above; the tuple stays pinned by its slot.
    unsafe {
        if !uses_transaction_snapshot() {
            return false;
        }
        let mut should_free = false;
        let tuple = pg_sys::ExecFetchSlotHeapTuple(slot, false, &mut should_free);
        let header = &*(*tuple).t_data;
        let frozen = pg_sys::HEAP_XMIN_FROZEN as u16;
        let inserted_by = header.t_choice.t_heap.t_xmin;
        let hidden = header.t_infomask & frozen != frozen
            && !pg_sys::TransactionIdIsCurrentTransactionId(inserted_by)
            && pg_sys::XidInMVCCSnapshot(inserted_by, pg_sys::GetTransactionSnapshot());
        if should_free {
            pg_sys::heap_freetuple(tuple);
        }
        hidden
    }
}

/// `index_beginscan`, whose parameters grew in Postgres 18.
///
/// # Safety
/// The relations are open, the index belongs to the table, and the snapshot
/// outlives the scan.
unsafe fn begin_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: &mut pg_sys::SnapshotData,
    keys: usize,
) -> pg_sys::IndexScanDesc {
    // SAFETY: see above.
    #[cfg(not(feature = "pg18"))]
    unsafe {
        pg_sys::index_beginscan(table, index, snapshot, keys as i32, 0)
    }
    // SAFETY: see above; no instrumentation is asked for.
    #[cfg(feature = "pg18")]
    unsafe {
        pg_sys::index_beginscan(table, index, snapshot, ptr::null_mut(), keys as i32, 0)
    }
}
