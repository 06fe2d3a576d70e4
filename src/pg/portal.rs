//! Runs commands as a client would send them: parses, plans and runs them through portals, statement by statement. So a
//! single statement runs at the top level, and CALL and VACUUM may commit.
//!
//! Responsible for what a server process does with a simple query (`exec_simple_query`). Not responsible for the owner
//! of the command, nor for its result (`executor`).
//!
//! Invariant: the transaction of the last statement is open when `end` is called, and is committed afterwards. After an
//! error the caller calls `transaction::abort_after_error`, then `clear`.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::panic::AssertUnwindSafe;
use std::ptr;

use pgrx::PgTryBuilder;
use pgrx::pg_sys::{self, Datum, Oid};

use crate::error::{self, Error, Result};
use crate::pg::fault::fault;
use crate::pg::routine::Routine;
use crate::pg::statement_log::{self, Statement};
use crate::pg::{call, datum, jsonb, memory, raw, unbound};

/// A command and how to run it.
pub struct Command<'a> {
    pub text: &'a CStr,
    /// The function or procedure that the command calls with its argument, regardless of what its text would resolve
    /// to.
    pub routine: Option<&'a Routine>,
    /// The values of its parameters, as JSON and as text. Empty: the command has no parameters.
    pub arguments: &'a [Argument],
    /// True if each of several statements is a separate transaction.
    pub is_autocommit: bool,
    /// At most this many rows of the last statement are kept.
    pub max_rows: usize,
}

/// The value of a parameter.
pub struct Argument {
    /// The value as JSON.
    pub json: String,
    /// The value as text. `None`: it is null.
    pub text: Option<String>,
}

/// The answer of the last statement.
#[derive(Default)]
pub struct Answer {
    /// The tag as psql shows it, such as `UPDATE 7`. Empty: there was no statement.
    pub tag: String,
    /// The number of rows that it returned or changed.
    pub rows: u64,
    /// The rows that were kept, as JSON.
    pub kept: Vec<String>,
    /// The value of the only row, if it has one column of type json or jsonb.
    pub value: Option<String>,
}

/// Collects the rows of a statement. `base` must be first, as Postgres knows it.
#[repr(C)]
struct Receiver {
    base: pg_sys::DestReceiver,
    most: usize,
    /// Bytes of the rows that were kept.
    bytes: usize,
    rows: u64,
    kept: Vec<String>,
    value: Option<String>,
    /// The type of the only column, if it is json or jsonb.
    json: Option<Oid>,
}

