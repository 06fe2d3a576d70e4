//! A session that a fault point holds in the middle of a statement.

use std::thread::JoinHandle;

use crate::shared::*;

/// A session that runs a statement. It ends with the connection and the SQLSTATE, which is empty on success.
pub type Running = JoinHandle<(Client, String)>;

/// Runs a statement in a thread.
pub fn begin(mut client: Client, sql: String) -> Running {
    thread::spawn(move || {
        let code = match client.batch_execute(&sql) {
            Ok(()) => String::new(),
            // The driver may see the closed connection before it reads the error.
            Err(e) if e.is_closed() => "57P01".to_owned(),
            Err(e) => error::code(&e).to_owned(),
        };
        (client, code)
    })
}

/// Makes a new session of the shared server run a statement until it reaches a fault point. The point holds it there.
pub fn hold(database: &str, point: &str, sql: &str) -> (Fault, Running) {
    hold_session(server(), server().connect_to(database), point, sql)
}

/// Makes this session run a statement until it reaches a fault point. The point holds it there.
pub fn hold_session(server: &Cluster, mut session: Client, point: &str, sql: &str) -> (Fault, Running) {
    let fault = server.fault_of(session.pid(), point, "wait");
    let held = begin(session, sql.to_owned());
    fault.wait_reached();
    (fault, held)
}

/// Lets the session go on. Returns its SQLSTATE.
pub fn release((fault, held): (Fault, Running)) -> String {
    drop(fault);
    held.join().expect("the session's thread").1
}

/// Claims up to 100 jobs of a queue. Returns their ids.
pub fn claim_all(client: &mut Client, queue: &str) -> Vec<i64> {
    client.column(&format!("SELECT job_id FROM queue.claim('{queue}', 100)"))
}
