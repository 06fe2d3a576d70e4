//! The queues of a shop under load, for the dashboard: producers, and workers that sometimes fail.
//!
//! `demo web` starts a server, this load and `pg_queue_web`, and prints the address. It runs until it is stopped.

use std::process::{Command, Stdio};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use postgres::Client;
use queue_tests::Cluster;
use queue_tests::random::Random;

const DATABASE: &str = "shop";

const SETUP: &str = "
SELECT queue.create('emails', max_attempts => 6, backoff_base => '5 seconds'),
       queue.create('payments', stages => '{check,charge,notify}', max_running => 12),
       queue.create('reports', max_running => 6, lease => '10 minutes', max_attempts => 4,
       backoff_base => '20 seconds'),
       queue.create('thumbnails', rate_limit => 25, max_running_per_group => 2),
       queue.create('webhooks_dead');
SELECT queue.create('webhooks', max_attempts => 3, backoff_base => '3 seconds', dead_letter => 'webhooks_dead'),
       queue.create('imports');
SELECT queue.pause('imports'), count(queue.enqueue('imports', jsonb_build_object('file', 'stock-' || n || '.csv')))
FROM generate_series(1, 18) AS n;
SELECT queue.schedule('digest', 'emails', '{\"kind\": \"digest\"}', cron => '*/5 * * * *', timezone => 'Europe/Berlin'),
       queue.schedule('month end', 'reports', '{\"kind\": \"month end\"}', cron => '0 3 1 * *',
       timezone => 'Europe/Berlin'),
       queue.schedule('heartbeat', 'webhooks', '{\"url\": \"https://example.org/ping\"}', every => '30 seconds',
       overlap => false),
       queue.schedule('old import', 'imports', cron => '15 * * * *');
SELECT queue.pause_schedule('old import');
SELECT queue.create_topic('orders');
SELECT queue.bind('orders', 'payments', 'order.placed'), queue.bind('orders', 'emails', 'order.*'),
       queue.bind('orders', 'webhooks', 'order.#', filter => '$.payload.total > 400');";

/// How often the shop gets orders.
const TICK: Duration = Duration::from_millis(250);

/// What a worker does with its jobs.
struct Kind {
    queue: &'static str,
    workers: usize,
    /// The shortest and the longest duration of a job in milliseconds.
    takes: (i64, i64),
    /// The failed attempts in percent.
    fails: u64,
    errors: &'static [&'static str],
    /// True if jobs report their progress.
    reports: bool,
}

const KINDS: [Kind; 6] = [
    Kind { queue: "webhooks_dead", workers: 1, takes: (2_000, 9_000), fails: 0, errors: &[], reports: false },
    Kind {
        queue: "emails",
        workers: 3,
        takes: (20, 120),
        fails: 3,
        errors: &[
            "smtp.example.org: connection refused",
            "550 mailbox full",
            "421 too many connections from your host",
        ],
        reports: false,
    },
    Kind {
        queue: "payments",
        workers: 8,
        takes: (50, 350),
        fails: 1,
        errors: &["bank: timeout after 3 s"],
        reports: false,
    },
    Kind {
        queue: "reports",
        workers: 5,
        takes: (8_000, 45_000),
        fails: 12,
        errors: &["division by zero in column \"margin\""],
        reports: true,
    },
    Kind {
        queue: "thumbnails",
        workers: 2,
        takes: (30, 90),
        fails: 1,
        errors: &["not an image: unexpected end of file"],
        reports: false,
    },
    Kind {
        queue: "webhooks",
        workers: 3,
        takes: (40, 400),
        fails: 25,
        errors: &["503 Service Unavailable", "connection reset by peer", "410 Gone"],
        reports: false,
    },
];

/// Runs everything until the dashboard ends.
pub fn run(args: &[&str]) -> bool {
    println!("starting a server");
    let cluster = Cluster::on_disk().conf("shared_buffers = '128MB'").conf("synchronous_commit = off").start();
    cluster.create_database(DATABASE).batch_execute(SETUP).expect("queues");
    let program = std::env::current_exe().expect("this program").with_file_name("pg_queue_web");
    let mut command = Command::new(&program);
    cluster.connect_env(&mut command);
    command.env("PGDATABASE", DATABASE).arg("--allow-actions").args(args).stdin(Stdio::null());
    println!("The dashboard looks at a shop's queues, until Ctrl-C:");
    let mut dashboard = command.spawn().unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    let is_well = scope(|scope| {
        let cluster = &cluster;
        scope.spawn(|| endless(cluster, "shop", produce));
        for (number, kind) in KINDS.iter().enumerate() {
            for worker in 1..=kind.workers {
                let name = format!("{}-{worker}", kind.queue);
                let seed = (number * 100 + worker) as u64;
                scope
                    .spawn(move || endless(cluster, &name, |client| work(client, kind, &name, &mut Random::new(seed))));
            }
        }
        let ended = dashboard.wait().expect("the dashboard");
        // The threads end with their connections.
        cluster.stop_fast();
        ended.success()
    });
    drop(cluster);
    is_well
}

