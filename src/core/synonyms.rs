//! Translates the names that Celery, Sidekiq, BullMQ, pg-boss, pgmq and SQS use into ours.
//!
//! Responsible for the words. Not responsible for which of them a function has (`calls`).
//!
//! Invariant: each name is in lower case, without `_` and `-`.

/// Foreign names of arguments, and our candidates. The first candidate that a function has is meant.
const ARGUMENTS: &[(&[&str], &[&str])] = &[
    (&["countdown", "delayseconds", "delayms", "delaysecs", "defer", "postpone"], &["delay", "retry_in"]),
    (
        &[
            "eta",
            "at",
            "when",
            "time",
            "start",
            "startat",
            "startafter",
            "startsafter",
            "runafter",
            "scheduledat",
            "scheduledfor",
            "scheduleat",
            "notbefore",
            "executeat",
            "due",
            "dueat",
            "delayuntil",
        ],
        &["run_at", "starts_at"],
    ),
    (&["end", "endat", "until", "endsafter"], &["ends_at"]),
    (
        &[
            "limit",
            "batch",
            "batchsize",
            "count",
            "qty",
            "n",
            "num",
            "size",
            "prefetch",
            "maxmessages",
            "maxnumberofmessages",
        ],
        &["max_jobs"],
    ),
    (
        &["poll", "polltimeout", "maxpollseconds", "waittime", "waittimeseconds", "waitseconds", "block"],
        &["wait", "timeout"],
    ),
    (&["timeout"], &["wait", "lease"]),
    (
        &[
            "visibilitytimeout",
            "visibility",
            "vt",
            "ttr",
            "timelimit",
            "acktimeout",
            "timeoutms",
            "timeoutseconds",
            "leasetime",
            "expirein",
            "jobtimeout",
            "leaseduration",
            "leaseseconds",
        ],
        &["lease"],
    ),
    (
        &[
            "maxretries",
            "retries",
            "retry",
            "retrylimit",
            "attempts",
            "maxtries",
            "tries",
            "maxreceivecount",
            "maxretry",
            "retrycount",
            "maxattempt",
        ],
        &["max_attempts"],
    ),
    (&["key", "routingkey", "topickey", "bindingkey", "subject"], &["key", "pattern", "unique_key"]),
    (
        &[
            "dedupkey",
            "dedupid",
            "dedupe",
            "dedup",
            "deduplicationid",
            "messagededuplicationid",
            "idempotencykey",
            "singletonkey",
            "jobkey",
            "uniqueid",
            "unique",
            "uniq",
            "uniqueby",
            "lockkey",
        ],
        &["unique_key"],
    ),
    (
        &["id", "jobid", "attemptid", "attempt", "msgid", "messageid", "taskid", "receipt", "receipthandle"],
        &["id", "job_id", "ids", "unique_key"],
    ),
    (&["jobids", "attemptids", "msgids", "messageids"], &["ids"]),
    (
        &[
            "group",
            "groupid",
            "messagegroupid",
            "partition",
            "partitionkey",
            "shard",
            "shardkey",
            "tenant",
            "orderingkey",
        ],
        &["group_key"],
    ),
    (&["dependson", "depends", "dependencies", "requires", "parents", "predecessors", "waitfor"], &["after"]),
    (&["parent", "parentid", "workflow", "flowid"], &["flow"]),
    (
        &[
            "data",
            "args",
            "kwargs",
            "arguments",
            "params",
            "body",
            "message",
            "msg",
            "messages",
            "input",
            "job",
            "content",
        ],
        &["payload", "payloads", "jobs", "arguments"],
    ),
    (&["meta", "metadata", "attributes", "messageattributes", "tags", "labels"], &["headers"]),
    (&["queue", "name", "queues", "queuename", "q"], &["queue_name", "queue_names", "topic"]),
    (&["exchange", "topicname", "channel"], &["topic"]),
    (&["concurrency", "maxconcurrency", "parallelism", "workers", "maxworkers", "maxinflight"], &["max_running"]),
    (&["ratelimit", "rate", "limiter", "throttle", "maxperperiod"], &["rate_limit"]),
    (&["dlq", "deadletterqueue", "deadqueue", "deadletters", "redrivepolicy"], &["dead_letter"]),
    (&["fifo", "ordered", "inorder"], &["strict_order"]),
    (
        &[
            "ttl",
            "keep",
            "keepfor",
            "retain",
            "maxage",
            "retentionperiod",
            "removeoncomplete",
            "deleteafter",
            "messageretentionperiod",
        ],
        &["retention"],
    ),
    (&["onconflict", "ifexists", "conflict", "duplicate"], &["on_duplicate"]),
    (&["per", "window", "duration", "limitperiod"], &["rate_period", "period"]),
    (&["maxlength", "maxsize", "maxlen", "capacity"], &["max_waiting"]),
    (&["tz", "zone", "timezonename"], &["timezone"]),
    (&["interval", "repeat", "frequency", "repeatevery"], &["every", "period"]),
    (&["crontab", "expression", "cronexpression", "pattern"], &["cron", "pattern"]),
    (&["reason", "message", "err", "error", "exception", "msg", "errormessage", "why"], &["error", "reason"]),
    (&["retryafter", "retrydelay", "backoff", "requeueafter", "delay"], &["retry_in", "backoff_base"]),
    (&["percent", "percentage"], &["progress"]),
    (&["workerid", "workername", "consumer", "consumername", "owner", "hostname"], &["worker"]),
    (&["role", "user", "username", "grantee", "to"], &["role_name"]),
    (&["privileges", "permission", "right", "rights"], &["privilege"]),
    (&["status", "statuses"], &["state", "states"]),
    (&["where", "query", "condition", "jsonpath"], &["filter", "command"]),
    (&["sql", "statement"], &["command"]),
    (&["output", "value", "returnvalue"], &["result"]),
];

