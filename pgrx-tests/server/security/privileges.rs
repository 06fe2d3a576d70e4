//! A table of roles, functions and views: which kind of role may call or read which. The test executes each cell.

use std::fs;
use std::path::Path;

use postgres::SimpleQueryMessage;

use crate::security::permissions::{Roles, grant};
use crate::shared::*;

/// The table has a row for each function and view of the schema. A word stands for the cells that the privileges give:
/// those of the line `-- For: …` above the statement in sql/schema. If no word fits, the row has the cells themselves.
///
/// | Word | A role that may call it for a queue |
/// |---|---|
/// | `acts` | succeeds for that queue, and is refused for another one |
/// | `shows` | is shown the rows of that queue |
/// | `tells` | is shown figures of that queue, and none of another one |
/// | `alike` | succeeds for every queue |
///
/// The columns are the kinds of roles: a role without grants; roles with one privilege (produce, consume, observe,
/// manage) on queue `q` and topic `tq`, on the others, and on `'*'`; the extension's owner, which is no superuser; a
/// superuser. A member of a role has the role's access. A member with NOINHERIT has none. The first rows are functions
/// whose results disappear within a minute.
///
/// | Cell | The call |
/// |---|---|
/// | `+` | succeeds, and shows what a superuser sees |
/// | `1` | succeeds, and shows only `q` of the two queues |
/// | `2` | succeeds, and shows only the other one of the two queues |
/// | `0` | succeeds, and shows nothing |
/// | `-` | raises 42501: Postgres says that the role may not execute or read it |
/// | `q` | raises 42501 for queue `q` or topic `tq`, with a hint that names the missing grant |
/// | `f` | raises 42501 for the flow of `q`, which another role has made, with such a hint |
/// | `*` | raises 42501 for `'*'`, with such a hint |
/// | `w` | raises 55000, because the function does not fit the queue |
/// | `t` | raises 0A000, because a trigger's function is called in another way |
#[rustfmt::skip]
const TABLE: &str = "
   of q     of other of '*'
   p c o m  p c o m  p c o m  o s | produce, consume, observe, manage; owner, superuser
shows | recent_times()
shows | metric
shows | held_by_dead()
shows | metrics()
acts | enqueue('q')
acts | enqueue_many('q', ARRAY['1']::jsonb[])
acts | enqueue_batch('q', '[{}]')
acts | publish('tq')
acts | publish_many('tq', ARRAY['1']::jsonb[])
acts | route('tq')
-  w - - w  q - - q  w - - w  w w | enqueue_sql('q', 'SELECT 1')
alike | current_job()
acts | enqueue_flow('q')
-  f + - +  q q - q  f + - +  + + | seal({flow})
acts | resolve({flow})
acts | reject({flow}, 'no')
acts | claim('q')
acts | claim_any(ARRAY['q'])
acts | wait('q', '0')
acts | complete({attempt})
acts | complete_many(ARRAY[{attempt}])
acts | fail({attempt}, 'boom')
acts | fail_many(ARRAY[{attempt}], 'boom')
acts | release({attempt})
acts | throttle('q', '0')
acts | release_many(ARRAY[{attempt}])
acts | end_batch(json_build_array(json_build_object('complete', json_build_object('id', {attempt}))))
acts | extend({attempt})
acts | extend_many(ARRAY[{attempt}])
acts | progress({attempt}, '1')
acts | charge({attempt}, 1)
acts | suspend({attempt}, until => 'epoch')
acts | step({attempt}, 'a')
acts | step_done({attempt}, 'a')
acts | inputs({attempt})
acts | job_steps({job})
acts | advance({staged}, 'last')
shows | jobs
shows | attempts
shows | flows
shows | queues
shows | stats
-  - - 0 0  - - 0 0  - - + +  + + | storage
shows | topics
shows | bindings
shows | throughput
shows | workers
shows | errors
alike | executors
shows | schedules
tells | job({job})
acts | await({job}, '0')
tells | job_attempts({job})
tells | members({flow})
acts | upcoming('planned')
acts | groups('q')
shows | throughput_by()
alike | text_length('1')
shows | activity()
shows | activity_part
shows | minutes_now()
shows | error_groups()
shows | load()
tells | search('q', '$.job_id')
-  - - * *  - - * *  - - + +  + + | doctor()
acts | create('fresh')
acts | create_topic('fresh')
acts | bind('tq', 'q')
acts | unbind('tq', 'q')
acts | alter('q')
acts | pause('q')
acts | resume('q')
acts | purge('q')
acts | weigh('q', 'a', 2)
acts | cancel_many(ARRAY[{job}])
acts | retry_many(ARRAY[{job}])
acts | reprioritize_many(ARRAY[{job}], 1)
acts | reschedule_many(ARRAY[{job}], now())
acts | drop('q', force => true)
acts | cancel({job})
acts | retry({job})
acts | reprioritize({job}, 1)
acts | reschedule({job}, now())
acts | forget({ended})
acts | schedule('fresh', 'q', every => '1 day')
acts | unschedule('planned')
acts | pause_schedule('planned')
acts | resume_schedule('planned')
acts | run_schedule('planned')
acts | grant('q', current_user::text, 'observe')
acts | revoke('q', current_user::text, 'observe')
acts | maintain()
acts | adopt()
acts | check()
shows | throughput_part
tells | payload_of({attempt})
tells | lease_expires_at({attempt})
alike | attempt_state('c', true, false, now(), false)
alike | job_state('c', true, false, now(), false)
shows | live()
shows | running_now()
shows | claims_now()
alike | sleepers_now()
alike | executors_now()
alike | executor_counts()
alike | bridge_sources('a')
shows | tallies()
shows | topic_counts()
shows | throughput_live()
shows | firings()
alike | memory_use()
alike | lanes_now()
alike | segments_now()
alike | bytes_of('queue_internal.queue')
alike | topics_now()
alike | schedules_now()
tells | may_observe(1)
alike | times(ARRAY[]::bytea[])
acts | life
acts | job_life
acts | observed
acts | observed_now
acts | life_of({job})
acts | assert_loaded()
acts | derive_grants()
acts | kick()
-  - - - -  - - - -  - - - -  t t | foreign_write()
-  - - - -  - - - -  - - - -  t t | read_only()
-  - - - -  - - - -  - - - -  + + | close('none')
";

