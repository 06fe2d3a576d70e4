//! The checkers: each compares the ledger and the final database with one promise.

mod after;
mod audit;
mod books;
mod case;
#[cfg(test)]
mod flow_tests;
mod flows;
mod hold;
mod keys;
mod lease;
mod limits;
mod log;
mod loss;
mod order;
mod storage;
#[cfg(test)]
mod tests;
mod topics;
mod waiting;

pub use books::TICK_MS;
use case::{Case, World};

use crate::ledger::{self, Ledger, Micros};
use crate::shared::Torture;

/// Returns all findings.
pub fn all(
    torture: &Torture,
    ledger: &mut Ledger,
    crashes: &[(Micros, Micros)],
    promotions: &[(Micros, Micros)],
) -> Vec<String> {
    let clock_was_set = ledger::clock_was_set();
    if clock_was_set {
        println!("the machine's clock was set: nothing is said of leases");
    }
    let mut found = Vec::new();
    let mut client = torture.place.connection("check");
    let witnesses: Vec<i64> = match client.query("SELECT deal FROM witness", &[]) {
        Ok(rows) => rows.iter().map(|row| row.get(0)).collect(),
        Err(e) => return vec![format!("no witnesses: {e:?}")],
    };
    found.extend(ledger.settle(&witnesses));
    match World::read(&mut client, &mut found) {
        Ok(world) => {
            let case = Case { ledger, world: &world, crashes, promotions, clock_was_set };
            found.extend(loss::check(&case));
            let holds = hold::holds(&case);
            found.extend(limits::check(&case, &holds));
            found.extend(order::check(&case, &holds));
            found.extend(lease::check(&case));
            found.extend(keys::check(&case));
            found.extend(waiting::check(&case));
            found.extend(after::check(&case));
            found.extend(flows::check(&case));
            found.extend(topics::check(&case));
        }
        Err(e) => found.push(format!("the world cannot be read: {e:?}")),
    }
    for checked in [books::check(&mut client), audit::check(&mut client), storage::check(&mut client)] {
        match checked {
            Ok(more) => found.extend(more),
            Err(e) => found.push(format!("a checker could not go on: {e:?}")),
        }
    }
    found.extend(log::check(&torture.place.logs()));
    found
}
