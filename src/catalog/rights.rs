//! The rows of `queue_internal.permission`, as they count for the current user. Not responsible for what follows from
//! them (`permission`), nor for GRANTs on functions and views (`grants`).
//!
//! A row names a role, and counts for all that have its rights by the rules of Postgres: members that inherit, and a
//! session that took the role by SET ROLE. Superusers and the owner of the extension may do everything. A row of a role
//! that does not exist counts for none.
//!
//! Invariant: what a session knows is no older than the last change of rows or roles that it was told of, and it reads
//! its messages before each check. So a revoke counts from the next call on, in the middle of a transaction, too.
//!
//! A transaction can be seen a moment before other sessions are told of the rights that it has changed. So what a
//! session gets of such a transaction counts only after it was told: it asks `has_news` afterwards, and then
//! `wait_for_news`.
//!
//! Any role may change itself as often as it likes, and Postgres tells every session. So after a change of roles a
//! session asks only whether its user still has the rights of the same roles. It reads tables again only if the answer
//! differs.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use pgrx::pg_sys::Oid;

use crate::catalog;
use crate::error::{Error, Result};
use crate::pg::datum::text;
use crate::pg::fault::fault;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;
use crate::pg::{process, relcache, role, session};
use crate::shmem::words;

/// What can be granted on a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privilege {
    /// To enqueue.
    Produce,
    /// To claim attempts and end them.
    Consume,
    /// To read the queue and its jobs.
    Observe,
    /// All of these, and to change the queue and its jobs.
    Manage,
}

impl Privilege {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Produce, "produce"), (Self::Consume, "consume"), (Self::Observe, "observe"), (Self::Manage, "manage")];

    /// Returns the privilege of this name.
    ///
    /// Errors: 22023 when there is none.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(privilege, _)| *privilege).ok_or_else(|| {
            Error::invalid(format!("unknown privilege \"{name}\""))
                .hint("Use 'produce', 'consume', 'observe' or 'manage'.")
        })
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(privilege, _)| *privilege == self).map_or("", |(_, name)| name)
    }

    /// Returns its own bit, and those of the privileges that it includes.
    pub fn bits(self) -> u8 {
        match self {
            Self::Manage => u8::MAX,
            other => other.bit(),
        }
    }

    /// Returns its own bit.
    pub fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// As `queue_id` in the table: every queue, present and future.
pub const EVERY_QUEUE: i32 = 0;
/// As `role_name` in the table: every role. No role can have this name.
pub const PUBLIC: &str = "public";

/// What one user may do.
#[derive(Default)]
pub struct Rights {
    everywhere: u8,
    /// The rights on queues with more than the rights on every queue: by the queues' numbers, and by all their lanes.
    queues: HashMap<i32, u8>,
    lanes: HashMap<i32, u8>,
}

impl Rights {
    /// Returns the rights of a user that may do everything.
    pub fn everything() -> Self {
        Self { everywhere: u8::MAX, ..Self::default() }
    }

    /// Returns whether anything is allowed on any queue or topic.
    pub fn has_any(&self) -> bool {
        self.everywhere != 0 || self.queues.values().any(|bits| *bits != 0)
    }

    /// Returns whether this is allowed on every queue.
    pub fn everywhere(&self, wanted: Privilege) -> bool {
        self.everywhere & wanted.bit() != 0
    }

    /// Returns whether this is allowed on the queue of this number.
    pub fn on_queue(&self, id: i32, wanted: Privilege) -> bool {
        self.everywhere(wanted) || self.queues.get(&id).is_some_and(|bits| bits & wanted.bit() != 0)
    }

    /// Returns whether this is allowed on the queue that this lane belongs to. It allocates nothing and raises nothing,
    /// so that it can be called under the frontier's lock.
    pub fn on_lane(&self, lane: i32, wanted: Privilege) -> bool {
        self.everywhere(wanted) || self.lanes.get(&lane).is_some_and(|bits| bits & wanted.bit() != 0)
    }
}

/// How many users' rights a session caches.
const MAX_USERS: usize = 64;

/// The rights of one user, and what they follow from beside the rows.
struct Known {
    user: Oid,
    rights: Rc<Rights>,
    /// Whether the user owns the extension.
    is_owner: bool,
    /// The roles of the rows, each with whether the user has its rights. Empty for the owner.
    roles: HashMap<String, bool>,
    /// The number of changes of roles as of which all this was found.
    role_changes: u64,
}

impl Known {
    /// Whether the user has the rights of the same roles as when this was read.
    fn holds(&self) -> bool {
        let has = |(name, before): (&String, &bool)| counts(self.user, name) == *before;
        role::owns_table(catalog::pinned().queue) == self.is_owner && self.roles.iter().all(has)
    }
}

/// Whether a row of this role counts for a user.
fn counts(user: Oid, role: &str) -> bool {
    role == PUBLIC || role::has_rights_of(user, role)
}

