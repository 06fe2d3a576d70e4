//! The server's counts agree with its rows: statistics, dead letters, slots of schedules, stages.

use std::collections::BTreeMap;

use postgres::Client;

/// The counts are summed over stages. Queues that keep nothing or were created again have fewer rows than counts.
const STATS: &str = "
    WITH s AS (SELECT queue_name, concat_ws(' ', sum(ready), sum(scheduled), sum(retrying), sum(running), sum(dead),
    sum(enqueued),
                   sum(claimed), sum(completed), sum(failed), sum(timed_out), sum(died), sum(expired)) AS counts
               FROM queue.stats GROUP BY 1),
         l AS (SELECT queue_id, lane.lane, life.* FROM queue_internal.life AS life JOIN queue_internal.lane AS lane
         ON lane.lane = life.lane),
         r AS (SELECT q.queue_name, concat_ws(' ', j.states, a.totals) AS counts
               FROM queue_internal.queue AS q,
               LATERAL (SELECT concat_ws(' ', count(*) FILTER (WHERE state = 'ready'),
               count(*) FILTER (WHERE state = 'scheduled'),
                            count(*) FILTER (WHERE state = 'retrying'), count(*) FILTER (WHERE state = 'running'),
                            count(*) FILTER (WHERE state = 'dead')) AS states
                        FROM queue.jobs AS j WHERE j.queue_name = q.queue_name) AS j,
               LATERAL (SELECT concat_ws(' ', count(DISTINCT job_id), count(*) FILTER (WHERE claim_kind <> 's'),
                            count(*) FILTER (WHERE outcome IN ('c', 'a')),
                            count(*) FILTER (WHERE outcome IN ('f', 'd')),
                            count(*) FILTER (WHERE outcome = 't'),
                            count(*) FILTER (WHERE outcome = 'd' OR outcome = 't' AND next_id IS NULL),
                            count(*) FILTER (WHERE outcome = 'e')) AS totals
                        FROM l WHERE l.queue_id = q.queue_id) AS a)
    SELECT queue_name, s.counts, r.counts FROM s JOIN r USING (queue_name)
    WHERE s.counts <> r.counts AND queue_name NOT IN ('brief', 'coming')";

const DEATHS: &str = "
    SELECT (SELECT sum(died)::bigint FROM queue.stats WHERE queue_name = 'mortal'),
           (SELECT count(*) FROM queue.jobs WHERE queue_name = 'morgue' AND headers ? 'dead_letter')";

const SLOTS: &str = "
    SELECT headers ->> 'schedule', (extract(epoch FROM (headers ->> 'slot')::timestamptz) * 1000)::bigint, count(*)
    FROM queue.jobs WHERE queue_name = 'ticking' AND headers ? 'slot' GROUP BY 1, 2 ORDER BY 1, 2";

/// The period of the schedule `tick`, which misses no slots.
pub const TICK_MS: i64 = 200;

pub fn check(client: &mut Client) -> Result<Vec<String>, postgres::Error> {
    let mut found = Vec::new();
    client.batch_execute("SET jit = off")?;
    for row in client.query(STATS, &[])? {
        let (queue, stats, rows): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        found.push(format!(
            "queue.stats of {queue} differs from its rows: {stats} and {rows} \
             (ready, scheduled, retrying, running, dead, enqueued, claimed, completed, failed, timed_out, died, \
             expired)"
        ));
    }
    let row = client.query_one(DEATHS, &[])?;
    let (died, copies): (i64, i64) = (row.get(0), row.get(1));
    if died != copies {
        found.push(format!("{died} jobs have died, and {copies} copies of dead jobs are there"));
    }
    let mut slots: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for row in client.query(SLOTS, &[])? {
        let (schedule, slot, count): (String, i64, i64) = (row.get(0), row.get(1), row.get(2));
        if count != 1 {
            found.push(format!("slot {slot} of schedule {schedule} has {count} jobs"));
        }
        slots.entry(schedule).or_default().push(slot);
    }
    let ticks = slots.get("tick").map_or(&[][..], Vec::as_slice);
    if ticks.len() < 2 {
        found.push(format!("schedule tick has fired {} slots", ticks.len()));
    }
    for pair in ticks.windows(2) {
        if pair[1] - pair[0] != TICK_MS {
            found.push(format!("between slots {} and {} of schedule tick some are missing", pair[0], pair[1]));
        }
    }
    Ok(found)
}
