//! Privileges for flows: a weak privilege on a flow's queue, or on a topic, gives no access to its members.

use queue_tests::installation::output;

use crate::security::permissions::{Roles, grant};
use crate::shared::*;

/// Each way to make a job a member of `{flow}` or to seal the flow, for a role that may produce on `reports`, `{own}`
/// and the topic.
const WAYS: &[&str] = &[
    "SELECT queue.enqueue('{own}', flow => {flow})",
    "SELECT queue.enqueue('reports', flow => {flow})",
    "SELECT queue.enqueue('{own}', flow => {flow}, unique_key => 'k')",
    "SELECT queue.enqueue('{own}', flow => {flow}, unique_key => 'r', on_duplicate => 'replace')",
    "SELECT queue.enqueue('{own}', flow => {flow}, run_at => now() + interval '100 years')",
    "SELECT queue.enqueue('{own}', flow => {flow}, after => ARRAY[queue.enqueue('{own}')])",
    "SELECT queue.enqueue_many('{own}', ARRAY['1', '2']::jsonb[], flow => {flow})",
    "SELECT queue.enqueue_batch('{own}', '[{\"payload\": 1}, {\"flow\": {flow}}]')",
    "SELECT queue.enqueue_flow('{own}', flow => {flow})",
    "SELECT queue.enqueue_flow('reports', '[{\"flow\": {flow}}]', flow => {flow})",
    "SELECT queue.publish('events', flow => {flow})",
    "SELECT queue.publish('events', flow => {flow}, unique_key => 'p')",
    "SELECT queue.seal({flow})",
];

/// A database in which `shop` may produce on `reports` and `tiles`, and `mallory` on `reports`. Role `mallory` manages
/// queue `mine`, which is bound to the topic `events`.
struct Shop<'a> {
    shop: String,
    mallory: String,
    admin: Client,
    database: &'a Database,
}

impl<'a> Shop<'a> {
    fn new(database: &'a Database, roles: &Roles<'_>) -> Self {
        let mut admin = database.connect();
        let (shop, mallory) = (roles.make("shop", ""), roles.make("mallory", ""));
        for queue in ["reports", "tiles", "mine"] {
            create(&mut admin, queue, "max_attempts => 1");
        }
        admin.run("SELECT queue.create_topic('events')");
        for (queue, role, privilege) in [
            ("reports", &shop, "produce"),
            ("tiles", &shop, "produce"),
            ("events", &shop, "produce"),
            ("reports", &mallory, "produce"),
            ("mine", &mallory, "manage"),
            ("events", &mallory, "produce"),
            ("events", &mallory, "observe"),
        ] {
            grant(&mut admin, queue, role, privilege);
        }
        let mut new = Self { shop, mallory, admin, database };
        new.session("mallory").run("SELECT queue.bind('events', 'mine')");
        new
    }

    fn session(&mut self, role: &str) -> Client {
        let role = match role {
            "shop" => &self.shop,
            "mallory" => &self.mallory,
            other => other,
        };
        let mut client = self.database.connect();
        client.run(&format!("SET SESSION AUTHORIZATION {role}"));
        client
    }

    /// Makes a flow of the shop with two members.
    fn flow(&mut self) -> i64 {
        let tasks = "[{\"queue\": \"tiles\"}, {\"queue\": \"tiles\"}]";
        self.session("shop")
            .value(&format!("SELECT queue.enqueue_flow('reports', '{tasks}', open => true, fail_fast => true)"))
    }

    fn members(&mut self, flow: i64) -> usize {
        self.admin.count(&format!("SELECT FROM queue.members({flow})"))
    }
}

fn fill(way: &str, own: &str, flow: i64) -> String {
    way.replace("{own}", own).replace("{flow}", &flow.to_string())
}

