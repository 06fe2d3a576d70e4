//! Publishes events, on the caller's own connection and in its transaction: each adds a job to each queue with a
//! matching binding.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, GenericClient};

use crate::codec::ContextKind;
use crate::enqueue::Options;
use crate::sql::Parameters;

/// How an event is published.
#[derive(Debug, Clone, Default)]
pub struct Publish {
    /// Words with dots between them, which the patterns of bindings match.
    pub key: String,
    /// True: it is an error (`P0002`) if no queue gets the event.
    pub mandatory: bool,
    /// The options of its jobs. Bindings and queues determine stage, maximum of attempts and lease: the server refuses
    /// them here.
    pub options: Options,
}

impl Publish {
    /// Returns how to publish under this key, without options.
    pub fn key(key: impl Into<String>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }
}

/// Publishes an event and returns the ids of its jobs by queue.
pub async fn publish<C: GenericClient + Sync>(
    client: &C,
    topic: &str,
    payload: impl Serialize,
    how: Publish,
) -> Result<BTreeMap<String, i64>, Error> {
    let payload = how.options.codec.json(payload, ContextKind::Payload, topic).await;
    let mut parameters = Parameters::default()
        .with(topic.to_owned(), Type::TEXT)
        .with(payload, Type::JSONB)
        .with(how.key, Type::TEXT)
        .with(how.mandatory, Type::BOOL);
    let arguments = how.options.arguments(&mut parameters);
    let sql = format!("SELECT queue_name, job_id FROM queue.publish($1, $2, $3, mandatory => $4{arguments})");
    let rows = client.query_typed(&sql, &parameters.list()).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