/// Returns the privileges that give access to each function and view, from the SQL files.
fn privileges() -> BTreeMap<String, Vec<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql/schema");
    let mut found = BTreeMap::new();
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let mut words = None;
        for line in text.lines() {
            if let Some(list) = line.strip_prefix("-- For: ") {
                words = Some(list.trim_end_matches('.').split(", ").map(str::to_owned).collect());
            } else if let Some(name) = line.strip_prefix("CREATE ").and_then(|made| made.split(['.', '(', ' ']).nth(2))
                && let Some(words) = words.take()
            {
                found.insert(name.to_owned(), words);
            }
        }
    }
    assert!(found.len() > 80, "{found:?}");
    found
}

/// Returns the cells that a word stands for with these privileges. Other cells stay as they are.
fn meant(cells: &str, privileges: &[String]) -> String {
    let marks = match cells {
        "acts" => ['+', 'q', '+'],
        "shows" => ['1', '2', '+'],
        "tells" => ['+', '0', '+'],
        "alike" => ['+', '+', '+'],
        _ => return cells.to_owned(),
    };
    let mut text = "-".to_owned();
    for (place, mark) in marks.into_iter().enumerate() {
        text.push(' ');
        for holder in ["produce", "consume", "observe", "manage"] {
            let opens = |privilege: &String| match holder {
                // A manager may do everything except what needs management of all queues.
                "manage" => place == 2 || privilege != "manage '*'",
                _ => privilege == holder,
            };
            text.extend([' ', if privileges.iter().any(opens) { mark } else { '-' }]);
        }
    }
    text + "  + +"
}

/// The number of rows of each queue that a call shows. `"*"` counts rows of all queues together, `""` rows of none.
type Shown = BTreeMap<String, usize>;

/// The queue to which each number in a row belongs.
struct Numbers {
    lanes: Vec<(String, String)>,
    schedules: Vec<(String, String)>,
    topics: Vec<(String, String)>,
}