/// Repeats it until the connection ends.
fn endless(cluster: &Cluster, name: &str, mut run: impl FnMut(&mut Client) -> Result<(), postgres::Error>) {
    let mut config = cluster.config();
    config.dbname(DATABASE).application_name(name);
    if let Ok(mut client) = config.connect(postgres::NoTls) {
        drop(run(&mut client));
    }
}

/// Produces orders, more or fewer through the day, and the other jobs of a shop.
fn produce(client: &mut Client) -> Result<(), postgres::Error> {
    let (mut random, begun) = (Random::new(7), Instant::now());
    for tick in 0_u64.. {
        // A wave of some minutes, with noise.
        let wave = 1.0
            + 0.6 * (begun.elapsed().as_secs_f64() / 200.0).sin()
            + 0.3 * (begun.elapsed().as_secs_f64() / 31.0).sin();
        let orders = (wave * 2.0) as i64 + random.between(0, 2);
        for _ in 0..orders {
            let (customer, total) = (random.between(1000, 9999), random.between(5, 900));
            let kind = if random.percent(70) { "order.placed" } else { "order.shipped" };
            let payload =
                format!("{{\"customer\": {customer}, \"total\": {total}, \"items\": {}}}", random.between(1, 9));
            let group = format!("customer {customer}");
            let sql = "SELECT queue.publish('orders', $1::text::jsonb, $2, group_key => $3)";
            client.execute(sql, &[&payload, &kind, &group])?;
        }
        let emails =
            format!("{{\"to\": \"user{}@example.org\", \"template\": \"newsletter\"}}", random.between(1, 99_999));
        client.execute(
            "SELECT queue.enqueue_many('emails', array_fill($1::text::jsonb, ARRAY[$2::int]), priority => 5)",
            &[&emails, &(random.between(1, 5) as i32)],
        )?;
        if tick % 2 == 0 {
            let image = format!("{{\"image\": \"products/{}.jpg\", \"width\": 640}}", random.between(1, 9_999));
            let group = format!("shop {}", random.between(1, 5));
            client
                .execute("SELECT queue.enqueue('thumbnails', $1::text::jsonb, group_key => $2)", &[&image, &group])?;
        }
        if tick % 25 == 0 {
            let report = format!(
                "{{\"kind\": \"sales\", \"region\": \"{}\"}}",
                random.one_of(&["north", "south", "east", "west"])
            );
            let delay = format!("{} seconds", if random.percent(30) { random.between(20, 600) } else { 0 });
            client.execute(
                "SELECT queue.enqueue('reports', $1::text::jsonb, delay => $2::text::interval)",
                &[&report, &delay],
            )?;
        }
        if tick % 200 == 5 {
            let tasks = r#"[{"task": "orders"}, {"task": "stock"}, {"task": "margin", "after": ["orders", "stock"]},
                {"task": "send", "queue": "emails", "after": ["margin"]}]"#;
            client.execute(
                "SELECT queue.enqueue_flow('reports', $1::text::jsonb, '{\"kind\": \"weekly\"}')",
                &[&tasks],
            )?;
        }
        sleep(TICK);
    }
    Ok(())
}

/// Claims one job after the other.
fn work(client: &mut Client, kind: &Kind, name: &str, random: &mut Random) -> Result<(), postgres::Error> {
    loop {
        let sql = "SELECT id, stage FROM queue.claim($1, wait => '2 seconds', worker => $2)";
        let Some(job) = client.query_opt(sql, &[&kind.queue, &name])? else { continue };
        let (id, stage): (i64, Option<String>) = (job.get(0), job.get(1));
        let takes = random.between(kind.takes.0, kind.takes.1);
        if kind.reports {
            let rows = takes / 40;
            for done in 1..=20 {
                sleep(Duration::from_millis(takes as u64 / 20));
                let progress = format!("{{\"done\": {}, \"total\": {rows}, \"what\": \"rows\"}}", rows * done / 20);
                client.execute("SELECT queue.progress($1, $2::text::jsonb)", &[&id, &progress])?;
            }
        } else {
            sleep(Duration::from_millis(takes as u64));
        }
        let ended = if random.percent(kind.fails) {
            let error = random.one_of(kind.errors);
            client.execute("SELECT queue.fail($1, $2)", &[&id, &error])
        } else if stage.as_deref().is_some_and(|stage| stage != "notify") {
            client.execute("SELECT queue.advance($1)", &[&id])
        } else {
            client.execute("SELECT queue.complete($1, '{\"ok\": true}')", &[&id])
        };
        match ended {
            // Someone has ended the job in the dashboard.
            Err(e) if e.code().is_some_and(|code| matches!(code.code(), "QJ001" | "55006")) => {}
            other => drop(other?),
        }
    }
}