#[test]
fn a_producer_of_a_flow_s_queue_adds_no_members_to_the_flow_of_another() {
    let database = Database::without_worker();
    let roles = Roles::new(&database);
    let mut shop = Shop::new(&database, &roles);
    let flow = shop.flow();
    // A job cannot join a running job of the queue either, because that job may wait for members later.
    let running = shop.admin.enqueue("reports");
    shop.admin.claim("reports");
    let mut mallory = shop.session("mallory");
    for (way, to) in WAYS.iter().flat_map(|way| [(way, flow), (way, running)]) {
        let failure = mallory.failure(&fill(way, "mine", to));
        assert_eq!(
            (failure.code.as_str(), failure.message),
            ("42501", format!("permission denied for the flow of job {to}")),
            "{way}"
        );
        assert_eq!(
            failure.hint,
            format!(
                "A role that manages the queue can run SELECT queue.grant('reports', '{}', 'consume').",
                shop.mallory
            )
        );
    }
    // A change cannot make a job a member, or move a member of another role's flow.
    let job: i64 = mallory.value("SELECT queue.enqueue('mine', unique_key => 'r')");
    let way = "SELECT queue.enqueue('mine', unique_key => 'r', on_duplicate => 'replace', flow => {flow})";
    mallory.refused(&fill(way, "mine", flow), "42501");
    for fate in [
        "SELECT queue.fail(id, 'x', fatal => true) FROM queue.claim('mine', 10)",
        "SELECT queue.retry(job_id) FROM queue.jobs WHERE state = 'dead'",
    ] {
        mallory.run(fate);
        for _ in 0..3 {
            shop.admin.run("SELECT queue.maintain()");
        }
        assert_eq!(shop.admin.state(flow), "held", "{fate}");
    }
    assert_eq!((shop.members(flow), shop.members(running)), (2, 0));
    assert_eq!(shop.admin.count("SELECT FROM queue.jobs WHERE queue_name = 'tiles' AND state = 'ready'"), 2);
    assert_eq!(shop.admin.state(job), "ready");
}

#[test]
fn the_author_of_a_flow_and_roles_that_consume_its_queue_may_add_members() {
    let database = Database::without_worker();
    let roles = Roles::new(&database);
    let mut shop = Shop::new(&database, &roles);
    let (clerk, worker, manager, tiler) = (
        roles.make("clerk", &format!("IN ROLE {}", shop.shop)),
        roles.make("worker", ""),
        roles.make("manager", ""),
        roles.make("tiler", ""),
    );
    for (role, privilege) in [(&worker, "consume"), (&manager, "manage")] {
        grant(&mut shop.admin, "reports", role, privilege);
        grant(&mut shop.admin, "tiles", role, "produce");
        grant(&mut shop.admin, "events", role, "produce");
    }
    for role in ["shop", &clerk, &worker, &manager] {
        let mut session = shop.session(role);
        for way in WAYS.iter().filter(|way| !way.contains("'reports'") || role != worker) {
            let flow = shop.flow();
            session.run(&fill(way, "tiles", flow));
        }
    }
    // It is not enough to consume the members' queue, or to be the author without the privilege.
    let flow = shop.flow();
    grant(&mut shop.admin, "tiles", &tiler, "manage");
    grant(&mut shop.admin, "reports", &tiler, "produce");
    assert_eq!(shop.session(&tiler).failure(&fill(WAYS[0], "tiles", flow)).code, "42501");
    shop.admin.run(&format!("SELECT queue.revoke('reports', '{}', 'produce')", shop.shop));
    let found = shop.session("shop").failure(&fill(WAYS[0], "tiles", flow)).message;
    assert_eq!(found, "permission denied for queue \"reports\"");
    // A new role with the old name of the author is not the author.
    let name = shop.shop.clone();
    shop.admin.run(&format!("DROP ROLE {clerk}; DROP OWNED BY {name}; DROP ROLE {name}; CREATE ROLE {name} LOGIN"));
    grant(&mut shop.admin, "reports", &name, "produce");
    grant(&mut shop.admin, "tiles", &name, "produce");
    assert_eq!(shop.session("shop").failure(&fill(WAYS[0], "tiles", flow)).code, "42501");
}