/// What runs the dead jobs of a queue again.
const RETRY_DEAD: &str = "queue.retry_many(ARRAY(SELECT job_id FROM queue.search('q', states => '{dead}')))";

/// Foreign names of functions, and what to call here.
const FUNCTIONS: &[(&[&str], &str)] = &[
    (
        &[
            "read",
            "readwithpoll",
            "receive",
            "receivemessage",
            "pop",
            "fetch",
            "dequeue",
            "get",
            "getjob",
            "poll",
            "take",
            "reserve",
            "lock",
            "next",
        ],
        "queue.claim",
    ),
    (&["work", "process", "consume", "run"], "queue.claim, which a worker calls in a loop"),
    (
        &[
            "send",
            "sendmessage",
            "push",
            "add",
            "addjob",
            "put",
            "insert",
            "insertjob",
            "submit",
            "applyasync",
            "enqueuejob",
            "createjob",
            "performasync",
            "performin",
            "performlater",
            "performat",
            "enqueuein",
            "enqueueat",
            "delay",
            "schedulein",
        ],
        "queue.enqueue",
    ),
    (
        &["sendbatch", "addbulk", "bulk", "insertmany", "pushbulk", "sendmany"],
        "queue.enqueue_many, and queue.enqueue_batch",
    ),
    (
        &["ack", "acknowledge", "done", "finish", "succeed", "archive", "success", "commit", "finalize"],
        "queue.complete",
    ),
    (
        &["delete", "remove", "deletejob", "deletemessage"],
        "queue.complete for a claimed job, queue.cancel for another one",
    ),
    (&["nack", "error", "abort"], "queue.fail, and queue.release, which counts as no attempt"),
    (
        &["requeue", "unlock", "return", "snooze", "defer", "postpone", "retrylater"],
        "queue.release with delay, or queue.fail with retry_in",
    ),
    (
        &[
            "heartbeat",
            "keepalive",
            "touch",
            "setvt",
            "extendlease",
            "changevisibility",
            "changemessagevisibility",
            "renew",
            "ping",
        ],
        "queue.extend",
    ),
    (&["subscribe", "addsubscription", "bindtopic"], "queue.bind"),
    (&["unsubscribe", "unbindtopic"], "queue.unbind"),
    (&["sendtopic", "emit", "broadcast", "notify", "publishmessage", "publishevent"], "queue.publish"),
    (&["unpause", "start", "continue", "startqueue", "resumequeue"], "queue.resume"),
    (&["pausequeue", "stopqueue"], "queue.pause"),
    (&["lease", "acquire", "checkout", "registerworker"], "queue.claim"),
    (&["dead", "deadjobs", "listdead", "failedjobs"], "queue.search with states => '{dead}'"),
    (&["createschedule", "addschedule", "newschedule"], "queue.schedule"),
    (&["dropschedule", "deleteschedule", "removeschedule", "cancelschedule"], "queue.unschedule"),
    (&["getqueue", "queueinfo"], "view queue.queues"),
    (&["setpriority", "changepriority", "updatepriority", "prioritize"], "queue.reprioritize"),
    (&["setprogress", "updateprogress", "reportprogress"], "queue.progress"),
    (&["requeuedead", "retrydeadjobs", "retrydead"], RETRY_DEAD),
    (&["markdone", "markcomplete", "markascomplete", "completed"], "queue.complete"),
    (&["failure", "markfailed", "failed", "reportfailure"], "queue.fail"),
    (&["isempty", "queuesize", "queuelength", "countjobs", "pending"], "view queue.stats"),
    (&["health", "healthcheck", "diagnose", "selftest"], "queue.doctor()"),
    (&["createifnotexists"], "queue.create with if_not_exists => true"),
    (&["peek", "listready", "scan"], "queue.search, which claims nothing"),
    (
        &["state", "jobstatus", "jobstate", "getstatus", "result", "getresult", "jobresult", "find", "lookup"],
        "queue.job(job_id), which has state and result",
    ),
    (&["awaitresult", "waitfor", "waituntilfinished", "join"], "CALL queue.await(job_id)"),
    (&["exists", "queueexists", "hasqueue"], "view queue.queues"),
    (&["createqueue", "makequeue", "newqueue", "declare", "new"], "queue.create"),
    (&["dropqueue", "deletequeue", "destroy", "removequeue"], "queue.drop"),
    (&["purgequeue", "clear", "empty", "truncate", "drain", "flush"], "queue.purge"),
    (&["alterqueue", "configure", "updatequeue", "setoptions"], "queue.alter"),
    (&["retryall", "redrive", "retryfailed", "replay", "retrydlq"], RETRY_DEAD),
    (&["cron", "schedulejob", "every", "addcron", "repeat"], "queue.schedule"),
    (&["canceljob", "kill", "revokejob", "stop"], "queue.cancel"),
    (&["depth", "length", "len", "size", "count", "status", "info", "metricsall"], "view queue.stats"),
    (&["listqueues", "showqueues"], "view queue.queues"),
    (&["listjobs", "getjobs"], "queue.search, and view queue.jobs"),
];

