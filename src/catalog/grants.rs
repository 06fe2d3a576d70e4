//! The GRANTs on the extension's own objects that follow from the rows of `queue_internal.permission`, so that nothing
//! need be granted to PUBLIC. Not responsible for whether a user may do something with a queue: see `permission`.
//!
//! The rows are the truth; a session that changes them derives the GRANTs anew. Derived GRANTs are recorded as part of
//! the extension (pg_init_privs), so that pg_dump leaves them out: the dump has the rows, and can be restored where a
//! role is missing. After a restore, and after an upgrade, they are derived again.
//!
//! Invariant: besides the owner, the recorded grantees of an object are those that its rows want. A GRANT that a user
//! made by hand is not recorded, stays as it is, and is dumped.

use std::collections::HashMap;

use pgrx::pg_sys::{self, Oid};

use crate::catalog::objects::{CONSUME, Kind, MANAGE, MANAGE_ALL, OBJECTS, OBSERVE, PRODUCE};
use crate::catalog::permission::{self, EVERY_QUEUE, PUBLIC, Privilege};
use crate::catalog::{self, queue, spi};
use crate::error::Result;
use crate::pg::{lock, relcache, role, session, syscache};
use crate::transaction;

impl Kind {
    /// Returns the name of the privilege in SQL, and the words for the kind of object.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Schema => ("USAGE", "SCHEMA"),
            Self::Routine | Self::Internal => ("EXECUTE", "ROUTINE"),
            Self::View | Self::Part => ("SELECT", "TABLE"),
        }
    }
}

/// Returns which privilege gives access to an object of this name, and which roles can grant it. `role`: the role, if
/// it is known. `None`: there is no object of that name.
pub fn advice(name: &str, role: Option<&str>) -> Option<String> {
    let (bits, kind, _) = OBJECTS.iter().find(|(_, kind, known)| !matches!(kind, Kind::Schema) && *known == name)?;
    let role = format!("'{}'", role.unwrap_or("ROLE").replace('\'', "''"));
    if matches!(kind, Kind::Internal | Kind::Part) {
        return Some(format!(
            "A GRANT by hand lets nobody at the views of pg_queue: use SELECT queue.grant('QUEUE', {role}, 'observe')."
        ));
    }
    if *bits == MANAGE_ALL {
        let more = if name == "create" { ", or GRANT EXECUTE ON FUNCTION queue.create TO it" } else { "" };
        return Some(format!(
            "queue.{name} takes the privilege manage on all queues: SELECT queue.grant('*', {role}, 'manage'){more}."
        ));
    }
    let all = [(PRODUCE, "produce"), (CONSUME, "consume"), (OBSERVE, "observe"), (MANAGE, "manage")];
    let (_, privilege) = all.into_iter().find(|(bit, _)| bits & bit != 0)?;
    Some(format!(
        "queue.{name} takes the privilege {privilege} on a queue. A role that manages the queue can run \
            SELECT queue.grant('QUEUE', {role}, \
         '{privilege}')."
    ))
}

/// An object, and the roles that have access to it.
struct Object {
    bits: u8,
    kind: Kind,
    name: &'static str,
    /// Whether it exists. After a new library is installed, some objects exist only after ALTER EXTENSION UPDATE.
    exists: bool,
    /// The present grantees, the recorded grantees, and the roles with the grant option, all without the owner.
    current: Vec<Oid>,
    recorded: Vec<Oid>,
    granting: Vec<Oid>,
}

/// Locks `queue_internal.permission` in mode SHARE ROW EXCLUSIVE until the transaction ends: waits until no other
/// transaction is about to change the rows.
pub fn lock() {
    lock::lock(catalog::pinned().permission, pg_sys::ShareRowExclusiveLock);
}

/// Derives the GRANTs from the rows, and tells all sessions when the transaction commits. Takes the lock of `lock`.
pub fn derive() -> Result<()> {
    queue::changed();
    transaction::rights_changed();
    relcache::forget_queues();
    lock();
    let mut roles: HashMap<Oid, (String, u8)> = HashMap::new();
    permission::each_row(|queue_id, name, privilege| {
        let role = if name == PUBLIC { Some(Oid::INVALID) } else { role::role(name) };
        if let Some((role, name)) = role.and_then(|role| Some((role, grantee(role)?))) {
            let manages_all = privilege == Privilege::Manage && queue_id == EVERY_QUEUE;
            let bits = if manages_all { u8::MAX } else { privilege.bits() & !MANAGE_ALL };
            roles.entry(role).or_insert((name, 0)).1 |= bits;
        }
    });
    let objects = read()?;
    let create = objects.iter().find(|object| object.name == "create");
    let by_hand =
        |object: &Object| object.current.iter().filter(|role| !object.recorded.contains(role)).copied().collect();
    let creators: Vec<Oid> = create.map(by_hand).unwrap_or_default();
    let catalog = catalog::pinned();
    let Some(owner) = syscache::owner(catalog.queue).and_then(grantee) else { return Ok(()) };
    role::as_owner(catalog.queue, || objects.iter().try_for_each(|object| object.derive(&roles, &creators, &owner)))
}

