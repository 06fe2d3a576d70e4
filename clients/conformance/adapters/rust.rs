//! The adapter for clients/rust: speaks the protocol of ../README.md.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::io::{BufRead as _, Write as _};
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pg_queue_client::{
    Advance, AesGcm, Batch, Done, Each, Failure, Fatal, Flow, Job, OnUnknown, Options, Publish, RetryIn, Snooze, Step,
    Stopper, Suspend, Task, Throttle, Upon, Worker,
};
use serde_json::{Value, json};
use tokio_postgres::{Client, GenericClient, NoTls};

fn say(message: Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{message}").and_then(|()| out.flush());
}

struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.target() == "pg_queue" {
            say(json!({"event": "log", "text": record.args().to_string()}));
        }
    }

    fn flush(&self) {}
}

type Gates = Arc<Mutex<HashSet<String>>>;

static RUNNING: LazyLock<Mutex<HashMap<String, (Stopper, Gates)>>> = LazyLock::new(Mutex::default);

fn seconds(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().unwrap_or_default())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn integer(value: &Value) -> i32 {
    value.as_i64().and_then(|value| value.try_into().ok()).unwrap_or_default()
}

fn ids(value: &Value) -> Vec<i64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_i64).collect()
}

fn upon(value: &Value) -> Upon {
    match value.as_str() {
        Some("completed") => Upon::Completed,
        Some("any") => Upon::Any,
        Some("failed") => Upon::Failed,
        Some("overdue") => Upon::Overdue,
        _ => Upon::Ended,
    }
}

/// One call of a handler, with a job or a batch.
struct Handling<'a> {
    name: &'a str,
    gates: &'a Gates,
    jobs: &'a [Job],
    batch: Option<&'a Batch>,
    step: Mutex<Value>,
    inputs: Mutex<Value>,
    /// True if the handler's transaction has already completed the job.
    is_completed: Mutex<bool>,
}

/// How the actions of a handler end it.
enum End {
    One(Done),
    Each(Vec<Result<Done, Failure>>),
}

type Running<'a> = Pin<Box<dyn Future<Output = Result<Option<End>, Failure>> + Send + 'a>>;

/// Says why a handler was stopped, when it is dropped before its gate opens.
struct Waiting<'a>(&'a Handling<'a>, bool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.1 {
            let reason = self.0.jobs[0].stop_reason().map(|reason| reason.to_string());
            say(json!({"event": "stopped", "worker": self.0.name, "reason": reason}));
        }
    }
}

impl<'a> Handling<'a> {
    fn new(name: &'a str, gates: &'a Gates, jobs: &'a [Job], batch: Option<&'a Batch>) -> Self {
        let (step, inputs, is_completed) = Default::default();
        Self { name, gates, jobs, batch, step, inputs, is_completed }
    }

    fn field(&self, name: &str) -> Value {
        let job = &self.jobs[0];
        match name {
            "id" => json!(job.id),
            "job_id" => json!(job.job_id),
            "queue" => json!(&*job.queue),
            "stage" => json!(job.stage),
            "payload" => job.payload.clone(),
            "headers" => json!(job.headers),
            "attempt" => json!(job.attempt),
            "max_attempts" => json!(job.max_attempts),
            "priority" => json!(job.priority),
            "unique_key" => json!(job.unique_key),
            "group_key" => json!(job.group_key),
            "progress" => json!(job.progress),
            "last_error" => json!(job.last_error),
            "traceparent" => json!(job.traceparent()),
            "size" => json!(self.jobs.len()),
            "step" => self.step.lock().unwrap().clone(),
            "inputs" => self.inputs.lock().unwrap().clone(),
            _ => panic!("a job has no {name}"),
        }
    }

    fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(name) if name.starts_with('$') => self.field(&name[1..]),
            Value::Array(values) => values.iter().map(|value| self.fill(value)).collect(),
            Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), self.fill(value))).collect(),
            other => other.clone(),
        }
    }

    /// Runs the actions until one of them ends the handler.
    fn all<'b>(&'b self, actions: &'b Value, client: Option<&'b Client>) -> Running<'b> {
        Box::pin(async move {
            for action in actions.as_array().into_iter().flatten() {
                let action = action.as_object().expect("an action is an object");
                let conditions = action.get("if").and_then(Value::as_object);
                if conditions.is_none_or(|all| all.iter().all(|(name, value)| self.field(name) == *value)) {
                    let (name, argument) = action
                        .iter()
                        .find(|(name, _)| NAMES.split(' ').any(|known| known == *name))
                        .expect("an action");
                    if let Some(end) = self.perform(name, argument, action, client).await? {
                        return Ok(Some(end));
                    }
                }
            }
            Ok(None)
        })
    }

    async fn perform(
        &self,
        name: &str,
        argument: &Value,
        action: &serde_json::Map<String, Value>,
        client: Option<&Client>,
    ) -> Result<Option<End>, Failure> {
        let null = Value::Null;
        let more = |name: &str| action.get(name).unwrap_or(&null);
        match name {
            "transaction" => return self.transaction(argument, more("result"), action.get("else")).await,
            "each" => {
                let mut each = Vec::new();
                for n in 0..self.jobs.len() {
                    let one = Handling::new(self.name, self.gates, &self.jobs[n..=n], None);
                    each.push(one.all(argument, None).await.map(done));
                }
                return Ok(Some(End::Each(each)));
            }
            _ => {}
        }
        let value = self.fill(argument);
        match name {
            "return" => match value {
                Value::Array(answers) if self.batch.is_some() => {
                    return Ok(Some(End::Each(answers.into_iter().map(|one| Ok(one.into())).collect())));
                }
                value => return Ok(Some(End::One(value.into()))),
            },
            "fail" => {
                let cause = more("cause").as_str().map(|cause| std::io::Error::other(cause.to_owned()));
                return Err(Failed(text(&value), cause).into());
            }
            "fail_unreadably" => std::panic::panic_any(7),
            "fatal" => return Err(Fatal(text(&value)).into()),
            "retry_in" => return Err(RetryIn(seconds(&value), text(more("error"))).into()),
            "snooze" => return Err(Snooze(seconds(&value)).into()),
            "throttle" => {
                let group = more("group").as_bool().unwrap_or_default();
                let asked = value.as_str().map(|header| Throttle::retry_after(header).expect("a header"));
                let Throttle { delay, .. } = asked.unwrap_or_else(|| Throttle { delay: seconds(&value), group });
                return Err(Throttle { delay, group }.into());
            }
            "advance" => {
                let payload = value.get("payload").cloned();
                let stage = value["stage"].as_str().map(str::to_owned);
                return Ok(Some(End::One(Advance { stage, payload, delay: seconds(&value["delay"]) }.into())));
            }
            "suspend" => {
                let upon = value.get("upon").map(upon);
                let until = value.get("until").and_then(Value::as_f64);
                let until = until.map(|seconds| SystemTime::now() + Duration::from_secs_f64(seconds));
                let progress = value.get("progress").cloned();
                let suspend = Suspend { after: ids(&value["after"]), upon, progress, until };
                return Ok(Some(End::One(suspend.into())));
            }
            "note" => say(json!({"event": "note", "worker": self.name, "value": value})),
            "wait" => self.wait(&text(&value), more("deaf") == &json!(true)).await,
            "progress" => self.jobs[0].save_progress(value).await?,
            "charge" => self.jobs[0].charge(value.as_i64().unwrap_or_default() as i32).await?,
            "read_inputs" => {
                let mut found = self.jobs[0].inputs().await?;
                found.sort_by_key(|input| input.job_id);
                let inputs = found.into_iter().map(|one| {
                    json!({
                        "queue": one.queue,
                        "task": one.task,
                        "state": one.state,
                        "result": one.result,
                        "error": one.error,
                    })
                });
                *self.inputs.lock().unwrap() = inputs.collect();
            }
            "step" => {
                let result = match self.jobs[0].step::<Value>(&text(&value)).await? {
                    Step::Done(result) => result,
                    Step::Open(step) => {
                        self.all(more("do"), Some(&step)).await?;
                        step.done(self.fill(more("result"))).await?
                    }
                };
                *self.step.lock().unwrap() = result;
            }
            "complete" => {
                let sql = format!("SELECT queue.complete({})", self.jobs[0].id);
                client.expect("a transaction").batch_execute(&sql).await?;
                *self.is_completed.lock().unwrap() = true;
            }
            "sql" => {
                for job in self.jobs {
                    let values = [("{job_id}", job.job_id), ("{id}", job.id), ("{attempt}", job.attempt.into())];
                    let sql =
                        values.iter().fold(text(&value), |sql, (name, value)| sql.replace(name, &value.to_string()));
                    client.expect("a transaction").batch_execute(&sql).await?;
                }
            }
            _ => {
                let payloads = value["payloads"].as_array().cloned().unwrap_or_default();
                let (queue, options) = (text(&value["queue"]), options(&value["options"]));
                pg_queue_client::enqueue_many(client.expect("a transaction"), &queue, payloads, options).await?;
            }
        }
        Ok(None)
    }

    async fn wait(&self, gate: &str, is_deaf: bool) {
        let is_open = || self.gates.lock().unwrap().contains(gate);
        let mut waiting = Waiting(self, false);
        while !is_open() {
            match is_deaf {
                true => tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(5))),
                false => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        waiting.1 = true;
    }

    async fn transaction(
        &self,
        actions: &Value,
        result: &Value,
        otherwise: Option<&Value>,
    ) -> Result<Option<End>, Failure> {
        match (self.within(actions, result).await, otherwise) {
            (Err(Failure::Retry { .. }), Some(actions)) => self.all(actions, None).await,
            (ended, _) => ended.map(|()| None),
        }
    }

    async fn within(&self, actions: &Value, result: &Value) -> Result<(), Failure> {
        if let Some(batch) = self.batch {
            let transaction = batch.transaction().await?;
            self.all(actions, Some(&transaction)).await?;
            return transaction.complete().await;
        }
        let job = &self.jobs[0];
        let transaction = job.transaction().await?;
        match self.all(actions, Some(&transaction)).await? {
            Some(End::One(Done::Advance(advance))) => transaction.advance(advance).await?,
            Some(End::One(Done::Suspend(suspend))) => transaction.suspend(suspend).await?,
            _ if *self.is_completed.lock().unwrap() => {
                transaction.commit().await?;
                job.set_ended();
            }
            _ => transaction.complete(self.fill(result)).await?,
        }
        Ok(())
    }
}

