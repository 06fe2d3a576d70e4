//! The procedure of a queue with executor `call`, as the queue's row names it: by its name, its oid and its owner.
//!
//! Responsible for finding it again. Not responsible for who may name one (`api::executors`), nor for calling it
//! (`executor`).
//!
//! Invariant: the found routine is the one that was named, and still belongs to its owner. An overload with other
//! arguments, or a routine made anew under the same name, is another one.

use pgrx::pg_sys::Oid;

use crate::catalog::noted::Noted;
use crate::error::{self, Error, Result};
use crate::pg::role;
use crate::pg::routine::{self, Routine};

/// A procedure as a row names it.
#[derive(Clone, PartialEq, Eq)]
pub struct Procedure {
    /// Its name with its schema, as in SQL.
    pub name: String,
    pub id: i64,
    pub owner: Noted,
}

impl Procedure {
    /// Returns the procedure. For a restored row only the names of the procedure and of its owner count.
    ///
    /// Errors: 42883 when it is gone, 42501 when it is another owner's now.
    pub fn find(&self) -> Result<Routine> {
        let hint = "Name it again with queue.alter(…, procedure => …).";
        let of_name = || routine::find(&self.name).filter(|_| self.owner.is_restored());
        let found = u32::try_from(self.id).ok().and_then(|id| routine::by_oid(Oid::from(id))).or_else(of_name);
        let found = found.ok_or_else(|| {
            Error::new(error::NO_FUNCTION, format!("there is no procedure {}(jsonb)", self.name))
                .detail("The one that the queue was given is gone; a new one of its name would not do.")
                .hint(hint)
        })?;
        if self.owner.role() == Some(found.owner) {
            return Ok(found);
        }
        let owner = role::role_name(found.owner).unwrap_or_default();
        Err(Error::new(error::DENIED, format!("procedure {}(jsonb) is of role \"{owner}\" now", found.name))
            .detail(format!("It was of role \"{}\" when the queue was given it.", self.owner.name))
            .hint(hint))
    }
}
