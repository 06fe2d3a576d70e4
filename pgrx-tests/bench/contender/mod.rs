//! What takes part. A contender knows its server and how a client of it leads a job through its life: enqueue,
//! claim, complete, each in a transaction of its own.

mod articles;
mod floor;
mod ours;

use std::error::Error;

use postgres::types::private::BytesMut;
use postgres::types::{IsNull, ToSql, Type, to_sql_checked};

pub use articles::{Articles, TABLE as ARTICLES_TABLE, claim as articles_claim};
pub use floor::{Floor, TABLES as FLOOR_TABLES};
pub use ours::{Loop, Ours, QUEUE};

use crate::Result;
use crate::server::Server;

/// What a client does again and again.
#[derive(Clone, Copy)]
pub struct Work {
    /// Jobs in one transaction.
    pub batch: usize,
    /// Whether commits wait for the disk.
    pub is_durable: bool,
}

/// What can be measured.
pub trait Contender {
    /// The server that does the work.
    fn server(&self) -> &Server;

    /// Connects one more client.
    fn worker(&self, work: Work) -> Result<Box<dyn Worker>>;
}

/// A client with its connection and its prepared statements.
pub trait Worker: Send {
    /// Leads jobs through their lives. Returns how many.
    fn live(&mut self) -> Result<u64>;
}

/// A document of 100 bytes, as the server stores it.
#[derive(Clone, Debug)]
pub struct Payload(String);

impl Payload {
    /// The payload of every job.
    pub fn new() -> Self {
        Self(format!(r#"{{"to": 7, "text": "{}"}}"#, "x".repeat(63)))
    }

    /// Another document.
    pub fn of(document: String) -> Self {
        Self(document)
    }

    /// As SQL.
    pub fn sql(&self) -> String {
        format!("'{}'::jsonb", self.0)
    }

    /// One for each job of a batch.
    pub fn many(count: usize) -> Vec<Self> {
        vec![Self::new(); count]
    }
}

impl ToSql for Payload {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Box<dyn Error + Sync + Send>> {
        /// The version of jsonb's binary format.
        const VERSION: u8 = 1;
        out.extend_from_slice(&[VERSION]);
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSONB
    }

    to_sql_checked!();
}
