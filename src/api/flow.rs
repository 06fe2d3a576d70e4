//! `queue.enqueue_flow`, `seal`, `resolve`, `reject`: jobs that wait for their members, or for an event.
//!
//! Not responsible for which roles may add members (`job::flow`), for the end of a flow by a call (`job::end_flow`) or
//! by its members (`duty::release`), nor for reading flows (`view::inputs`).

use std::collections::HashMap;

use pg_queue_core::after::Upon;
use pgrx::pg_sys::Datum;

use crate::api::command::Command;
use crate::api::{self, enqueue, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue::Queue;
use crate::catalog::{queue, run_as};
use crate::error::{Error, Result};
use crate::job::end_flow::{self, End};
use crate::job::enqueue::{self as producing, By};
use crate::job::fail;
use crate::job::given::{Given, Positions};
use crate::job::options::{After, OnDuplicate, Options, OwnFlow};
use crate::pg::datum::text_datum;
use crate::pg::function::{Call, VOID};
use crate::pg::jsonb::{self, Value};
use crate::pg::memory;
use crate::pg::time;
use crate::worker::absence;

sql_function!(pg_queue_enqueue_flow, pg_finfo_pg_queue_enqueue_flow => enqueue_flow);
sql_function!(pg_queue_seal, pg_finfo_pg_queue_seal => seal);
sql_function!(pg_queue_resolve, pg_finfo_pg_queue_resolve => resolve);
sql_function!(pg_queue_reject, pg_finfo_pg_queue_reject => reject);

/// The most tasks of one call.
const MAX_TASKS: usize = 10_000;

/// `queue.enqueue_flow(queue_name, tasks, payload, runs, open, fail_fast, …, command)`: enqueues a flow with named
/// members, and returns its id.
///
/// Errors: as `queue.enqueue`, and those of `Flow::enqueue`.
fn enqueue_flow(call: &Call) -> Result<Option<Datum>> {
    let queue = enqueue::target(call)?;
    let flag = |argument| call.get(argument).unwrap_or(false);
    let flow = Flow {
        tasks: Task::all(call.json_list(args::enqueue_flow::TASKS)?)?,
        payload: call.json(args::enqueue_flow::PAYLOAD)?,
        command: call.get(args::enqueue_flow::COMMAND),
        runs: flag(args::enqueue_flow::RUNS),
        is_open: flag(args::enqueue_flow::OPEN),
        is_fail_fast: flag(args::enqueue_flow::FAIL_FAST),
    };
    let given = Given::of_call(call, &const { Positions::of(args::enqueue_flow::NAMES) })?;
    absence::warn();
    let made = flow.enqueue(&queue, given, time::now_us(), By::Producer, |_, options| Ok(options))?;
    Ok(made.first().map(|&flow| flow.into()))
}

/// What a call gives of a flow, beside the options of its job.
#[derive(Default)]
pub struct Flow {
    pub tasks: Vec<Task>,
    pub payload: Option<Datum>,
    pub command: Option<String>,
    pub runs: bool,
    pub is_open: bool,
    pub is_fail_fast: bool,
}

impl Flow {
    /// Enqueues the flow and its members. Returns the id of the flow, and behind it those of its members, in the order
    /// of the call. If the flow's key was taken, only the id of the job under the key. `identify` gives a job its id:
    /// it gets the job's place among those that are returned.
    ///
    /// Errors: those of `enqueue::produce`; 22023 for tasks that wait for each other in a cycle, or for a task that the
    /// call does not have.
    pub fn enqueue(
        self,
        queue: &Queue,
        mut given: Given,
        now: i64,
        by: By,
        identify: impl Fn(usize, Options) -> Result<Options>,
    ) -> Result<Vec<i64>> {
        // The condition holds for predecessors and for members, so it counts without predecessors, too.
        let upon = given.upon.as_deref().and_then(Upon::parse).unwrap_or_default();
        given.after.get_or_insert_default();
        let mut options = given.check(Some(queue), now)?;
        if upon == Upon::Overdue && options.run_at.is_none() {
            return Err(Error::invalid("upon => 'overdue' needs delay or run_at"));
        }
        let Self { tasks, payload, command, runs, is_open, is_fail_fast } = self;
        if upon == Upon::Any && is_fail_fast {
            return Err(Error::invalid("upon => 'any' cannot be combined with fail_fast")
                .detail("The flow goes on at its first completed member, whichever others die.")
                .hint("Leave out one of the two."));
        }
        options.own_flow = Some(OwnFlow { upon, is_open, runs, is_fail_fast });
        let payload = match command {
            Some(_) if !runs => {
                return Err(Error::invalid("command needs runs => true")
                    .detail("A flow that ends by itself runs nothing when its members have ended."));
            }
            Some(command) => {
                options.run_as = run_as::of_command(queue)?;
                Command::beside(command, payload)?.payload()?
            }
            None => {
                // The payload of a flow that ends by itself is never handed out.
                if runs {
                    run_as::refuse_data(queue)?;
                }
                payload.unwrap_or_else(jsonb::empty_object)
            }
        };
        if options.unique.is_some_and(|unique| unique.on_duplicate == OnDuplicate::Renew) {
            return Err(Error::invalid("a flow cannot be replaced").hint("Use on_duplicate => 'skip' or 'error'."));
        }
        let mut made = producing::produce(queue, &[(payload, identify(0, options)?)], now, by)?;
        if made.has_new
            && let Some(&flow) = made.ids.first()
        {
            let by = if by == By::Producer { By::Flow } else { by };
            made.ids.extend(enqueue_tasks(flow, &tasks, &queue.name, now, by, identify)?);
        }
        Ok(made.ids)
    }
}

/// A task of a call.
pub struct Task {
    name: Option<String>,
    queue: Option<String>,
    /// The names of the task's predecessors.
    after: Vec<String>,
    /// The other fields, as for `queue.enqueue_batch`.
    fields: Vec<(String, Value)>,
    index: usize,
}

impl Task {
    /// Reads the tasks of a call, and sorts them so that each comes behind its predecessors.
    ///
    /// Errors: 22023 when they are no tasks, or cannot be sorted.
    pub fn all(tasks: Option<Datum>) -> Result<Vec<Self>> {
        let Some(tasks) = tasks else { return Ok(Vec::new()) };
        let Some(elements) = jsonb::elements(tasks) else {
            return Err(Error::invalid("tasks must be a JSON array of objects")
                .hint("For instance: '[{\"task\": \"a\"}, {\"task\": \"b\", \"after\": [\"a\"]}]'."));
        };
        if elements.len() > MAX_TASKS {
            return Err(Error::invalid(format!("a call can have at most {MAX_TASKS} tasks"))
                .hint("Add further members with queue.enqueue_many(…, flow => …) in the same transaction."));
        }
        let tasks = elements.iter().enumerate().map(|(n, task)| Self::read(n, task)).collect::<Result<Vec<_>>>()?;
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (n, task) in tasks.iter().enumerate() {
            if let Some(name) = &task.name
                && places.insert(name, n).is_some()
            {
                return Err(Error::invalid(format!("tasks[{n}]: there are two tasks \"{name}\"")));
            }
        }
        let order = order(&tasks, &places)?;
        let mut tasks: Vec<Option<Self>> = tasks.into_iter().map(Some).collect();
        Ok(order.into_iter().filter_map(|n| tasks[n].take()).collect())
    }

    fn read(n: usize, task: &Value) -> Result<Self> {
        let wrong = |what: &str| Error::invalid(format!("tasks[{n}]: {what}"));
        let fields = task.fields().ok_or_else(|| wrong("it must be an object"))?;
        let mut read = Self { name: None, queue: None, after: Vec::new(), fields: Vec::new(), index: n };
        for (field, value) in fields {
            let text =
                |value: &Value| value.as_str().ok_or_else(|| wrong(&format!("field \"{field}\" must be a string")));
            match field.as_str() {
                _ if value.is_null() => {}
                "task" => read.name = Some(text(&value)?),
                "queue" => read.queue = Some(text(&value)?),
                "after" => {
                    let names = jsonb::elements(value.datum());
                    let names = names.and_then(|names| names.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
                    read.after = names.ok_or_else(|| wrong("field \"after\" must be an array of names of tasks"))?;
                }
                _ => read.fields.push((field, value)),
            }
        }
        Ok(read)
    }
}

/// Returns an order in which each task comes behind its predecessors.
///
/// Errors: 22023 when a predecessor is no task of the call, or tasks wait for each other in a cycle.
fn order(tasks: &[Task], places: &HashMap<&str, usize>) -> Result<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut order = memory::list(tasks.len());
    let mut marks = vec![Mark::New; tasks.len()];
    let name = |n: usize| tasks[n].name.as_deref().unwrap_or("?");
    for start in 0..tasks.len() {
        // The path from `start`: each task with the number of its predecessors that were visited.
        let mut path = if marks[start] == Mark::New { vec![(start, 0)] } else { Vec::new() };
        while let Some((n, looked)) = path.last_mut() {
            let (n, next) = (*n, tasks[*n].after.get(*looked));
            *looked += 1;
            marks[n] = Mark::Open;
            let Some(next) = next else {
                marks[n] = Mark::Done;
                order.push(n);
                path.pop();
                continue;
            };
            let Some(&before) = places.get(next.as_str()) else {
                return Err(Error::invalid(format!(
                    "tasks[{n}]: it is after \"{next}\", which is no task of the call"
                ))
                .hint(
                    "Give that task of the call the field task with this name. The argument after names jobs outside \
                        the call.",
                ));
            };
            match marks[before] {
                Mark::Done => {}
                Mark::New => path.push((before, 0)),
                Mark::Open => {
                    let begin = path.iter().position(|(n, _)| *n == before).unwrap_or(0);
                    let circle: Vec<&str> = path[begin..].iter().map(|(n, _)| name(*n)).chain([name(before)]).collect();
                    return Err(Error::invalid("tasks are after each other in a circle")
                        .detail(format!("{}.", circle.join(" is after ")))
                        .hint("Leave out one of these."));
                }
            }
        }
    }
    Ok(order)
}

/// Enqueues the members of a flow that this transaction has just enqueued. Returns their ids in the order of the call.
fn enqueue_tasks(
    flow: i64,
    tasks: &[Task],
    default: &str,
    now: i64,
    by: By,
    identify: impl Fn(usize, Options) -> Result<Options>,
) -> Result<Vec<i64>> {
    let mut ids: HashMap<&str, i64> = HashMap::new();
    let mut made_ids = vec![0; tasks.len()];
    for task in tasks {
        let wrap = |e: Error| Error { message: format!("tasks[{}]: {}", task.index, e.message), ..e };
        let queue = queue::by_name(task.queue.as_deref().unwrap_or(default)).map_err(wrap)?;
        permission::check(&queue, Privilege::Produce).map_err(wrap)?;
        let (payload, mut options) = enqueue::parse_fields(&task.fields, &queue, now).map_err(wrap)?;
        if options.unique.is_some() {
            return Err(wrap(Error::invalid("a task cannot have a unique_key").hint("Give one to the flow.")));
        }
        let jobs: Vec<i64> = task.after.iter().filter_map(|name| ids.get(name.as_str()).copied()).collect();
        if jobs.is_empty() && options.upon_of_task != Upon::default() {
            return Err(wrap(After::missing()));
        }
        options.after = After::of_jobs(jobs, options.upon_of_task).map_err(wrap)?;
        options.flow = Some(flow);
        options.set_task(task.name.as_deref().map(text_datum)).map_err(wrap)?;
        let options = identify(1 + task.index, options).map_err(wrap)?;
        let made = producing::produce(&queue, &[(payload, options)], now, by).map_err(wrap)?;
        if let Some(&job_id) = made.ids.first() {
            made_ids[task.index] = job_id;
            task.name.as_deref().map(|name| ids.insert(name, job_id));
        }
    }
    Ok(made_ids)
}

/// `queue.seal(job_id)`: an open flow gets no more members.
fn seal(call: &Call) -> Result<Option<Datum>> {
    api::writable("seal")?;
    let job_id = call.need(args::seal::JOB_ID)?;
    end_flow::seal(job_id).map(|()| Some(VOID))
}

/// `queue.resolve(job_id, result)`: a flow that ends by itself has completed.
fn resolve(call: &Call) -> Result<Option<Datum>> {
    let result = call.json(args::resolve::RESULT)?;
    api::writable("resolve")?;
    let job_id = call.need(args::resolve::JOB_ID)?;
    end_flow::end(job_id, End::Resolved(result)).map(|()| Some(VOID))
}

/// `queue.reject(job_id, error)`: a flow that ends by itself is dead.
fn reject(call: &Call) -> Result<Option<Datum>> {
    let error = call.need(args::reject::ERROR)?;
    api::writable("reject")?;
    let job_id = call.need(args::reject::JOB_ID)?;
    end_flow::end(job_id, End::Rejected(fail::cut(&error))).map(|()| Some(VOID))
}