const NAMES: &str = "transaction each return fail fail_unreadably fatal retry_in snooze throttle advance suspend note \
    wait progress charge \
    read_inputs step complete enqueue sql";

fn done(end: Option<End>) -> Done {
    match end {
        Some(End::One(done)) => done,
        _ => ().into(),
    }
}

fn options(given: &Value) -> Options {
    given.as_object().into_iter().flatten().fold(Options::new(), |options, (name, value)| {
        let time = || SystemTime::UNIX_EPOCH + seconds(value);
        match &**name {
            "priority" => options.priority(integer(value)),
            "delay" => options.delay(seconds(value)),
            "run_at" => options.run_at(time()),
            "unique_key" => options.unique_key(text(value)),
            "on_duplicate" if value == "replace" => options.or_replace(),
            "on_duplicate" if value == "rerun" => options.or_rerun(),
            "on_duplicate" if value == "error" => options.or_error(),
            "version" => options.version(time()),
            "unique_for" => options.unique_for(seconds(value)),
            "start_by" => options.start_by(time()),
            "start_within" => options.start_within(seconds(value)),
            "max_delay" => options.max_delay(seconds(value)),
            "group_key" => options.group_key(text(value)),
            "stage" => options.stage(text(value)),
            "max_attempts" => options.max_attempts(integer(value)),
            "lease" => options.lease(seconds(value)),
            "headers" => options.headers(value.clone()),
            "codec" => options.codec(codec(value)),
            "after" => options.after(ids(value)),
            "upon" => options.upon(upon(value)),
            "flow" => options.flow(value.as_i64().unwrap_or_default()),
            "task" => options.task(text(value)),
            _ => options,
        }
    })
}

fn codec(given: &Value) -> AesGcm {
    let key = |text: &Value| {
        let bytes = STANDARD.decode(self::text(text)).expect("base64");
        <[u8; 32]>::try_from(bytes).expect("a key of 32 bytes")
    };
    let keys = given["keys"].as_object().expect("keys");
    let current = text(&given["current"]);
    let codec = AesGcm::new(&current, &key(&keys[&current]));
    let codec = keys.iter().fold(codec, |codec, (id, text)| codec.key(id, &key(text)));
    let accepted = given["accepts"].as_object().into_iter().flatten();
    let codec = accepted
        .fold(codec, |codec, (queue, others)| codec.accepts(queue, others.as_array().into_iter().flatten().map(text)));
    if given["strict"] == json!(true) { codec.strict() } else { codec }
}

