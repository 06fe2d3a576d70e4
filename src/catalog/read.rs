//! What a session knows of the instance that it uses: the oids of its tables and indexes, which are kept until the
//! catalogs change, and its slot in shared memory.
//!
//! Responsible for reading them (`relations`), and for naming to `pg::relcache` those to be told of. Not responsible
//! for which call sees which catalog (`pin`).
//!
//! Invariant: what a session knows is no older than the last change of a table or an index that it was told of.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::Deref;
use std::rc::Rc;

use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::Oid;

use crate::catalog::instance;
use crate::catalog::relations::{Half, Known, Role, Segment, Single};
use crate::error::{self, Error, Result};
use crate::pg::shape::{SHAPES, Shape};
use crate::pg::{relcache, syscache};

/// What a session knows of the instance.
pub struct Catalog {
    /// The instance's number in shared memory.
    pub number: u32,
    /// Its slot there.
    pub slot: usize,
    single: Single,
    pub halves: [Half; 2],
    /// All segments.
    pub segments: [Segment; SEGMENTS],
    /// The names by which all of them were found.
    names: BTreeMap<u32, CString>,
}

impl Deref for Catalog {
    type Target = Single;

    fn deref(&self) -> &Single {
        &self.single
    }
}

impl Catalog {
    /// Returns all its tables and indexes.
    fn all(&self) -> impl Iterator<Item = Known> {
        let segments = self.segments.iter().flat_map(Segment::all);
        self.single.all().chain(self.halves.iter().flat_map(Half::all)).chain(segments)
    }

    /// Returns those of a role, sorted by oid.
    fn of(&self, role: Role) -> Vec<u32> {
        let mut sorted: Vec<u32> =
            self.all().filter(|known| known.role == role).map(|known| known.oid.to_u32()).collect();
        sorted.sort_unstable();
        sorted
    }

    /// Returns all its indexes, sorted by oid.
    fn indexes(&self) -> Vec<relcache::Index> {
        let all = self.of(Role::Index);
        let is_index = |(oid, _): &(&u32, _)| all.binary_search(oid).is_ok();
        self.names.iter().filter(is_index).map(|(oid, name)| (*oid, name.clone())).collect()
    }

    /// Returns whether rows are inserted into this table, or into its indexes, other than by SQL.
    pub fn is_written_directly(&self, table: Oid) -> bool {
        self.all().any(|known| known.role == Role::Log && known.oid == table)
            || self.segments.iter().any(|segment| segment.parked == table)
            || self.history == table
            || syscache::children(self.history).contains(&table)
    }
}

thread_local! {
    static CATALOG: RefCell<Option<Rc<Catalog>>> = const { RefCell::new(None) };
}

/// Returns the instance of this database. If the session was told of a change, it is read anew. Errors: as `current`.
pub fn newest() -> Result<Rc<Catalog>> {
    if !relcache::is_stale()
        && !relcache::has_lost_index()
        && let Some(catalog) = CATALOG.with_borrow(Clone::clone)
    {
        return Ok(catalog);
    }
    let catalog = Rc::new(read_unchanged()?);
    let [first, ..] = &catalog.segments;
    relcache::watch([catalog.queue, first.attempt, first.note], catalog.of(Role::Log), catalog.indexes());
    watch_shapes(&catalog);
    CATALOG.set(Some(Rc::clone(&catalog)));
    relcache::forget_queues();
    Ok(catalog)
}

/// Reads the catalog until nothing changes meanwhile: a message that arrives in the middle must not be forgotten,
/// because it is not sent again. If something changes all the time, the catalog is read again at the next use.
fn read_unchanged() -> Result<Catalog> {
    /// How often it is read in one call.
    const READS: usize = 4;
    let read = || -> Result<Catalog> {
        relcache::begin();
        let catalog = read_catalog()?;
        relcache::end();
        Ok(catalog)
    };
    let mut catalog = read()?;
    for _ in 1..READS {
        if !relcache::is_stale() {
            break;
        }
        catalog = read()?;
    }
    Ok(catalog)
}

fn read_catalog() -> Result<Catalog> {
    relcache::listen();
    let extension = syscache::our_extension();
    let (Some(extension), Some(schema)) = (extension, syscache::schema_of_tables()) else {
        return Err(Error::new(error::UNDEFINED, "extension \"pg_queue\" is not installed in this database")
            .hint("Run CREATE EXTENSION pg_queue."));
    };
    let mut names = BTreeMap::new();
    let mut oid = |name: String| -> Result<Oid> {
        let c_name = CString::new(name.as_str()).map_err(|_| Error::internal("a name holds a zero byte"))?;
        let oid = syscache::relation_in(schema, &c_name).ok_or_else(|| {
            Error::new(error::WRONG_STATE, format!("relation \"queue_internal.{name}\" does not exist"))
                .detail("The library and the extension's SQL are of different versions.")
                .hint("Run ALTER EXTENSION pg_queue UPDATE.")
        })?;
        names.insert(oid.to_u32(), c_name);
        Ok(oid)
    };
    let single = Single::find(0, &mut oid)?;
    let halves = [Half::find(0, &mut oid)?, Half::find(1, &mut oid)?];
    let mut segments = [Segment::find(0, &mut oid)?; SEGMENTS];
    for (n, segment) in segments.iter_mut().enumerate().skip(1) {
        *segment = Segment::find(n, &mut oid)?;
    }
    let (number, slot) = instance::enter(extension)?;
    Ok(Catalog { number, slot, single, halves, segments, names })
}

/// Makes the tables of this catalog those whose columns are checked from now on.
pub fn watch_shapes(catalog: &Catalog) {
    SHAPES.set(shapes(catalog));
}

/// Returns all tables of the catalog with the columns that they should have, sorted by oid.
pub fn shapes(catalog: &Catalog) -> Vec<(u32, Shape)> {
    let mut all: Vec<(u32, Shape)> =
        catalog.all().filter_map(|known| Some((known.oid.to_u32(), known.shape?))).collect();
    all.sort_unstable_by_key(|(table, _)| *table);
    all
}
