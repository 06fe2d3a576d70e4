//! The client of the turns. It sends a prepared statement and reads the answer, and nothing else.
//!
//! The clients run on the processors of the measured server. A usual driver has an event loop, futures and several
//! system calls for each round trip. That would be added to all contenders alike, and slow contenders would seem less
//! slow. This client makes one write and one read. It sends the messages that drivers send: Bind, Execute and Sync,
//! with binary values.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use postgres::Config;
use postgres::config::Host;
use postgres::types::private::BytesMut;
use postgres::types::{IsNull, ToSql, Type};
use postgres_protocol::message::backend::{self, Header};
use postgres_protocol::message::frontend::{self, BindError};

use crate::error::Result;

/// A connection over a Unix socket, without encryption or password.
pub struct Client {
    socket: UnixStream,
    output: BytesMut,
    input: Vec<u8>,
    statements: usize,
}

/// A prepared statement.
pub struct Statement {
    name: String,
    parameters: Vec<Type>,
}

impl Client {
    /// Connects.
    pub fn connect(config: &Config) -> Result<Self> {
        let ([Host::Unix(dir)], [port]) = (config.get_hosts(), config.get_ports()) else {
            return Err("this client needs one Unix socket".into());
        };
        let socket = UnixStream::connect(dir.join(format!(".s.PGSQL.{port}")))?;
        let mut client = Self { socket, output: BytesMut::new(), input: vec![0; 16_384], statements: 0 };
        let names = [("user", config.get_user()), ("database", config.get_dbname())];
        let names = names.into_iter().filter_map(|(what, name)| Some((what, name?)));
        frontend::startup_message(names, &mut client.output)?;
        client.round_trip(|tag, body| match (tag, body) {
            (backend::AUTHENTICATION_TAG, [0, 0, 0, 0]) => Ok(()),
            (backend::AUTHENTICATION_TAG, _) => Err("the server wants a password".into()),
            _ => Ok(()),
        })?;
        Ok(client)
    }

    /// Runs statements without parameters.
    pub fn batch_execute(&mut self, sql: &str) -> Result<()> {
        frontend::query(sql, &mut self.output)?;
        self.round_trip(|_, _| Ok(()))
    }

    /// Prepares a statement.
    pub fn prepare(&mut self, sql: &str) -> Result<Statement> {
        self.statements += 1;
        let mut statement = Statement { name: format!("s{}", self.statements), parameters: Vec::new() };
        frontend::parse(&statement.name, sql, [], &mut self.output)?;
        frontend::describe(b'S', &statement.name, &mut self.output)?;
        frontend::sync(&mut self.output);
        self.round_trip(|tag, body| {
            if tag == backend::PARAMETER_DESCRIPTION_TAG {
                // The number of parameters, then the oids of their types.
                for oid in body[2..].chunks_exact(4) {
                    let kind = Type::from_oid(u32::from_be_bytes(oid.try_into()?));
                    statement.parameters.push(kind.ok_or("a parameter's type is not built in")?);
                }
            }
            Ok(())
        })?;
        Ok(statement)
    }

    /// Runs a statement and ignores its rows.
    pub fn execute(&mut self, statement: &Statement, values: &[&dyn ToSql]) -> Result<()> {
        self.bigints::<0>(statement, values).map(drop)
    }

    /// Runs a statement whose first column is a `bigint`. Returns that column.
    pub fn ids(&mut self, statement: &Statement, values: &[&dyn ToSql]) -> Result<Vec<i64>> {
        Ok(self.bigints(statement, values)?.into_iter().map(|[id]| id).collect())
    }

    /// Runs a statement whose first columns are of type `bigint` and not NULL. Returns those columns.
    pub fn bigints<const COLUMNS: usize>(
        &mut self,
        statement: &Statement,
        values: &[&dyn ToSql],
    ) -> Result<Vec<[i64; COLUMNS]>> {
        self.send(statement, values)?;
        let mut rows = Vec::new();
        self.round_trip(|tag, body| {
            if tag == backend::DATA_ROW_TAG {
                let mut row = [0; COLUMNS];
                for (n, value) in row.iter_mut().enumerate() {
                    // The number of columns, then the length and the bytes of each.
                    let at = 2 + 12 * n + 4;
                    let bytes = body.get(at..at + 8).ok_or("a column is not a bigint")?;
                    *value = i64::from_be_bytes(bytes.try_into()?);
                }
                rows.push(row);
            }
            Ok(())
        })?;
        Ok(rows)
    }

    fn send(&mut self, statement: &Statement, values: &[&dyn ToSql]) -> Result<()> {
        const BINARY: i16 = 1;
        let write = |(value, kind): (&&dyn ToSql, _), output: &mut BytesMut| {
            Ok(match value.to_sql_checked(kind, output)? {
                IsNull::Yes => postgres_protocol::IsNull::Yes,
                IsNull::No => postgres_protocol::IsNull::No,
            })
        };
        let values = values.iter().zip(&statement.parameters);
        frontend::bind("", &statement.name, [BINARY], values, write, [BINARY], &mut self.output).map_err(|error| {
            match error {
                BindError::Conversion(error) => error,
                BindError::Serialization(error) => error.into(),
            }
        })?;
        frontend::execute("", 0, &mut self.output)?;
        frontend::sync(&mut self.output);
        Ok(())
    }

    /// Sends the buffered messages. Calls `each` with the tag and the body of each message of the answer.
    fn round_trip(&mut self, mut each: impl FnMut(u8, &[u8]) -> Result<()>) -> Result<()> {
        self.socket.write_all(&self.output)?;
        self.output.clear();
        let mut result = Ok(());
        let (mut begin, mut end) = (0, 0);
        loop {
            while let Some(header) = Header::parse(&self.input[begin..end])? {
                // The length includes itself, but not the tag.
                let next = begin + 1 + header.len() as usize;
                if next > end {
                    break;
                }
                let body = &self.input[begin + 5..next];
                match header.tag() {
                    backend::READY_FOR_QUERY_TAG => return result,
                    // The server skips the remaining messages and becomes ready again, unless it closes the connection.
                    backend::ERROR_RESPONSE_TAG => result = Err(error_text(body).into()),
                    tag => each(tag, body)?,
                }
                begin = next;
            }
            self.input.copy_within(begin..end, 0);
            (begin, end) = (0, end - begin);
            if end == self.input.len() {
                self.input.resize(2 * end, 0);
            }
            match self.socket.read(&mut self.input[end..])? {
                0 => return result.and(Err("the server has closed the connection".into())),
                read => end += read,
            }
        }
    }
}

/// Returns the readable fields of an error: severity, SQLSTATE, message, detail and so on.
fn error_text(body: &[u8]) -> String {
    let fields = body.split(|byte| *byte == 0).filter_map(|field| field.split_first());
    let wanted = fields.filter(|(kind, _)| b"SCMDH".contains(kind));
    wanted.map(|(_, text)| String::from_utf8_lossy(text)).collect::<Vec<_>>().join(": ")
}