fn config(connection: &Value) -> String {
    let hosts: Vec<String> = connection.as_array().into_iter().flatten().map(|one| text(&one["host"])).collect();
    let first = connection[0].as_object().expect("a host");
    let more = first.iter().filter(|(name, _)| *name != "host").map(|(name, value)| format!(" {name}={}", text(value)));
    format!("host={}{}", hosts.join(","), more.collect::<String>())
}

/// An error with a cause.
#[derive(Debug)]
struct Failed(String, Option<std::io::Error>);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.1.as_ref().map(|cause| cause as _)
    }
}

async fn start(call: Value) -> Result<(), String> {
    let name: Arc<str> = text(&call["worker"]).into();
    let gates = Gates::default();
    let mut worker = Worker::new(&config(&call["connection"])).map_err(|error| error.to_string())?;
    if call["effects"].is_array() {
        worker = worker.effects(&config(&call["effects"])).map_err(|error| error.to_string())?;
    }
    for (option, value) in call["options"].as_object().into_iter().flatten() {
        let count = || usize::try_from(value.as_u64().unwrap_or_default()).unwrap_or_default();
        worker = match &**option {
            "concurrency" => worker.concurrency(count()),
            "prefetch" => worker.prefetch(count()),
            "wait" => worker.wait(seconds(value)),
            "linger" => worker.linger(seconds(value)),
            "heartbeat" => worker.heartbeat(seconds(value)),
            "lease" => worker.lease(seconds(value)),
            "disconnect" if value.is_null() => worker.disconnect(None),
            "disconnect" => worker.disconnect(seconds(value)),
            "shutdown_timeout" => worker.shutdown_timeout(seconds(value)),
            "stall_timeout" => worker.stall_timeout(seconds(value)),
            "timeout" if value.is_null() => worker,
            "timeout" => worker.timeout(seconds(value)),
            "max_connections" => worker.max_connections(count()),
            // Rust errors have no trace, so the worker has no such option.
            "trace" => worker,
            "on_unknown" if text(value) == "fail" => worker.on_unknown(OnUnknown::Fail),
            "on_unknown" if text(value) == "release" => worker.on_unknown(OnUnknown::Release),
            "name" => worker.name(text(value)),
            "codec" => worker.codec(codec(value)),
            other => return Err(format!("a worker has no option {other}")),
        };
    }
    for handler in call["handlers"].as_array().into_iter().flatten() {
        let (queue, actions) = (text(&handler["queue"]), Arc::new(handler["do"].clone()));
        let (name, gates) = (name.clone(), gates.clone());
        if !handler["timeout"].is_null() {
            worker = worker.queue_timeout(&queue, seconds(&handler["timeout"]));
        }
        worker = if let Some(size) = handler["batch"].as_u64() {
            let size = usize::try_from(size).unwrap_or_default();
            let handle = move |batch: Batch| {
                let (name, gates, actions) = (name.clone(), gates.clone(), actions.clone());
                async move {
                    Ok(match Handling::new(&name, &gates, &batch, Some(&batch)).all(&actions, None).await? {
                        Some(End::Each(each)) => Each::One(each),
                        _ => Each::All,
                    })
                }
            };
            match handler["stage"].as_str() {
                Some(stage) => worker.stage_batch_handler(&queue, stage, size, handle),
                None => worker.batch_handler(&queue, size, handle),
            }
        } else {
            let handle = move |job: Job| {
                let (name, gates, actions) = (name.clone(), gates.clone(), actions.clone());
                async move {
                    Handling::new(&name, &gates, std::slice::from_ref(&job), None).all(&actions, None).await.map(done)
                }
            };
            match handler["stage"].as_str() {
                Some(stage) => worker.stage_handler(&queue, stage, handle),
                None => worker.handler(&queue, handle),
            }
        };
    }
    let told = name.clone();
    let worker = worker.on_event(move |event| {
        say(json!({"event": "worker", "worker": &*told, "kind": format!("{:?}", event.kind).to_lowercase(),
            "queue": event.queue, "job_id": event.job_id, "attempt_id": event.attempt_id, "attempt": event.attempt,
            "error": event.error}));
    });
    RUNNING.lock().unwrap().insert(name.to_string(), (worker.stopper(), gates));
    let mode = text(&call["mode"]);
    tokio::spawn(async move {
        let ended = match &*mode {
            "drain" => worker.drain().await.map(drop),
            "run" => worker.run().await,
            _ => worker.serve().await,
        };
        say(json!({"event": "ended", "worker": &*name, "error": ended.err().map(|error| error.to_string())}));
        if mode == "run" {
            std::process::exit(0); // A worker that handles signals ends with its process.
        }
    });
    Ok(())
}

