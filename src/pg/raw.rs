//! Declares functions of Postgres that are called without the guard of the bindings.
//!
//! Responsible for the declarations. Not responsible for safety, which each caller in `pg` explains, nor for what the
//! bindings lack (`unbound`).
//!
//! Invariant: each declaration has the types that the bindings have for the major it is compiled for. Another one does
//! not compile.

use std::ffi::{c_char, c_int, c_void};

use pgrx::pg_sys::{
    self, BTScanInsert, BTStack, BlockNumber, Buffer, BulkInsertState, CommandId, Datum, GenericXLogState, HeapTuple,
    IndexTuple, JsonbContainer, JsonbIterator, JsonbValue, LOCKMODE, LWLock, OffsetNumber, Oid, Page, Relation,
    ResultRelInfo, Snapshot, TimestampTz, TupleDesc, TupleTableSlot,
};

/// Declares functions, and compares each declaration with the bindings' own function of this name.
macro_rules! without_guard {
    ($($(#[$when:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        #[allow(dead_code, reason = "not every platform has what puts entries into a leaf")]
        unsafe extern "C-unwind" {
            $($(#[$when])* pub fn $name($($argument: $kind),*) $(-> $result)?;)*
        }
        $($(#[$when])* const _: unsafe fn($($kind),*) $(-> $result)? = pg_sys::$name;)*
    };
}

/// The values and the nulls of a row to be formed.
#[cfg(not(feature = "from17"))]
type In<T> = *mut T;
#[cfg(feature = "from17")]
type In<T> = *const T;

/// Options of an insert, as bits.
#[cfg(not(feature = "from19"))]
pub type InsertOptions = c_int;
#[cfg(feature = "from19")]
pub type InsertOptions = u32;

/// An index tuple to be put on a page.
#[cfg(not(feature = "from19"))]
type Item = pg_sys::Item;
#[cfg(feature = "from19")]
type Item = *const c_void;

#[cfg(not(feature = "from19"))]
type Tid = pg_sys::ItemPointer;
#[cfg(feature = "from19")]
type Tid = *const pg_sys::ItemPointerData;

/// A signal handler. From 19 on it gets the sender, too.
#[cfg(not(feature = "from19"))]
pub type Handler = unsafe extern "C-unwind" fn(c_int);
#[cfg(feature = "from19")]
pub type Handler = unsafe extern "C-unwind" fn(c_int, SignalInfo);
#[cfg(feature = "from19")]
pub type SignalInfo = *const pg_sys::pg_signal_info;

// Rows and tables.
without_guard! {
    fn table_open(oid: Oid, lock: LOCKMODE) -> Relation;
    fn table_close(relation: Relation, lock: LOCKMODE);
    fn heap_form_tuple(desc: TupleDesc, values: In<Datum>, nulls: In<bool>) -> HeapTuple;
    fn heap_deform_tuple(tuple: HeapTuple, desc: TupleDesc, values: *mut Datum, nulls: *mut bool);
    fn heap_copytuple(tuple: HeapTuple) -> HeapTuple;
    fn heap_freetuple(tuple: HeapTuple);
    fn heap_fetch(
        relation: Relation,
        snapshot: Snapshot,
        tuple: HeapTuple,
        buffer: *mut Buffer,
        keep_buffer: bool,
    ) -> bool;
    fn heap_insert(
        relation: Relation,
        tuple: HeapTuple,
        command: CommandId,
        options: InsertOptions,
        bulk: BulkInsertState,
    );
    fn heap_multi_insert(
        relation: Relation,
        slots: *mut *mut TupleTableSlot,
        count: c_int,
        command: CommandId,
        options: InsertOptions,
        bulk: BulkInsertState,
    );
    fn slot_getsomeattrs_int(slot: *mut TupleTableSlot, count: c_int);
    fn MakeSingleTupleTableSlot(desc: TupleDesc, ops: *const pg_sys::TupleTableSlotOps) -> *mut TupleTableSlot;
    fn ExecStoreHeapTuple(tuple: HeapTuple, slot: *mut TupleTableSlot, free: bool) -> *mut TupleTableSlot;
    fn ExecDropSingleTupleTableSlot(slot: *mut TupleTableSlot);
    fn GetCurrentCommandId(used: bool) -> CommandId;
}

// Pages and memory.
without_guard! {
    fn BufferGetBlockNumber(buffer: Buffer) -> BlockNumber;
    fn ReleaseBuffer(buffer: Buffer);
    fn UnlockReleaseBuffer(buffer: Buffer);
    fn PageAddItemExtended(page: Page, item: Item, size: usize, number: OffsetNumber, flags: c_int) -> OffsetNumber;
    fn GenericXLogStart(relation: Relation) -> *mut GenericXLogState;
    fn GenericXLogRegisterBuffer(state: *mut GenericXLogState, buffer: Buffer, flags: c_int) -> Page;
    fn GenericXLogFinish(state: *mut GenericXLogState) -> pg_sys::XLogRecPtr;
    fn GenericXLogAbort(state: *mut GenericXLogState);
    fn CheckForSerializableConflictIn(relation: Relation, tid: Tid, block: BlockNumber);
    fn palloc0(size: usize) -> *mut c_void;
    fn pfree(memory: *mut c_void);
}

// Indexes.
without_guard! {
    fn index_open(oid: Oid, lock: LOCKMODE) -> Relation;
    fn index_close(relation: Relation, lock: LOCKMODE);
    fn index_form_tuple(desc: TupleDesc, values: In<Datum>, nulls: In<bool>) -> IndexTuple;
    fn index_insert(
        index: Relation,
        values: *mut Datum,
        nulls: *mut bool,
        tid: pg_sys::ItemPointer,
        table: Relation,
        check: pg_sys::IndexUniqueCheck::Type,
        is_unchanged: bool,
        info: *mut pg_sys::IndexInfo,
    ) -> bool;
    fn RelationGetIndexList(relation: Relation) -> *mut pg_sys::List;
    fn BuildIndexInfo(index: Relation) -> *mut pg_sys::IndexInfo;
    fn CreateExecutorState() -> *mut pg_sys::EState;
    fn FreeExecutorState(state: *mut pg_sys::EState);
    fn InitResultRelInfo(
        result: *mut ResultRelInfo,
        relation: Relation,
        number: u32,
        root: *mut ResultRelInfo,
        instrument: c_int,
    );
    #[cfg(not(feature = "from16"))]
    fn ExecInsertIndexTuples(
        result: *mut ResultRelInfo,
        slot: *mut TupleTableSlot,
        state: *mut pg_sys::EState,
        update: bool,
        no_duplicate_error: bool,
        conflict: *mut bool,
        arbiters: *mut pg_sys::List,
    ) -> *mut pg_sys::List;
    #[cfg(all(feature = "from16", not(feature = "from19")))]
    fn ExecInsertIndexTuples(
        result: *mut ResultRelInfo,
        slot: *mut TupleTableSlot,
        state: *mut pg_sys::EState,
        update: bool,
        no_duplicate_error: bool,
        conflict: *mut bool,
        arbiters: *mut pg_sys::List,
        only_summarizing: bool,
    ) -> *mut pg_sys::List;
    #[cfg(feature = "from19")]
    fn ExecInsertIndexTuples(
        result: *mut ResultRelInfo,
        state: *mut pg_sys::EState,
        flags: u32,
        slot: *mut TupleTableSlot,
        arbiters: *mut pg_sys::List,
        conflict: *mut bool,
    ) -> *mut pg_sys::List;
}

// B-trees.
without_guard! {
    fn _bt_mkscankey(index: Relation, tuple: IndexTuple) -> BTScanInsert;
    #[cfg(not(feature = "from16"))]
    fn _bt_search(
        index: Relation,
        key: BTScanInsert,
        buffer: *mut Buffer,
        access: c_int,
        snapshot: Snapshot,
    ) -> BTStack;
    #[cfg(all(feature = "from16", not(feature = "from17")))]
    fn _bt_search(
        index: Relation,
        table: Relation,
        key: BTScanInsert,
        buffer: *mut Buffer,
        access: c_int,
        snapshot: Snapshot,
    ) -> BTStack;
    #[cfg(all(feature = "from17", not(feature = "from19")))]
    fn _bt_search(
        index: Relation,
        table: Relation,
        key: BTScanInsert,
        buffer: *mut Buffer,
        access: c_int,
    ) -> BTStack;
    #[cfg(feature = "from19")]
    fn _bt_search(
        index: Relation,
        table: Relation,
        key: BTScanInsert,
        buffer: *mut Buffer,
        access: c_int,
        returns_stack: bool,
    ) -> BTStack;
    #[cfg(not(feature = "from19"))]
    fn _bt_freestack(stack: BTStack);
    #[cfg(not(feature = "from17"))]
    fn _bt_get_endpoint(index: Relation, level: u32, rightmost: bool, snapshot: Snapshot) -> Buffer;
    #[cfg(feature = "from17")]
    fn _bt_get_endpoint(index: Relation, level: u32, rightmost: bool) -> Buffer;
    fn _bt_compare(index: Relation, key: BTScanInsert, page: Page, number: OffsetNumber) -> i32;
    fn _bt_relbuf(index: Relation, buffer: Buffer);
}

// Values.
without_guard! {
    fn JsonbIteratorInit(container: *mut JsonbContainer) -> *mut JsonbIterator;
    fn JsonbIteratorNext(
        it: *mut *mut JsonbIterator,
        value: *mut JsonbValue,
        skip_nested: bool,
    ) -> pg_sys::JsonbIteratorToken::Type;
    fn JsonbValueToJsonb(value: *mut JsonbValue) -> *mut pg_sys::Jsonb;
    fn getKeyJsonValueFromContainer(
        container: *mut JsonbContainer,
        key: *const c_char,
        length: c_int,
        value: *mut JsonbValue,
    ) -> *mut JsonbValue;
    fn hash_bytes_extended(bytes: *const u8, length: c_int, seed: u64) -> u64;
    fn nextval_internal(sequence: Oid, check_permissions: bool) -> i64;
    fn find_inheritance_children(parent: Oid, mode: LOCKMODE) -> *mut pg_sys::List;
    fn GetSubscriptionRelState(subscription: Oid, table: Oid, lsn: *mut pg_sys::XLogRecPtr) -> c_char;
}

// The session and its transaction.
without_guard! {
    fn GetCurrentTimestamp() -> TimestampTz;
    fn GetCurrentTransactionStopTimestamp() -> TimestampTz;
    fn GetCurrentSubTransactionId() -> pg_sys::SubTransactionId;
    fn GetTopFullTransactionIdIfAny() -> pg_sys::FullTransactionId;
    fn RecoveryInProgress() -> bool;
    fn GetUserId() -> Oid;
    fn GetUserIdAndSecContext(user: *mut Oid, context: *mut c_int);
    fn SetUserIdAndSecContext(user: Oid, context: c_int);
    fn NewGUCNestLevel() -> c_int;
    fn AtEOXact_GUC(is_commit: bool, level: c_int);
    fn set_config_option(
        name: *const c_char,
        value: *const c_char,
        context: pg_sys::GucContext::Type,
        source: pg_sys::GucSource::Type,
        action: pg_sys::GucAction::Type,
        change: bool,
        level: c_int,
        is_reload: bool,
    ) -> c_int;
    fn LWLockAcquire(lock: *mut LWLock, mode: pg_sys::LWLockMode::Type) -> bool;
    fn LWLockRelease(lock: *mut LWLock);
    fn Async_Notify(channel: *const c_char, payload: *const c_char);
}

// Statements, messages and signals.
without_guard! {
    fn standard_ProcessUtility(
        planned: *mut pg_sys::PlannedStmt,
        query: *const c_char,
        read_only_tree: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        params: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        receiver: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
    fn check_log_duration(milliseconds: *mut c_char, was_logged: bool) -> c_int;
    fn GetCommandLogLevel(statement: *mut pg_sys::Node) -> pg_sys::LogStmtLevel::Type;
    fn errhidestmt(hide: bool) -> c_int;
    fn geterrcode() -> c_int;
    fn geterrposition() -> c_int;
    #[cfg(not(feature = "from19"))]
    fn die(signal: c_int);
    #[cfg(feature = "from19")]
    fn die(signal: c_int, info: SignalInfo);
    #[cfg(not(feature = "from19"))]
    fn StatementCancelHandler(signal: c_int);
    #[cfg(feature = "from19")]
    fn StatementCancelHandler(signal: c_int, info: SignalInfo);
    #[cfg(not(feature = "from19"))]
    fn SignalHandlerForConfigReload(signal: c_int);
    #[cfg(feature = "from19")]
    fn SignalHandlerForConfigReload(signal: c_int, info: SignalInfo);
}