impl Numbers {
    fn read(client: &mut Client) -> Self {
        let mut pairs = |table: &str, number: &str| {
            let sql = format!(
                "SELECT {number}::text, queue_name FROM queue_internal.{table}
                 JOIN queue_internal.queue USING (queue_id)"
            );
            client.rows(&sql)
        };
        let (lanes, schedules) = (pairs("lane", "lane"), pairs("schedule", "schedule_id"));
        let sql = "SELECT topic_id::text, substr(topic_name, 2) FROM queue_internal.topic";
        let topics = client.rows(sql);
        Self { lanes, schedules, topics }
    }

    /// Returns what a call by this role shows.
    fn call(&self, client: &mut Client, role: &str, sql: &str) -> Result<Shown, Failure> {
        // A procedure that holds nothing while it sleeps cannot run in a transaction block.
        let (begin, end) = if sql.starts_with("CALL") { ("", "") } else { ("BEGIN", "ROLLBACK") };
        client.run(&format!("SET ROLE {role}; {begin}"));
        let answer = client.simple_query(sql).map_err(|e| Failure::from(&e));
        client.run(&format!("{end}; RESET ROLE"));
        let mut shown = Shown::new();
        for queue in answer?.iter().filter_map(|message| self.queue_of(message)) {
            *shown.entry(queue).or_default() += 1;
        }
        Ok(shown)
    }

    /// Returns the queue of a row. `None` for a row whose only value is false or missing.
    fn queue_of(&self, message: &SimpleQueryMessage) -> Option<String> {
        let SimpleQueryMessage::Row(row) = message else { return None };
        let find = |pairs: &[(String, String)], number: &str| {
            let found = pairs.iter().find(|(n, _)| n == number);
            found.map(|(_, queue)| queue.clone()).expect("a number of one of the queues")
        };
        let mut queue = None;
        for (n, column) in row.columns().iter().enumerate() {
            let Some(value) = row.get(n).filter(|value| *value != "f") else { continue };
            match column.name() {
                "queue_name" => queue = Some(value.to_owned()),
                "lane" => queue = Some(find(&self.lanes, value)),
                "topic_name" => queue = Some(value[1..].to_owned()),
                "topic_id" => queue = Some(find(&self.topics, value)),
                "schedule_id" => queue = Some(find(&self.schedules, value)),
                "labels" if value.contains("\"queue\": \"other\"") => queue = Some("other".to_owned()),
                "labels" if value.contains("\"check\":") => queue = Some("*".to_owned()),
                "labels" if value.contains("\"topic\": \"tother\"") => queue = Some("other".to_owned()),
                "labels" if value.contains("\"topic\": \"tq\"") => queue = Some("q".to_owned()),
                "labels" if value.contains("\"queue\": \"q\"") => queue = Some("q".to_owned()),
                _ => {
                    queue.get_or_insert_default();
                }
            }
        }
        queue
    }
}

/// Returns the table's cell for this answer. `all` is what a superuser is shown.
fn cell(role: &str, answer: &Result<Shown, Failure>, all: &Shown) -> Option<char> {
    match answer {
        Ok(shown) if shown == all => Some('+'),
        Ok(shown) => {
            let without = |queue: &str| -> Shown {
                all.iter()
                    .filter(|(of, _)| ![queue, "*"].contains(&of.as_str()))
                    .map(|(of, rows)| (of.clone(), *rows))
                    .collect()
            };
            let cells = [(Shown::new(), '0'), (without("other"), '1'), (without("q"), '2')];
            cells.iter().find(|(like, _)| like == shown).map(|(_, cell)| *cell)
        }
        Err(failure) if failure.code == "42501" => {
            let is_about = |kind: &str, name: &str| {
                failure.message == format!("permission denied for {kind} \"{name}\"")
                    && failure.hint.contains(&format!("queue.grant('{name}', '{role}', "))
            };
            let is_of = |queue: &str| is_about("queue", queue) || is_about("topic", &format!("t{queue}"));
            let is_postgres_s = ["schema", "function", "procedure", "view"]
                .iter()
                .any(|kind| failure.message.starts_with(&format!("permission denied for {kind} ")));
            let is_of_flow = failure.message.starts_with("permission denied for the flow of job ")
                && failure.hint.contains(&format!("queue.grant('q', '{role}', 'consume')"));
            let cells = [(is_of("q"), 'q'), (is_of_flow, 'f'), (is_of("*"), '*'), (is_postgres_s, '-')];
            cells.iter().find(|(is_so, _)| *is_so).map(|(_, cell)| *cell)
        }
        Err(failure) if failure.code == "55000" => Some('w'),
        Err(failure) => (failure.code == "0A000").then_some('t'),
    }
}