#[derive(Default)]
struct Cache {
    changes: u64,
    users: Vec<Known>,
}

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::default();
    static IS_WATCHING: Cell<bool> = const { Cell::new(false) };
    /// How often this session was told that roles or memberships changed.
    static ROLE_CHANGES: Cell<u64> = const { Cell::new(0) };
}

/// Returns what the current user may do.
pub fn rights() -> Rc<Rights> {
    known_rights().unwrap_or_else(|| ask(role::user(), relcache::queue_changes(), ROLE_CHANGES.get()))
}

/// Returns what the current user may do, if that needs no look at a table.
pub fn known_rights() -> Option<Rc<Rights>> {
    session::accept_invalidations();
    let user = role::user();
    let (changes, role_changes) = (relcache::queue_changes(), ROLE_CHANGES.get());
    CACHE.with_borrow(|cache| {
        let known = cache.users.iter().find(|known| known.user == user);
        known
            .filter(|known| cache.changes == changes && known.role_changes == role_changes)
            .map(|k| Rc::clone(&k.rights))
    })
}

/// Returns of how many changes of rights all sessions were told. The caller's next check of rights knows these.
pub fn news() -> u64 {
    words::rights_told()
}

/// Whether a transaction that changes rights may have become visible since `news` has returned this number.
pub fn has_news(news: u64) -> bool {
    words::rights_begun() != news
}

/// Waits until all sessions were told of the changes of rights that can be seen. Can raise a cancel.
pub fn wait_for_news() {
    let begun = words::rights_begun();
    while words::rights_told() < begun {
        process::sleep(1);
    }
}

/// As `rights`, where something has changed.
fn ask(user: Oid, changes: u64, role_changes: u64) -> Rc<Rights> {
    if !IS_WATCHING.replace(true) {
        role::on_role_changes(|| ROLE_CHANGES.set(ROLE_CHANGES.get() + 1));
    }
    // It is taken out, as the look-ups can deliver messages.
    let known = CACHE.with_borrow_mut(|cache| {
        // A pooler may go through many users in one session.
        if cache.changes != changes || cache.users.len() == MAX_USERS {
            *cache = Cache { changes, users: Vec::new() };
        }
        cache.users.iter().position(|known| known.user == user).map(|at| cache.users.swap_remove(at))
    });
    let known = match known {
        Some(known) if known.holds() => Known { role_changes, ..known },
        _ => read(user, role_changes),
    };
    let rights = Rc::clone(&known.rights);
    CACHE.with_borrow_mut(|cache| {
        if cache.changes == changes {
            cache.users.push(known);
        }
    });
    rights
}

fn read(user: Oid, role_changes: u64) -> Known {
    fault!("rights.read");
    let catalog = catalog::pinned();
    let is_owner = role::owns_table(catalog.queue);
    if is_owner {
        return Known { user, rights: Rc::new(Rights::everything()), is_owner, roles: HashMap::new(), role_changes };
    }
    let mut rights = Rights::default();
    let mut roles: HashMap<String, bool> = HashMap::new();
    each_row(|id, role, privilege| {
        if *roles.entry(role.to_owned()).or_insert_with(|| counts(user, role)) {
            match id {
                EVERY_QUEUE => rights.everywhere |= privilege.bits(),
                id => *rights.queues.entry(id).or_default() |= privilege.bits(),
            }
        }
    });
    if !rights.queues.is_empty() {
        let lanes = Relation::read(catalog.lane);
        let index = Relation::read_index(catalog.lane_queue);
        // Only the lanes of the user's queues: another queue's manager can make many.
        for (&queue, &bits) in &rights.queues {
            let mut scan = lanes.scan(&index, &[Key::eq_i32(1, queue)], Snapshot::Now);
            while scan.next().is_some() {
                rights.lanes.insert(scan.row().i32(0), bits);
            }
        }
    }
    Known { user, rights: Rc::new(rights), is_owner, roles, role_changes }
}

/// Returns whether another role than the current user may do this with the queue or topic of this number. It reads the
/// table at each call.
pub fn of_role(role: Oid, id: i32, wanted: Privilege) -> bool {
    let mut may = role::owns(catalog::pinned().queue, role);
    each_row(|of, name, privilege| {
        may |= (of == id || of == EVERY_QUEUE) && privilege.bits() & wanted.bit() != 0 && counts(role, name);
    });
    may
}

/// Calls `f` with each row of `queue_internal.permission`.
pub fn each_row(mut f: impl FnMut(i32, &str, Privilege)) {
    let catalog = catalog::pinned();
    let (table, index) = (Relation::read(catalog.permission), Relation::read_index(catalog.permission_pkey));
    let mut scan = table.scan(&index, &[], Snapshot::Now);
    while scan.next().is_some() {
        let row = scan.row();
        let name = |column: usize| row.get(column).map(text).unwrap_or_default();
        if let Ok(privilege) = Privilege::parse(&name(2)) {
            f(row.i32(0), &name(1), privilege);
        }
    }
}
