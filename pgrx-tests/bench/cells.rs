//! What is measured: the cells, each with its name in results and in `--only`.

use crate::bench::{Bench, Cell, Measure};
use crate::contender::{BATCH, SINGLE, Work};
use crate::error::Result;
use crate::{cores, latency, shares};

const DURABLE_SINGLE: Work = Work { is_durable: true, ..SINGLE };
const DURABLE_BATCH: Work = Work { is_durable: true, ..BATCH };
/// Long enough for some segments to be filled and reclaimed.
const RECLAIM_SINGLE: Work = Work { length: 5, ..SINGLE };
const RECLAIM_BATCH: Work = Work { length: 5, ..BATCH };
const FEATURES: &[&str] = &[
    "plain",
    "max-running",
    "rate-limit",
    "rate-cost",
    "rate-per-group",
    "start-within",
    "groups",
    "strict-order",
    "strict-segments",
    "fair-loud",
    "fair-groups",
];
const HUNDREDS: &[&str] = &[
    "plain-hundreds",
    "spread-hundreds",
    "groups-hundreds",
    "strict-hundreds",
    "groups-mixed",
    "strict-mixed",
    "fair-hundreds",
    "fair-mixed",
];
const RECLAIMED: &[&str] = &["still", "turning", "turning-retention-0", "turning-fast", "turning-fast-retention-0"];
const DEPTHS: &[&str] = &["shallow", "deep"];
const FAR: &[&str] = &["ours", "far"];

/// All cells, in the order in which they run.
#[rustfmt::skip]
pub const ALL: &[Cell] = &[
    turns("single", "", 4, SINGLE, &["ours", "floor", "ours-retention-0", "articles", "articles-index", "loop"]),
    turns("batch-2", "", 2, BATCH, &["ours", "floor", "ours-retention-0"]),
    turns("batch-4", "", 4, BATCH, &["ours", "floor", "ours-retention-0", "articles-index"]),
    turns("durable-single", "", 4, DURABLE_SINGLE, &["ours", "floor", "articles-index"]),
    turns("durable-batch", "", 4, DURABLE_BATCH, &["ours", "floor"]),
    turns("reclaim-single", "segments that stay or are reclaimed, with history or not", 4, RECLAIM_SINGLE, RECLAIMED),
    turns("reclaim-batch", "segments that stay or are reclaimed, with history or not", 4, RECLAIM_BATCH, RECLAIMED),
    turns("features-single", "what is paid for a feature that is used", 4, SINGLE, FEATURES),
    turns("features-batch", "what is paid for a feature that is used", 4, BATCH, FEATURES),
    turns("hundreds-single", "1,000 groups of 100 jobs each are waiting", 4, SINGLE, HUNDREDS),
    turns("hundreds-batch", "1,000 groups of 100 jobs each are waiting", 4, BATCH, HUNDREDS),
    turns("depth-single", "1,000 and 1,000,000 jobs waiting (--quick: 200,000)", 4, SINGLE, DEPTHS),
    turns("depth-batch", "1,000 and 1,000,000 jobs waiting (--quick: 200,000)", 4, BATCH, DEPTHS),
    turns("delayed-far-single", "no and 1,000,000 jobs due next year (--quick: 200,000)", 4, SINGLE, FAR),
    turns("delayed-far-batch", "no and 1,000,000 jobs due next year (--quick: 200,000)", 4, BATCH, FAR),
    own("cores", "1 to 64 clients: where they wait, and how long the lock is held", cores::run),
    own("shares", "tenants with weights, the last of them comes later; a quiet one behind a backlog", shares::run),
    own("wake", "from sending a job to a sleeping worker's having it", latency::wake),
    own("collect", "claims that linger, and jobs that come one by one", latency::collect),
];

const fn turns(
    name: &'static str,
    title: &'static str,
    clients: usize,
    work: Work,
    who: &'static [&'static str],
) -> Cell {
    Cell { name, title, measure: Measure::Turns { clients, work, who } }
}

const fn own(name: &'static str, title: &'static str, measure: fn(&mut Bench) -> Result<()>) -> Cell {
    Cell { name, title, measure: Measure::Own(measure) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues;

    #[test]
    fn all_that_take_turns_are_known() {
        for cell in ALL {
            let Measure::Turns { who, .. } = cell.measure else { continue };
            for who in who {
                assert!(queues::ALL.iter().any(|(name, _)| name == who), "{}: {who}", cell.name);
            }
        }
    }
}