/// Makes the kinds of roles in the order of the columns.
fn holders(client: &mut Client, roles: &Roles, owner: String) -> Vec<String> {
    let mut holders = vec![roles.make("nobody", "")];
    for (place, name) in [("q", "q"), ("other", "other"), ("*", "all")] {
        for privilege in ["produce", "consume", "observe", "manage"] {
            let role = roles.make(&format!("{privilege}_{name}"), "");
            grant(client, place, &role, privilege);
            if place != "*" {
                grant(client, &format!("t{place}"), &role, privilege);
            }
            holders.push(role);
        }
    }
    holders.extend([owner, "postgres".to_owned()]);
    holders
}

/// Gives both queues running, waiting, dead and held jobs, and a schedule. The returned function fills in the ids of
/// `q`.
fn use_queues(client: &mut Client) -> impl Fn(&str) -> String + use<> {
    client.run("SELECT queue.schedule('planned', 'q', every => '1 year')");
    client.run("SELECT queue.schedule('elsewhere', 'other', every => '1 year')");
    client.run("SELECT queue.enqueue_many('other', ARRAY['1', '2', '3']::jsonb[])");
    let ended = client.claim("other");
    client.run(&format!("SELECT queue.fail({ended}, 'dead of it', fatal => true)"));
    client.claim("other");
    client.run("SELECT queue.enqueue('q', stage => 'last'), queue.enqueue('q', stage => 'last'), queue.enqueue('q')");
    let (attempt, ended) = (client.claim("q"), client.claim("q"));
    let staged = client.claim("q");
    client.run(&format!("SELECT queue.fail({ended}, 'dead of it', fatal => true)"));
    let ended: i64 = client.value("SELECT job_id FROM queue.jobs WHERE state = 'dead' AND queue_name = 'q'");
    // In each queue a job waits for a dead one.
    client.run("SELECT queue.enqueue(queue_name, after => ARRAY[job_id]) FROM queue.jobs WHERE state = 'dead'");
    let job = client.enqueue("q");
    client.run("SELECT queue.enqueue_flow('other', open => true)");
    let flow: i64 = client.value("SELECT queue.enqueue_flow('q', '[{}]', open => true)");
    client.run("SELECT queue.publish('tq'), queue.publish('tother')");
    move |call| {
        call.replace("{attempt}", &attempt.to_string())
            .replace("{staged}", &staged.to_string())
            .replace("{job}", &job.to_string())
            .replace("{flow}", &flow.to_string())
            .replace("{ended}", &ended.to_string())
    }
}