/// Returns whether one of these roles has a GRANT that was derived, even if the row that it was derived from has
/// another name for the role.
pub fn has_derived(roles: &[String]) -> Result<bool> {
    let roles: Vec<Oid> = roles.iter().filter_map(|name| role::role(name)).collect();
    Ok(read()?.iter().any(|object| object.recorded.iter().any(|role| roles.contains(role))))
}

/// Returns a role's name as it is written in a GRANT; `None`: the role is gone.
fn grantee(role: Oid) -> Option<String> {
    if role == Oid::INVALID {
        return Some("PUBLIC".to_owned());
    }
    role::role_name(role).map(|name| role::quoted(&name))
}

/// Returns all existing objects with their grantees, from the catalogs.
fn read() -> Result<Vec<Object>> {
    let object = |&(bits, kind, name): &(u8, Kind, &'static str)| Object {
        bits,
        kind,
        name,
        exists: false,
        current: vec![],
        recorded: vec![],
        granting: vec![],
    };
    let mut objects: Vec<Object> = OBJECTS.iter().map(object).collect();
    let places: Vec<String> =
        objects.iter().map(|object| format!("{} {}", object.kind.words().1, object.written(str::to_owned))).collect();
    // Each row is one number, made of the object's place, which of its lists or that it is there, and the grantee.
    let grantees = spi::i64_column(
        "SELECT ((o.place OPERATOR(pg_catalog.*) 4) OPERATOR(pg_catalog.+) g.list) OPERATOR(pg_catalog.*) 4294967296
                OPERATOR(pg_catalog.+) g.grantee::pg_catalog.int8
         FROM pg_catalog.unnest($1) WITH ORDINALITY AS o (name, place)
         JOIN (SELECT pg_catalog.format('ROUTINE %s.%s', n.nspname, p.proname),
         'pg_catalog.pg_proc'::pg_catalog.regclass,
                      p.oid, p.proacl, p.proowner
               FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n
               ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
               WHERE n.nspname OPERATOR(pg_catalog.=) ANY (ARRAY['queue', 'queue_internal']::pg_catalog.name[])
             UNION ALL
               SELECT pg_catalog.format('TABLE %s.%s', n.nspname, c.relname),
               'pg_catalog.pg_class'::pg_catalog.regclass, c.oid, c.relacl, c.relowner
               FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n
               ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
               WHERE n.nspname OPERATOR(pg_catalog.=) ANY (ARRAY['queue', 'queue_internal']::pg_catalog.name[])
             UNION ALL
               SELECT pg_catalog.concat('SCHEMA ', nspname), 'pg_catalog.pg_namespace'::pg_catalog.regclass, oid,
               nspacl, nspowner
               FROM pg_catalog.pg_namespace
         ) AS m (name, class, oid, acl, owner) ON m.name OPERATOR(pg_catalog.=) o.name
         CROSS JOIN LATERAL (
             SELECT 0, a.grantee, a.privilege_type FROM pg_catalog.aclexplode(m.acl) AS a
           UNION ALL
             SELECT 2, a.grantee, a.privilege_type FROM pg_catalog.aclexplode(m.acl) AS a WHERE a.is_grantable
           UNION ALL
             SELECT 3, 0::pg_catalog.oid, 'USAGE'
           UNION ALL
             SELECT 1, a.grantee, a.privilege_type
             FROM pg_catalog.pg_init_privs AS i, pg_catalog.aclexplode(i.initprivs) AS a
             WHERE i.objoid OPERATOR(pg_catalog.=) m.oid AND i.classoid OPERATOR(pg_catalog.=) m.class
               AND i.objsubid OPERATOR(pg_catalog.=) 0
         ) AS g (list, grantee, privilege)
         WHERE g.grantee OPERATOR(pg_catalog.<>) m.owner
           AND g.privilege OPERATOR(pg_catalog.=) ANY (ARRAY['USAGE', 'EXECUTE', 'SELECT'])",
        &[places.into()],
    )?;
    for found in grantees {
        let (place, grantee) = ((found >> 32) as usize, Oid::from(found as u32));
        if let Some(object) = objects.get_mut(place / 4 - 1) {
            match place % 4 {
                0 => object.current.push(grantee),
                1 => object.recorded.push(grantee),
                2 => object.granting.push(grantee),
                _ => object.exists = true,
            }
        }
    }
    objects.retain(|object| object.exists);
    Ok(objects)
}