#[test]
fn a_subscriber_s_copy_is_no_member_unless_the_topic_s_manager_or_the_publisher_has_bound_it() {
    let database = Database::without_worker();
    let roles = Roles::new(&database);
    let mut shop = Shop::new(&database, &roles);
    let (name, mallory) = (shop.shop.clone(), shop.mallory.clone());
    create(&mut shop.admin, "ours", "");
    create(&mut shop.admin, "trusted", "");
    grant(&mut shop.admin, "ours", &name, "manage");
    grant(&mut shop.admin, "events", &name, "observe");
    shop.admin.run("SELECT queue.bind('events', 'trusted')");
    shop.session("shop").run("SELECT queue.bind('events', 'ours')");
    // A subscriber's grants on its own queue do not bind others.
    for privilege in ["produce", "consume", "manage"] {
        shop.session("mallory").run(&format!("SELECT queue.grant('mine', '{name}', '{privilege}')"));
    }
    for options in ["", ", unique_key => 'k'"] {
        let flow = shop.flow();
        shop.session("shop").run(&format!("SELECT queue.publish('events', flow => {flow}, task => 't'{options})"));
        let members = format!("SELECT queue_name FROM queue.members({flow}) WHERE task = 't' ORDER BY queue_name");
        assert_eq!(shop.admin.column::<String>(&members), ["ours", "trusted"]);
        let mut session = shop.session("mallory");
        assert_eq!(session.count("SELECT queue.fail(id, 'x', fatal => true) FROM queue.claim('mine')"), 1);
        for _ in 0..3 {
            shop.admin.run("SELECT queue.maintain()");
        }
        assert_eq!(shop.admin.state(flow), "held");
    }
    // A role that manages the topic may add copies to the flow.
    grant(&mut shop.admin, "events", &mallory, "manage");
    let flow = shop.flow();
    shop.session("shop").run(&format!("SELECT queue.publish('events', flow => {flow})"));
    assert_eq!(shop.members(flow), 5);
}

#[test]
fn a_flow_s_manager_retries_members_only_in_queues_it_manages() {
    let database = Database::without_worker();
    let roles = Roles::new(&database);
    let mut shop = Shop::new(&database, &roles);
    let manager = roles.make("manager", "");
    grant(&mut shop.admin, "reports", &manager, "manage");
    let flow = shop.flow();
    shop.admin.run("SELECT queue.fail(id, 'x', fatal => true) FROM queue.claim('tiles')");
    shop.admin.maintain_until(&format!("(SELECT state FROM queue.job({flow})) = 'dead'"));
    let mut session = shop.session(&manager);
    let found = session.failure(&format!("SELECT queue.retry({flow})")).message;
    assert_eq!(found, "permission denied for queue \"tiles\"");
    assert_eq!(shop.admin.state(flow), "dead");
    grant(&mut shop.admin, "tiles", &manager, "manage");
    session.run(&format!("SELECT queue.retry({flow})"));
    assert_eq!(shop.admin.state(flow), "held");
    // The cancellation of a flow ends its members in all queues, because their producers have put them under it.
    shop.admin.run(&format!("SELECT queue.revoke('tiles', '{manager}', 'manage')"));
    session.run(&format!("SELECT queue.cancel({flow})"));
    shop.admin.maintain_until(&format!("(SELECT state FROM queue.job({flow})) = 'cancelled'"));
}

#[test]
fn the_author_of_a_restored_flow_is_found_by_name() {
    let (cluster, mut admin) = Cluster::new().start_with_database("app");
    create(&mut admin, "reports", "");
    admin.run(
        "CREATE ROLE shop LOGIN; CREATE ROLE mallory LOGIN; SELECT queue.grant('reports', r, 'produce') \
        FROM unnest('{shop,mallory}'::text[]) AS r",
    );
    let session = |role: &str, database: &str| cluster.connect_as(database, role);
    let flow: i64 = session("shop", "app").value("SELECT queue.enqueue_flow('reports', open => true)");
    let file = cluster.dir().join("app.sql");
    let file = file.to_str().unwrap();
    output(cluster.command("pg_dump").args(["-f", file, "app"]));
    // The role has another oid now, as in another cluster.
    admin.run(
        "DROP OWNED BY shop; DROP ROLE shop; CREATE ROLE shop LOGIN; SELECT queue.grant('reports', 'shop', 'produce')",
    );
    admin.run("CREATE DATABASE copy");
    output(cluster.command("psql").args(["-q", "-v", "ON_ERROR_STOP=1", "-f", file, "copy"]));
    let way = format!("SELECT queue.enqueue('reports', flow => {flow})");
    cluster.connect_to("copy").run("SELECT queue.adopt()");
    session("shop", "copy").run(&way);
    assert_eq!(session("mallory", "copy").failure(&way).code, "42501");
    assert_eq!(session("shop", "app").failure(&way).code, "42501");
}
