//! Events and other open flows that are retried.

use crate::jobs::flows::{flow, members, reclaim};
use crate::shared::*;
use crate::storage::segments::cluster;

/// A retried flow waits for the same things as before. The logs or history say whether it was sealed.
#[test]
fn a_retried_flow_is_open_again_unless_it_was_sealed() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    client.run("SELECT queue.alter('q', max_attempts => 1, lease => '1 hour')");
    create(&mut client, "f", "lease => '1 hour'");
    for is_in_history in [false, true] {
        let [completed, dead, cancelled] = [(); 3].map(|()| flow(&mut client, "open => true"));
        let limit = "start_within => '10 milliseconds'";
        let expired = flow(&mut client, &format!("open => true, {limit}"));
        let [open, sealed] = [(); 2].map(|()| flow(&mut client, "open => true"));
        let of_flows = [open, sealed].map(|flow| members(&mut client, flow, 1)[0]);
        client.run(&format!("SELECT queue.seal({sealed})"));
        client.run(&format!("SELECT queue.resolve({completed}, '1'), queue.reject({dead}, 'no')"));
        client
            .run(&format!("SELECT queue.cancel(job) FROM unnest('{{{cancelled},{open},{sealed}}}'::bigint[]) AS job"));
        let ends = [
            (completed, "completed"),
            (dead, "dead"),
            (cancelled, "cancelled"),
            (expired, "expired"),
            (open, "cancelled"),
            (sealed, "cancelled"),
        ];
        for (job, state) in ends {
            wait::until_true("the flow has ended", || client.state(job) == state);
        }
        if is_in_history {
            reclaim(&mut client, 4);
            let kept = format!("SELECT FROM queue_internal.history WHERE job_id IN ({completed}, {dead}, {sealed})");
            assert_eq!(client.count(&kept), 3);
        }
        ends.iter().for_each(|(job, _)| client.run(&format!("SELECT queue.retry({job})")));
        client.work_off("q", 2);
        wait::until_true("the sealed flow has completed", || client.state(sealed) == "completed");
        assert_eq!(of_flows.map(|job| client.state(job)), ["completed"; 2]);
        client.run("SELECT queue.maintain()");
        let events = [completed, dead, cancelled, expired];
        events.iter().chain([&open]).for_each(|&job| assert_eq!(client.state(job), "held", "{job}"));
        for job in events {
            client.run(&format!("SELECT queue.resolve({job}, '2')"));
            assert_eq!(client.value::<String>(&format!("SELECT result::text FROM queue.job({job})")), "2");
        }
        client.run(&format!("SELECT queue.seal({open})"));
        wait::until_true("the flow has completed", || client.state(open) == "completed");
    }
}