async fn produce<C: GenericClient + Sync>(client: &C, call: &Value) -> Result<Value, tokio_postgres::Error> {
    let (queue, options) = (text(&call["queue"]), options(&call["options"]));
    let payload = call.get("payload").cloned().unwrap_or_else(|| json!({}));
    let flow = call["flow"].as_i64().unwrap_or_default();
    Ok(match call["call"].as_str() {
        Some("enqueue") => match call["payloads"].as_array() {
            Some(payloads) => json!(pg_queue_client::enqueue_many(client, &queue, payloads, options).await?),
            None => json!(pg_queue_client::enqueue(client, &queue, payload, options).await?),
        },
        Some("publish") => {
            let (key, mandatory) = (text(&call["options"]["key"]), call["options"]["mandatory"] == json!(true));
            let how = Publish { key, mandatory, options };
            let jobs: BTreeMap<String, i64> =
                pg_queue_client::publish(client, &text(&call["topic"]), payload, how).await?;
            json!(jobs)
        }
        Some("enqueue_flow") => {
            let is = |name: &str| call["flow"][name] == json!(true);
            let tasks = call["tasks"].as_array().into_iter().flatten().map(task).collect();
            let (runs, open, fail_fast) = (is("runs"), is("open"), is("fail_fast"));
            let flow = Flow { tasks, runs, open, fail_fast, options: self::options(&call["flow"]) };
            json!(pg_queue_client::enqueue_flow(client, &queue, payload, flow).await?)
        }
        Some("seal") => json!(pg_queue_client::seal(client, flow).await?),
        Some("resolve") => json!(pg_queue_client::resolve(client, flow, &call["result"]).await?),
        _ => json!(pg_queue_client::reject(client, flow, &text(&call["error"])).await?),
    })
}

fn task(fields: &Value) -> Task {
    let after = fields["after"].as_array().into_iter().flatten().map(text);
    let mut own = fields.clone();
    // In a task, `after` and `task` are names of tasks and not options of a job.
    own.as_object_mut().into_iter().for_each(|own| own.retain(|name, _| name != "after" && name != "task"));
    let task = Task::new(text(&fields["task"])).after(after).options(options(&own));
    let task = task.payload(fields.get("payload").cloned().unwrap_or_else(|| json!({})));
    if fields["queue"].is_string() { task.queue(text(&fields["queue"])) } else { task }
}

async fn produced(call: &Value) -> Result<Value, tokio_postgres::Error> {
    let (mut client, connection) = tokio_postgres::connect(&config(&call["connection"]), NoTls).await?;
    tokio::spawn(connection);
    let transaction = client.transaction().await?;
    let result = produce(&transaction, call).await?;
    if call["rollback"] == json!(true) {
        transaction.rollback().await?
    } else {
        transaction.commit().await?
    }
    Ok(result)
}

async fn answer(call: Value) {
    let id = call["id"].clone();
    let find = || RUNNING.lock().unwrap().get(&text(&call["worker"])).cloned();
    let answer = match call["call"].as_str() {
        Some("start") => match start(call).await {
            Ok(()) => json!({"id": id, "result": null}),
            Err(error) => json!({"id": id, "error": error}),
        },
        Some("stop") => {
            find().expect("a worker").0.stop();
            json!({"id": id, "result": null})
        }
        Some("go") => {
            find().expect("a worker").1.lock().unwrap().insert(text(&call["gate"]));
            json!({"id": id, "result": null})
        }
        _ => match produced(&call).await {
            Ok(result) => json!({"id": id, "result": result}),
            Err(error) => {
                json!({"id": id, "error": error.to_string(), "sqlstate": error.code().map(|code| code.code())})
            }
        },
    };
    say(answer);
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    log::set_logger(&Log).expect("the first logger");
    log::set_max_level(log::LevelFilter::Info);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_all().build().expect("a runtime");
    say(json!({"event": "hello", "has": ["deaf"]}));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let call: Value = serde_json::from_str(&line).expect("a call");
        // These calls run in turn, because a worker must start before it is stopped. The others ask the server and run
        // at the same time.
        match call["call"].as_str() {
            Some("start" | "stop" | "go") => runtime.block_on(answer(call)),
            _ => drop(runtime.spawn(answer(call))),
        }
    }
    std::process::exit(0);
}