impl Receiver {
    fn new(most: usize) -> Self {
        let base = pg_sys::DestReceiver {
            receiveSlot: Some(receive),
            rStartup: Some(start_up),
            rShutdown: Some(shut_down),
            rDestroy: Some(shut_down),
            mydest: pg_sys::CommandDest::DestNone,
        };
        Self { base, most, bytes: 0, rows: 0, kept: Vec::new(), value: None, json: None }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn start_up(this: *mut pg_sys::DestReceiver, _operation: c_int, desc: pg_sys::TupleDesc) {
    // SAFETY: `this` is the receiver that was passed to PortalRun. An accessor reads an attribute of the descriptor.
    unsafe {
        let this = &mut *this.cast::<Receiver>();
        let kind = (!desc.is_null() && (*desc).natts == 1).then(|| pg_sys::SPI_gettypeid(desc, 1));
        this.json = kind.filter(|kind| [pg_sys::JSONOID, pg_sys::JSONBOID].contains(kind));
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn receive(slot: *mut pg_sys::TupleTableSlot, this: *mut pg_sys::DestReceiver) -> bool {
    // SAFETY: as above. The slot holds a row of that descriptor.
    unsafe {
        let this = &mut *this.cast::<Receiver>();
        this.rows += 1;
        if this.rows == 1
            && let Some(kind) = this.json
        {
            if (*slot).tts_nvalid < 1 {
                pg_sys::slot_getsomeattrs_int(slot, 1);
            }
            let (value, is_null) = (*(*slot).tts_values, *(*slot).tts_isnull);
            let text = |value| if kind == pg_sys::JSONBOID { jsonb::text(value) } else { datum::text(value) };
            this.value = Some(if is_null { "null".to_owned() } else { text(value) });
        } else {
            this.value = None;
        }
        if this.kept.len() < this.most {
            pg_sys::BlessTupleDesc((*slot).tts_tupleDescriptor);
            let row = pg_sys::ExecFetchSlotHeapTupleDatum(slot);
            let function = Oid::from(pg_sys::F_ROW_TO_JSON_RECORD);
            let row = datum::text(pg_sys::OidFunctionCall1Coll(function, pg_sys::InvalidOid, row));
            // All rows together become one JSON value.
            this.bytes += row.len();
            memory::room_for_text(this.bytes);
            this.kept.push(row);
        }
        true
    }
}

unsafe extern "C-unwind" fn shut_down(_this: *mut pg_sys::DestReceiver) {}

thread_local! {
    /// The position in the command that the last message named, in characters. 0: it named none.
    static POSITION: Cell<c_int> = const { Cell::new(0) };
    /// The number of the running statement, and the number of statements in the command.
    static STATEMENT: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Called by Postgres for each message. The error that ends a command comes last.
unsafe extern "C-unwind" fn note_position(_arg: *mut c_void) {
    // SAFETY: Postgres is making a message.
    POSITION.set(unsafe { raw::geterrposition() });
}

/// Notes the positions of messages, until the stack of callbacks is restored.
///
/// # Safety
/// The caller restores the stack, or the process does nothing else.
unsafe fn note_positions() {
    // SAFETY: the callback is never freed.
    unsafe {
        let callback = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(note_position),
            arg: ptr::null_mut(),
        };
        pg_sys::error_context_stack = Box::leak(Box::new(callback));
    }
}

/// Adds to the error of a command the place where it happened.
pub fn located(mut error: Error) -> Error {
    let mut add = |more: String| match &mut error.detail {
        Some(detail) => detail.push_str(&format!("\n{more}")),
        None => error.detail = Some(more),
    };
    if let position @ 1.. = POSITION.take() {
        add(format!("At character {position} of the command."));
    } else if let (n @ 1.., of @ 2..) = STATEMENT.get() {
        add(format!("In statement {n} of {of}."));
    }
    error
}

/// Parses a command and returns the number of its statements. After an error the transaction must not continue.
///
/// Errors: 42601, with the position, and the other errors of the parser.
pub fn parse(text: &CStr) -> Result<usize> {
    // SAFETY: a C string. The list is allocated in the current memory context. The callback is the last one on the
    // stack, and is freed when it was removed from there.
    unsafe {
        let before = pg_sys::error_context_stack;
        note_positions();
        let own = pg_sys::error_context_stack;
        POSITION.set(0);
        let parse =
            || Ok(datum::list(pg_sys::raw_parser(text.as_ptr(), pg_sys::RawParseMode::RAW_PARSE_DEFAULT)).count());
        let parsed = PgTryBuilder::new(AssertUnwindSafe(parse))
            .catch_others(|caught| Err(located(Error::caught(&caught))))
            .execute();
        pg_sys::error_context_stack = before;
        drop(Box::from_raw(own));
        parsed
    }
}

/// Allocates the memory in which commands are parsed, and starts noting the positions of errors. Called once.
pub fn prepare() {
    // SAFETY: a plain global of this backend, not set yet. The context lives as long as the process.
    unsafe {
        if pg_sys::MessageContext.is_null() {
            pg_sys::MessageContext = pg_sys::AllocSetContextCreateExtended(
                pg_sys::TopMemoryContext,
                c"MessageContext".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
        }
        pg_sys::CurrentMemoryContext = pg_sys::MessageContext;
        note_positions();
    }
}

/// Clears cursors and compiled code that an error has left, after the abort.
pub fn clear_after_error() {
    // SAFETY: as a session's main loop does at this point.
    unsafe {
        pg_sys::PortalErrorCleanup();
        pg_sys::jit_reset_after_error();
    }
}

/// Frees the memory of the last command. Called between two transactions.
pub fn clear() {
    // SAFETY: the memory there belongs to the last command.
    unsafe {
        pg_sys::debug_query_string = ptr::null();
        pg_sys::MemoryContextReset(pg_sys::MessageContext);
        pg_sys::CurrentMemoryContext = pg_sys::MessageContext;
    }
}

/// Returns how many bytes this process has allocated in its contexts.
pub fn allocated() -> usize {
    // SAFETY: adds up sizes.
    unsafe { pg_sys::MemoryContextMemAllocated(pg_sys::TopMemoryContext, true) }
}

/// Returns why a statement cannot run without a client. `None`: it can.
unsafe fn refusal(statement: *mut pg_sys::RawStmt) -> Option<Error> {
    // SAFETY: a node of the parser has the type that its tag says.
    unsafe {
        let node = (*statement).stmt;
        match (*node).type_ {
            pg_sys::NodeTag::T_TransactionStmt => {
                Some(Error::new(error::WRONG_COMMAND, "a job's command cannot begin or end transactions").hint(
                    "All statements of a command are one transaction. With autocommit each statement is one. \
                     A procedure may COMMIT.",
                ))
            }
            pg_sys::NodeTag::T_CopyStmt if (*node.cast::<pg_sys::CopyStmt>()).filename.is_null() => Some(
                Error::new(error::NOT_SUPPORTED, "a job's command cannot COPY from or to a client")
                    .hint("It runs without a client. Name a file or a program, or use INSERT."),
            ),
            _ => None,
        }
    }
}

/// Runs a command. Calls `end` with the answer of the last statement, in that statement's transaction and with a
/// snapshot. The statements and the error are logged as the settings say.
///
/// Errors: 2D000 and 0A000 for statements that need a client, 22023 for arguments with several statements, and those of
/// the command. Then the caller must abort the transaction.
pub fn run(command: &Command<'_>, end: impl FnOnce(&Answer) -> Result<()>) -> Result<()> {
    let run = || run_statements(command, true, end);
    let result =
        PgTryBuilder::new(AssertUnwindSafe(run)).catch_others(|caught| Err(located(Error::caught(&caught)))).execute();
    if let Err(error) = &result {
        statement_log::error(error);
    }
    result
}

/// As `run`, for a command that is not a user's. It is not logged.
pub fn run_unlogged(command: &Command<'_>) -> Result<()> {
    run_statements(command, false, |_| Ok(()))
}

fn run_statements(command: &Command<'_>, is_logged: bool, end: impl FnOnce(&Answer) -> Result<()>) -> Result<()> {
    let open = || {
        // SAFETY: between two transactions.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
        }
    };
    // SAFETY: as exec_simple_query: between two transactions, and in the memory that `clear` frees. Lists are of nodes
    // of the parser and the planner. The portal is dropped here or by the abort.
    unsafe {
        pg_sys::debug_query_string = command.text.as_ptr();
        POSITION.set(0);
        STATEMENT.set((0, 0));
        open();
        let mut is_open = true;
        pg_sys::CurrentMemoryContext = pg_sys::MessageContext;
        let statements: Vec<*mut pg_sys::RawStmt> =
            datum::list(pg_sys::pg_parse_query(command.text.as_ptr())).map(|cell| cell.cast()).collect();
        if let Some(refusal) = statements.iter().find_map(|&statement| refusal(statement)) {
            return Err(refusal);
        }
        if statements.len() > 1 && !command.arguments.is_empty() {
            return Err(Error::invalid("arguments need a command of one statement")
                .detail(format!("It has {}.", statements.len())));
        }
        let is_block = statements.len() > 1 && !command.is_autocommit;
        let is_series = is_logged && statements.len() > 1 && command.is_autocommit;
        // A statement with arguments is logged when the arguments are known.
        let none = ptr::null_mut();
        let mut log = (is_logged && !is_series && command.arguments.is_empty())
            .then(|| Statement::begin(command.text, &statements, none));
        let mut answer = Answer::default();
        let texts: Vec<CString> = if is_series { texts(command.text, &statements) } else { Vec::new() };
        for (n, &statement) in statements.iter().enumerate() {
            let is_last = n + 1 == statements.len();
            if !is_open {
                open();
                is_open = true;
                pg_sys::CurrentMemoryContext = pg_sys::MessageContext;
            }
            if is_block {
                pg_sys::BeginImplicitTransactionBlock();
            }
            let most = if is_last { command.max_rows } else { 0 };
            STATEMENT.set((n + 1, statements.len()));
            if let Some(text) = texts.get(n) {
                log = Some(Statement::begin(text, &[statement], none));
            }
            answer = run_one(command, statement, !is_block, most, &mut log)?;
            if is_last {
                break;
            }
            if is_block {
                pg_sys::CommandCounterIncrement();
            } else {
                pg_sys::CommitTransactionCommand();
                is_open = false;
                log.take().into_iter().for_each(Statement::end);
                fault!("executor.stepped");
            }
        }
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        STATEMENT.set((0, 0));
        end(&answer)?;
        pg_sys::PopActiveSnapshot();
        if is_block {
            pg_sys::EndImplicitTransactionBlock();
        }
        pg_sys::CommitTransactionCommand();
        pg_sys::CurrentMemoryContext = pg_sys::MessageContext;
        log.into_iter().for_each(Statement::end);
    }
    Ok(())
}

/// Returns the text of each statement.
///
/// # Safety
/// The parser has made the statements from the text.
unsafe fn texts(text: &CStr, statements: &[*mut pg_sys::RawStmt]) -> Vec<CString> {
    let bytes = text.to_bytes();
    let of = |&statement: &*mut pg_sys::RawStmt| {
        // SAFETY: the caller's promise. A length of 0 means up to the end.
        let (from, length) = unsafe { ((*statement).stmt_location.max(0), (*statement).stmt_len) };
        let rest = bytes.get(from as usize..).unwrap_or_default();
        let length = if length > 0 { (length as usize).min(rest.len()) } else { rest.len() };
        CString::new(rest[..length].trim_ascii()).unwrap_or_default()
    };
    statements.iter().map(of).collect()
}

unsafe fn run_one<'a>(
    command: &Command<'a>,
    statement: *mut pg_sys::RawStmt,
    is_top: bool,
    most: usize,
    log: &mut Option<Statement<'a>>,
) -> Result<Answer> {
    // SAFETY: as in `run`.
    unsafe {
        let text = command.text.as_ptr();
        let tag = pg_sys::CreateCommandTag((*statement).stmt);
        let needs_snapshot = pg_sys::analyze_requires_snapshot(statement);
        if needs_snapshot {
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        let (queries, parameters) = analyze(command, statement)?;
        if !command.arguments.is_empty() {
            *log = Some(Statement::begin(command.text, &[statement], parameters));
        }
        let options = pg_sys::CURSOR_OPT_PARALLEL_OK as c_int;
        let plans = pg_sys::pg_plan_queries(queries, text, options, parameters);
        if needs_snapshot {
            pg_sys::PopActiveSnapshot();
        }
        pgrx::check_for_interrupts!();
        let portal = pg_sys::CreatePortal(c"".as_ptr(), true, true);
        (*portal).visible = false;
        pg_sys::PortalDefineQuery(portal, ptr::null(), text, tag, plans, ptr::null_mut());
        pg_sys::PortalStart(portal, parameters, 0, ptr::null_mut());
        let mut receiver = Box::new(Receiver::new(most));
        let dest = (&raw mut *receiver).cast::<pg_sys::DestReceiver>();
        let mut done = pg_sys::QueryCompletion::default();
        let all = std::ffi::c_long::MAX;
        #[cfg(not(feature = "from18"))]
        pg_sys::PortalRun(portal, all, is_top, true, dest, dest, &raw mut done);
        #[cfg(feature = "from18")]
        pg_sys::PortalRun(portal, all, is_top, dest, dest, &raw mut done);
        pg_sys::PortalDrop(portal, false);
        let name = CStr::from_ptr(pg_sys::GetCommandTagName(done.commandTag)).to_string_lossy().into_owned();
        let rows = receiver.rows.max(done.nprocessed);
        let tag = match name.as_str() {
            "INSERT" => format!("INSERT 0 {}", done.nprocessed),
            "SELECT" | "UPDATE" | "DELETE" | "MERGE" | "MOVE" | "FETCH" | "COPY" => {
                format!("{name} {}", done.nprocessed)
            }
            _ => name,
        };
        let value = receiver.value.take().filter(|_| receiver.rows == 1);
        Ok(Answer { tag, rows, kept: std::mem::take(&mut receiver.kept), value })
    }
}

/// Analyzes a statement. The statement decides the types of arguments.
unsafe fn analyze(
    command: &Command<'_>,
    statement: *mut pg_sys::RawStmt,
) -> Result<(*mut pg_sys::List, pg_sys::ParamListInfo)> {
    let text = command.text.as_ptr();
    let none = ptr::null_mut();
    if let (Some(routine), [argument]) = (command.routine, command.arguments) {
        let payload = jsonb::of_text(&argument.json).ok_or_else(|| Error::internal("a payload is no JSON"))?;
        return Ok(call::statement(routine, &command.text.to_string_lossy(), payload));
    }
    // SAFETY: as in `run`. The analysis allocates and fills an array of types.
    unsafe {
        if command.arguments.is_empty() {
            let queries = pg_sys::pg_analyze_and_rewrite_fixedparams(statement, text, ptr::null(), 0, none);
            return Ok((queries, ptr::null_mut()));
        }
        let (mut types, mut count) = (ptr::null_mut::<Oid>(), 0);
        let queries = pg_sys::pg_analyze_and_rewrite_varparams(statement, text, &raw mut types, &raw mut count, none);
        let wanted = usize::try_from(count).unwrap_or(0);
        if wanted > command.arguments.len() {
            return Err(Error::invalid(format!("the command has parameters up to ${wanted}"))
                .detail(format!("Arguments given: {}.", command.arguments.len())));
        }
        let list = pg_sys::makeParamList(count);
        for n in 0..wanted {
            let kind = match *types.add(n) {
                kind if kind == Oid::INVALID || kind == pg_sys::UNKNOWNOID => pg_sys::TEXTOID,
                kind => kind,
            };
            let value = input(&command.arguments[n], kind)?;
            let parameter = (*list).params.as_mut_ptr().add(n);
            (*parameter).value = value.unwrap_or(Datum::from(0));
            (*parameter).isnull = value.is_none();
            (*parameter).pflags = pg_sys::PARAM_FLAG_CONST as u16;
            (*parameter).ptype = kind;
        }
        Ok((queries, list))
    }
}

/// Reads an argument as a value of a type. Raises the errors of the type's input function.
fn input(argument: &Argument, kind: Oid) -> Result<Option<Datum>> {
    let is_json = [pg_sys::JSONOID, pg_sys::JSONBOID].contains(&kind);
    let text = if is_json { Some(&argument.json) } else { argument.text.as_ref() };
    let Some(text) = text else { return Ok(None) };
    let text = CString::new(text.as_str()).map_err(|_| Error::invalid("an argument holds a zero character"))?;
    let (mut function, mut parameter) = (Oid::INVALID, Oid::INVALID);
    // SAFETY: the input function of the type, on a C string.
    unsafe {
        pg_sys::getTypeInputInfo(kind, &raw mut function, &raw mut parameter);
        Ok(Some(pg_sys::OidInputFunctionCall(function, text.as_ptr().cast_mut(), parameter, -1)))
    }
}

/// Cancels the statements of this process after this time, in microseconds, or after `statement_timeout` if that is
/// shorter. Replaces an earlier call.
pub fn cancel_after(microseconds: i64) {
    // SAFETY: every process with a database has registered this timeout.
    unsafe {
        let own = i64::from(pg_sys::StatementTimeout);
        let wanted = (microseconds / 1_000 + 1).clamp(1, i64::from(c_int::MAX));
        let wanted = if own > 0 { wanted.min(own) } else { wanted };
        unbound::enable_timeout_after(unbound::STATEMENT_TIMEOUT, wanted as c_int);
    }
}

/// Undoes `cancel_after`.
pub fn cancel_no_more() {
    // SAFETY: as above.
    unsafe { unbound::disable_timeout(unbound::STATEMENT_TIMEOUT, false) };
}