#[test]
fn every_function_and_view_asks_for_its_privilege() {
    let database = Database::without_worker();
    let mut client = database.connect();
    let roles = Roles::new(&database);
    // A superuser must create the extension. Its owner need not be one later.
    let owner = roles.make("owner", "SUPERUSER");
    client.run(&format!("DROP EXTENSION pg_queue; SET ROLE {owner}; CREATE EXTENSION pg_queue; RESET ROLE"));
    client.run(&format!("ALTER ROLE {owner} NOSUPERUSER"));
    create(&mut client, "q", "stages => '{first, last}', rate_limit => 1000000, rate_cost => '$.headers.tokens'");
    create(&mut client, "other", "");
    client.run("SELECT queue.create_topic('tq'), queue.create_topic('tother')");
    client.run("SELECT queue.bind('tq', 'q'), queue.bind('tother', 'other')");
    let holders = holders(&mut client, &roles, owner);
    // A member of a superuser is no superuser.
    let members: Vec<[String; 2]> = holders[..holders.len() - 1]
        .iter()
        .enumerate()
        .map(|(n, role)| {
            let make =
                |kind: &str, inherit: &str| roles.make(&format!("{kind}{n}"), &format!("{inherit} IN ROLE {role}"));
            [make("member", "INHERIT"), make("stranger", "NOINHERIT")]
        })
        .collect();
    let fill = use_queues(&mut client);
    // Once memory has counted, it counts later events by the minute.
    client.maintain_until("(SELECT bool_and(is_counted) FROM queue_internal.tallies())");
    client.run("SELECT queue.enqueue('q'), queue.enqueue('other')");
    let numbers = Numbers::read(&mut client);

    // No role may call the internal functions. If it could, they would still show only what the role may see.
    let internal: BTreeSet<String> = client
        .column(
            "SELECT proname::text FROM pg_proc WHERE pronamespace = 'queue_internal'::regnamespace
             UNION ALL SELECT viewname FROM pg_views WHERE schemaname = 'queue_internal'",
        )
        .into_iter()
        .collect();
    let schema_of = |name: &str| if internal.contains(name) { "queue_internal" } else { "queue" };
    let let_in = "SELECT FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
                  WHERE n.nspname = 'queue_internal' AND a.grantee <> n.nspowner";
    assert_eq!(client.count(let_in), 0);
    client.run("GRANT USAGE ON SCHEMA queue_internal TO PUBLIC");

    let privileges = privileges();
    let (mut found, mut wrong, mut named) = (String::new(), Vec::new(), BTreeSet::new());
    for line in TABLE.lines().skip(3) {
        let (expected, what) = line.split_once(" | ").expect("cells and a call");
        let name = what.split('(').next().unwrap_or_default();
        let expected = meant(expected, privileges.get(name).map_or(&[], Vec::as_slice));
        assert!(named.insert(name.to_owned()), "queue.{name} has two rows");
        let sql = match name {
            "wait" | "await" => format!("CALL queue.{}", fill(what)),
            // In FROM, Postgres refuses these functions before it checks privileges.
            "foreign_write" | "read_only" => format!("SELECT queue_internal.{what}"),
            _ => format!("SELECT * FROM {}.{}", schema_of(name), fill(what)),
        };
        let all = numbers.call(&mut client, "postgres", &sql).unwrap_or_default();
        let mut cell_of = |client: &mut Client, role: &str| {
            let answer = numbers.call(client, role, &sql);
            cell(role, &answer, &all).unwrap_or_else(|| {
                wrong.push(format!("{sql} by {role}: {answer:?}, a superuser: {all:?}"));
                '?'
            })
        };
        let cells: Vec<char> = holders.iter().map(|role| cell_of(&mut client, role)).collect();
        let of_members: Vec<[char; 2]> =
            members.iter().map(|pair| [cell_of(&mut client, &pair[0]), cell_of(&mut client, &pair[1])]).collect();
        for ((pair, found), holder) in members.iter().zip(&of_members).zip(&cells) {
            if *found != [*holder, cells[0]] {
                wrong.push(format!("{sql} by {pair:?}: {found:?}"));
            }
        }
        // The catalogs say the same about EXECUTE and SELECT.
        let right = if what.contains('(') {
            let of = format!("pronamespace = '{}'::regnamespace AND proname = '{name}'", schema_of(name));
            format!("has_function_privilege($1, oid, 'EXECUTE') FROM pg_proc WHERE {of}")
        } else {
            format!("has_table_privilege($1, '{}.{name}', 'SELECT')", schema_of(name))
        };
        for (role, cell) in holders.iter().zip(&cells) {
            let may: bool = client.query_one(&format!("SELECT {right}"), &[role]).unwrap().get(0);
            if may != (*cell != '-') {
                wrong.push(format!("{role} has the right to queue.{name}: {may}"));
            }
        }
        let gap = |n: usize| if [1, 5, 9, 13].contains(&n) { "  " } else { " " };
        let text: String = cells.iter().enumerate().map(|(n, cell)| format!("{}{cell}", gap(n))).collect();
        found += &format!("{} | {what}\n", text.trim());
        if text.trim() != expected {
            wrong.push(format!("queue.{what} has other cells"));
        }
    }
    let there = client.column::<String>(
        "SELECT proname::text FROM pg_proc WHERE pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
         UNION ALL SELECT relname FROM pg_class
         WHERE relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND relkind IN ('v', 'm')",
    );
    let there: BTreeSet<String> = there.into_iter().collect();
    wrong.extend(there.symmetric_difference(&named).map(|name| format!("queue.{name}: not in both table and catalog")));
    assert!(wrong.is_empty(), "{}\n\nfound:\n\n{found}", wrong.join("\n"));
}