/// Foreign names of arguments, and what does the same here.
const INSTEAD: &[(&[&str], &str)] = &[
    (&["cron", "crontab", "every", "repeat", "interval", "recurring"], "For jobs by the clock use queue.schedule."),
    (
        &["callback", "then", "link", "onsuccess", "oncomplete", "onfailure", "onerror", "next"],
        "Enqueue the job that follows with after => ARRAY[…], the ids that this call returns.",
    ),
    (
        &["expires", "expiresat", "expiresin", "expiration", "ttl", "deadline"],
        "Say by when the job must start: start_within => '5 minutes', or start_by => a time.",
    ),
    (&["topic", "exchange"], "What is for a topic is published: queue.publish."),
    (
        &["enabled", "active", "disabled", "paused"],
        "Use queue.pause and queue.resume, for schedules queue.pause_schedule and queue.resume_schedule.",
    ),
    (&["newname", "renameto"], "A queue keeps its name: create another one, and let workers finish this one."),
];

/// Foreign names of columns, and our candidates. The first candidate that a view has is meant.
const COLUMNS: &[(&[&str], &[&str])] = &[
    (&["id", "jobid", "msgid", "messageid", "job"], &["job_id", "example_job_id", "last_job_id"]),
    (&["attemptid"], &["id"]),
    (&["queue", "name", "queuename"], &["queue_name", "topic_name"]),
    (&["topic"], &["topic_name"]),
    (&["status"], &["state"]),
    (&["createdat", "insertedat", "created", "timestamp"], &["created_at", "enqueued_at"]),
    (&["scheduledat", "eta", "startafter"], &["run_at"]),
    (&["attemptedat", "startedon", "started"], &["started_at", "claimed_at"]),
    (&["completedat", "endedat", "finished", "failedat"], &["finished_at"]),
    (&["data", "args", "message", "body", "msg"], &["payload"]),
    (&["attempts", "retries", "readct", "retrycount"], &["attempt"]),
    (&["vt", "lockeduntil", "expiresat"], &["lease_expires_at"]),
    (&["paused"], &["is_paused"]),
    (&["pending", "waiting", "available", "length", "depth"], &["ready"]),
    (&["active", "locked"], &["running"]),
    (&["failures", "failedjobs"], &["failed"]),
    (&["output"], &["result"]),
    (&["lasterror", "exception", "reason"], &["error", "last_error"]),
];

