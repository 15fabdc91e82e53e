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

impl Holder {
    /// Whether another transaction decides.
    pub fn is_in_flight(self) -> bool {
        matches!(self, Self::InFlight(_))
    }
}

/// The value of one column of an index.
#[derive(Debug, Clone, Copy)]
pub enum Key<'a> {
    Text(&'a str),
    Bigint(i64),
    Integer(i32),
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

    /// Who holds a key of a unique index, given as the values of its columns.
    pub fn holder(&self, key: &[Key<'_>]) -> Holder {
        let mut holder = Holder::Nobody;
        // A key may have a committed, deleted-in-flight version and no other, or an
        // uncommitted one beside dead ones, which the snapshot leaves out.
        self.visit(key, |found, slot| {
            // SAFETY: the slot holds the heap tuple that the scan has just found.
            let after_snapshot = unsafe { is_after_snapshot(slot) };
            holder = match found {
                Some(transaction) => Holder::InFlight(transaction),
                None => Holder::Settled { after_snapshot },
            };
            found.is_none()
        });
        holder
    }

    /// Whether there is a row with these values in the index's leading columns, committed
    /// or of this transaction.
    pub fn has(&self, key: &[Key<'_>]) -> bool {
        let mut has = false;
        self.visit(key, |found, _| {
            has |= found.is_none();
            !has
        });
        has
    }

    /// A bigint column, from 1, of the row under a key of a unique index.
    pub fn bigint(&self, key: &[Key<'_>], column: usize) -> Option<i64> {
        let mut value = None;
        self.visit(key, |_, slot| {
            // SAFETY: the slot holds the heap tuple that the scan has just found; it is
            // pinned while it is read.
            unsafe {
                let mut should_free = false;
                let tuple = pg_sys::ExecFetchSlotHeapTuple(slot, false, &mut should_free);
                value = column_of(self.table, tuple, column);
            }
            false
        });
        value
    }

    /// Calls `see` for each row under the key that is not dead, with the transaction that
    /// is changing it if there is one, until `see` answers false.
    fn visit(
        &self,
        key: &[Key<'_>],
        mut see: impl FnMut(Option<pg_sys::TransactionId>, *mut pg_sys::TupleTableSlot) -> bool,
    ) {
        // SAFETY: the scan keys have one element a column and outlive the scan, as do
        // the snapshot and the slot; the index is a btree whose columns have the types
        // of the key, compared in the collation of the index itself.
        unsafe {
            let mut scan_keys: Vec<pg_sys::ScanKeyData> = Vec::with_capacity(key.len());
            for (column, value) in key.iter().enumerate() {
                let (equal, datum) = match value {
                    Key::Text(text) => (pg_sys::F_TEXTEQ, text.into_datum()),
                    Key::Bigint(number) => (pg_sys::F_INT8EQ, number.into_datum()),
                    Key::Integer(number) => (pg_sys::F_INT4EQ, number.into_datum()),
                };
                let mut scan_key = pg_sys::ScanKeyData::default();
                pg_sys::ScanKeyEntryInitialize(
                    &mut scan_key,
                    0,
                    column as pg_sys::AttrNumber + 1,
                    pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber,
                    pg_sys::InvalidOid,
                    *(*self.index).rd_indcollation.add(column),
                    equal.into(),
                    datum.unwrap_or(pg_sys::Datum::from(0_usize)),
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
            const FORWARD: pg_sys::ScanDirection::Type =
                pg_sys::ScanDirection::ForwardScanDirection;
            while pg_sys::index_getnext_slot(scan, FORWARD, slot) {
                let unfinished = [dirty.xmin, dirty.xmax]
                    .into_iter()
                    .find(|xid| *xid != pg_sys::InvalidTransactionId);
                if !see(unfinished, slot) {
                    break;
                }
            }
            pg_sys::index_endscan(scan);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
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
    // SAFETY: the tuple is read before the scan ends. A catalog scan takes a new snapshot for a table that has no system cache.
    unsafe {
        let relation = pg_sys::table_open(db.relation(table), MODE);
        let scan = pg_sys::table_beginscan_catalog(relation, 0, ptr::null_mut());
        let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
        let value = if tuple.is_null() {
            None
        } else {
            column_of(relation, tuple, column)
        };
        pg_sys::table_endscan(scan);
        pg_sys::table_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        value
    }
}

/// A column, from 1, of a tuple.
///
/// # Safety
/// The tuple belongs to the open relation and is pinned.
unsafe fn column_of<T: FromDatum>(
    relation: pg_sys::Relation,
    tuple: pg_sys::HeapTuple,
    column: usize,
) -> Option<T> {
    // SAFETY: see above; the arrays have one element a column.
    unsafe {
        let columns = (*(*relation).rd_att).natts as usize;
        let mut values = vec![pg_sys::Datum::from(0_usize); columns];
        let mut nulls = vec![true; columns];
        pg_sys::heap_deform_tuple(
            tuple,
            (*relation).rd_att,
            values.as_mut_ptr(),
            nulls.as_mut_ptr(),
        );
        let value = values.get(column - 1)?;
        T::from_datum(*value, *nulls.get(column - 1)?)
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