impl Object {
    /// Returns its name with that of its schema, each as `quoted` writes it.
    fn written(&self, quoted: impl Fn(&str) -> String) -> String {
        let schema = match self.kind {
            Kind::Schema => return quoted(self.name),
            Kind::Routine | Kind::View => "queue",
            Kind::Internal | Kind::Part => "queue_internal",
        };
        format!("{}.{}", quoted(schema), quoted(self.name))
    }

    /// Grants access to the roles that the rows want, and revokes it from those that were recorded and are wanted no
    /// more.
    fn derive(&self, roles: &HashMap<Oid, (String, u8)>, creators: &[Oid], owner: &str) -> Result<()> {
        let is_wanted = |role: &Oid| roles.get(role).is_some_and(|(_, bits)| bits & self.bits != 0);
        let wanted = roles.keys().filter(|role| is_wanted(role));
        let is_done = wanted.clone().all(|role| self.current.contains(role) && self.recorded.contains(role))
            && self.recorded.iter().all(is_wanted);
        if is_done {
            return Ok(());
        }
        let (privilege, kind) = self.kind.words();
        let name = self.written(role::quoted);
        // Postgres records all that is granted at that moment, so GRANTs made by hand are revoked first and granted
        // again at the end.
        let others = self.current.iter().filter(|role| !is_wanted(role));
        let others: Vec<(Oid, String)> = others.filter_map(|&role| Some((role, grantee(role)?))).collect();
        if !others.is_empty() {
            let names = others.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(", ");
            role::grant(&format!("REVOKE {privilege} ON {kind} {name} FROM {names} CASCADE"), true)?;
        }
        let wanted: Vec<&str> = wanted.map(|role| roles[role].0.as_str()).chain([owner]).collect();
        role::grant(&format!("GRANT {privilege} ON {kind} {name} TO {}", wanted.join(", ")), true)?;
        // A role that may create queues by hand keeps access to the schema when the rights that it had on queues are
        // gone.
        let keeps = |role: &Oid| matches!(self.kind, Kind::Schema) && creators.contains(role);
        for (may_grant, option) in [(false, ""), (true, " WITH GRANT OPTION")] {
            let by_hand = others.iter().filter(|(role, _)| !self.recorded.contains(role) || keeps(role));
            let by_hand = by_hand.filter(|(role, _)| self.granting.contains(role) == may_grant);
            let by_hand: Vec<&str> = by_hand.map(|(_, name)| name.as_str()).collect();
            if !by_hand.is_empty() {
                role::grant(&format!("GRANT {privilege} ON {kind} {name} TO {}{option}", by_hand.join(", ")), false)?;
            }
        }
        Ok(())
    }
}

/// Deletes the rows of these roles when DROP OWNED BY them is about to run: what was granted to them goes with it, as
/// everything else that is granted to them does.
pub fn owned_dropped(roles: &[String]) -> Result<()> {
    if session::in_recovery() || session::is_read_only() {
        return Ok(());
    }
    if catalog::current().is_err() {
        return Ok(());
    }
    transaction::register();
    // The rows of a role that was renamed stay under its old name. Its GRANTs are derived anew all the same and are
    // gone then: otherwise they would come back in dumps.
    if !has_rows(|_, role| roles.iter().any(|name| name == role)) && !has_derived(roles)? {
        return Ok(());
    }
    lock();
    let of_roles = "DELETE FROM queue_internal.permission WHERE role_name OPERATOR(pg_catalog.=) ANY ($1)";
    spi::run(of_roles, &[roles.to_vec().into()])?;
    derive()
}

/// Returns whether there is a row for such a queue and such a role.
pub fn has_rows(is_it: impl Fn(i32, &str) -> bool) -> bool {
    let mut has = false;
    permission::each_row(|queue_id, role, _| has |= is_it(queue_id, role));
    has
}