fn bare(name: &str) -> String {
    name.to_lowercase().replace(['_', '-'], "")
}

fn first<'a>(table: &[(&[&str], &[&str])], name: &str, has: &[&'a str]) -> Option<&'a str> {
    let name = bare(name);
    let meant = table.iter().filter(|(names, _)| names.contains(&name.as_str())).flat_map(|(_, meant)| *meant);
    meant.filter_map(|meant| has.iter().find(|known| *known == meant)).next().copied()
}

/// Returns the argument of a function that another product calls `name`.
pub fn argument<'a>(name: &str, has: &[&'a str]) -> Option<&'a str> {
    first(ARGUMENTS, name, has)
}

/// Returns what does the same here as the argument that another product calls `name`.
pub fn instead(name: &str) -> Option<&'static str> {
    let name = bare(name);
    INSTEAD.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, meant)| *meant)
}

/// Returns what to use here for the function that another product calls `name`.
pub fn function(name: &str) -> Option<&'static str> {
    let name = bare(name);
    FUNCTIONS.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, meant)| *meant)
}

/// True if an answer of `function` suggests a function that removes jobs.
pub fn removes(meant: &str) -> bool {
    ["queue.purge", "queue.drop", "queue.cancel"].iter().any(|function| meant.starts_with(function))
}

/// Returns the column of a view that another product calls `name`.
pub fn column<'a>(name: &str, has: &[&'a str]) -> Option<&'a str> {
    first(COLUMNS, name, has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bare_and_have_one_meaning() {
        let names = |table: &[(&'static [&'static str], &[&str])]| {
            table.iter().flat_map(|(names, _)| *names).copied().collect::<Vec<&str>>()
        };
        for name in [names(ARGUMENTS), names(COLUMNS)].concat() {
            assert_eq!(name, bare(name));
        }
        let mut functions: Vec<&str> = FUNCTIONS.iter().flat_map(|(names, _)| *names).copied().collect();
        functions.iter().for_each(|name| assert_eq!(*name, bare(name)));
        for (names, _) in INSTEAD {
            names.iter().for_each(|name| assert_eq!(*name, bare(name)));
        }
        functions.sort_unstable();
        let all = functions.len();
        functions.dedup();
        assert_eq!(functions.len(), all);
    }

    #[test]
    fn the_first_that_there_is_is_meant() {
        assert_eq!(argument("Start_After", &["every", "starts_at"]), Some("starts_at"));
        assert_eq!(argument("timeout", &["lease", "wait"]), Some("wait"));
        assert_eq!(argument("timeout", &["queue_name"]), None);
        assert_eq!(argument("colour", &["queue_name"]), None);
        assert_eq!(column("id", &["job_id"]), Some("job_id"));
        assert_eq!(function("set_vt"), Some("queue.extend"));
        assert_eq!(function("frobnicate"), None);
        assert!(instead("on_success").unwrap().contains("after =>"));
        assert_eq!(instead("delay"), None);
    }
}
