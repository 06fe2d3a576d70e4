// A job: its data, its attempts with their outcomes, and the verbs for it.

import { button, h, panel, put, say } from "./dom.js";
import { badge, bytes, count, exact, firstLine, progressBar, when } from "./format.js";
import { flowBar, timeline } from "./chart.js";
import { counted, heldBy, inOrder, outcome, shares } from "./flow.js";
import { ask, form } from "./dialog.js";
import { act, documentAddress, href, look, mayAct, session } from "./server.js";
import { Table } from "./table.js";

const ENDED = ["completed", "dead", "cancelled", "skipped", "expired"];

export function job(params) {
  const id = params.get("job");
  const title = h("h1", null, `Job ${id}`), tools = h("div", { class: "tools" }), line = h("div", { class: "line" });
  const facts = h("dl", { class: "facts" }), wrong = h("div"), wrongBefore = h("div"), bars = h("div"),
  documents = h("div", { class: "two" }),
  related = h("div");
  const attempts = new Table("Attempts", [
    { title: "attempt", cell: (a) => (a.stage ? `${a.attempt} (${a.stage})` : String(a.attempt)) },
    { title: "state", key: (a) => a.state, cell: (a) => badge(a.state) },
    { title: "claimed", cell: (a) => exact(a.claimed_at, isQuick) },
    { title: "ended", cell: (a) => exact(a.finished_at, isQuick) },
    { title: "took", number: true, cell: (a) =>
        (a.claimed_at && a.finished_at ? span(a.claimed_at, a.finished_at) : "") },
    { title: "worker", cell: (a) => a.worker ?? "" },
    { title: "error", kind: "cut wrong", cell: (a) => firstLine(a.error) },
    { title: "id", number: true, wide: true, cell: (a) => String(a.id) },
  ], (a) => a.id, { empty: "It has not been tried.", kind: "rows" });
  const element = h("div", null, h("div", { class: "head" }, title, tools), line, bars, wrong,
    panel("Attempts", h("div", null, bars.timeline = h("div"), attempts.element)), wrongBefore, documents, related,
    panel("Facts", facts));
  let shown = "", isOver = false, isQuick = false;
  return {
    title: `Job ${id}`, element, update() {},
    get every() { return isOver ? 30 : 3; },
    async refresh() {
      const said = await look("job", { job: id });
      const now = JSON.stringify(said);
      isOver = ENDED.includes(said.job.state);
      if (now === shown && isOver) return;
      shown = now;
      show(said);
    },
  };

  function show(said) {
    const j = said.job;
    const members = counted(said.members);
    const times = said.attempts.flatMap((a) => [a.claimed_at, a.finished_at]).filter(Boolean).map((t) => new Date(t));
    isQuick = times.length > 0 && Math.max(...times) - Math.min(...times) < 20000;
    put(line, outcome(j.state, members), heldBy(j.state, members),
        h("a", { href: href("queue", { queue: j.queue }) }, j.queue),
        j.stage ? h("span", null, `stage ${j.stage}`) : null,
      h("span", null, `attempt ${count(j.attempt)} of ${count(j.max_attempts)}`),
      j.worker && j.state === "running" ? h("span", null, `with ${j.worker}`) : null,
      h("span", null, "enqueued ", when(j.enqueued_at)),
      j.finished_at ? h("span", null, "ended ", when(j.finished_at)) : j.run_at
          ? h("span", null, "runs ", when(j.run_at)) : null,
      j.lease_expires_at ? h("span", null, "lease ends ", when(j.lease_expires_at)) : null);
    put(bars, progressBar(said.progress));
    bars.className = bars.firstChild ? "wideprogress" : "";
    // The error of an attempt that another one has followed is history: it stands below the attempts.
    const isLast = ["dead", "retrying", ...ENDED.filter((state) => state !== "completed")].includes(j.state);
    put(wrong, isLast ? error(said) : null);
    put(wrongBefore, isLast ? null : error(said), traces(said));
    put(bars.timeline, timeline(j, said.attempts));
    attempts.show(said.attempts);
    put(documents, ["payload", "result", "progress", "headers"].map((what) => document_(what, said)));
    related.replaceChildren(...[
      said.steps.length ? panel("Steps", h("ol", { class: "steps" },
          said.steps.map((step) => h("li", null, h("b", null, step.name), " ",
              step.result ? h("code", null, step.result) : null)))) : null,
      said.after.length ? panel(`After (${j.upon ?? "completed"})`, kin(said.after)) : null,
      j.flow ? panel("Member of", h("p", null, h("a", { href: href("job", { job: j.flow }) }, `flow ${j.flow}`),
          j.task ? `, as ${j.task}` : "")) : null,
      said.members.length ? panel("Flow", family(said.members)) : null,
    ].filter(Boolean));
    const timing = j.timing ?? {};
    const fact = (label, value) => (value === null || value === undefined ? null
        : h("div", null, h("dt", null, label), h("dd", null, value)));
    put(facts, fact("job", String(j.job_id)), fact("queue", j.queue), fact("priority", String(j.priority)),
        fact("unique key", j.unique_key), fact("group", j.group_key),
      fact("task", j.task), fact("worker", j.worker), fact("enqueued", exact(j.enqueued_at)),
      fact("not before", j.run_at && exact(j.run_at)), fact("must start before", j.start_by && exact(j.start_by)),
      fact("must start within", timing.start_within), fact("put off at most", timing.max_delay),
      fact("put off since", timing.delayed_since && exact(timing.delayed_since)),
      fact("started", j.claimed_at && exact(j.claimed_at)), fact("ended", j.finished_at && exact(j.finished_at)));
    offer(j, members.dead ?? 0);
  }

  /** Returns a panel with the error that the job has now. */
  function error(said) {
    const j = said.job;
    if (!j.error) return null;
    const failed = said.attempts.find((a) => a.error && firstLine(a.error) === firstLine(j.error));
    const title = ["cancelled", "skipped"].includes(j.state) ? "Reason"
        : ["dead", "retrying", "expired"].includes(j.state) ? "Error"
            : failed ? `Last error, attempt ${failed.attempt}` : "Last error";
    return panel(title, withTrace(j.error, j.state === "dead" || j.state === "retrying"),
      j.state === "dead" || j.state === "retrying"
          ? h("a", { href: href("queue", { queue: j.queue, state: j.state, field: "error",
              op: j.error.length >= 1000 ? "starts" : "equals", value: j.error.slice(0, 1000) }) },
              "all jobs with this error") : null);
  }

  function document_(what, said) {
    if (session.hides_payload) return what === "payload" ? panel("Payload", h("p", { class: "empty" }, "hidden"))
        : null;
    const size = said.bytes?.[what];
    if (size === null || size === undefined) return null;
    const body = said[what] === null ? h("p", { class: "empty" }, "too long to be shown") : h("pre", null, said[what]);
    const copy = said[what] === null ? null : button("Copy",
        () => navigator.clipboard.writeText(said[what]).then(() => say("copied")), "quiet");
    return panel(what[0].toUpperCase() + what.slice(1), body, h("span", { class: "note" }, bytes(size)), copy,
        h("a", { href: documentAddress(id, what), download: `job-${id}-${what}.json` }, "all"));
  }

  function offer(j, dead) {
    const key = `${j.state} ${mayAct()} ${dead}`;
    if (tools.dataset.key === key) return;
    tools.dataset.key = key;
    if (!mayAct()) return void put(tools);
    const isOver = ENDED.includes(j.state), waits = !isOver && j.state !== "running";
    const did = (verb, told, more) => async (values) => { await act(verb, { job_id: id, ...more, ...values });
    return told; };
    const reason = [{ name: "reason", label: "Reason", hint: "kept with the job" }];
    put(tools,
      j.state === "held" && dead ? button("Retry the dead", () => ask(`Retry the dead members of flow ${id}?`,
          dead === 1 ? "Its dead member runs again." : `Its ${count(dead)} dead members run again.`,
          "Retry the dead", "primary", did("retry", "the dead members run again")), "primary")
        : j.state !== "running" && j.state !== "completed" ? button(isOver ? "Retry" : "Run now",
          () => ask(`${isOver ? "Retry" : "Run"} job ${id}?`,
              isOver ? "It runs once more: attempts are counted from 1." : j.state === "held"
                  ? "It no longer waits for other jobs, and is ready immediately." : "It is ready immediately.",
              isOver ? "Retry" : "Run now", "primary", did("retry", `job ${id} is ready`)), "primary") : null,
      waits ? button("Reschedule", () => form(`When shall job ${id} run?`,
          { fields: [{ name: "run_at", label: "Not before", type: "datetime-local", required: true }],
              submit: ({ run_at }) => did("reschedule", "rescheduled",
                  { run_at: new Date(run_at).toISOString() })() })) : null,
      waits ? button("Set priority", () => form(`Priority of job ${id}`,
          { fields: [{ name: "priority", label: "Priority", type: "number", value: String(j.priority), required: true,
              hint: "smaller runs first" }], submit: did("reprioritize", "priority is set") })) : null,
      waits ? button("Cancel", () => form(`Cancel job ${id}?`,
          { fields: reason, label: "Cancel the job", kind: "danger", submit: did("cancel", `job ${id} is cancelled`) }),
          "danger") : null,
      j.state === "running" ? button("Ask to stop",
          () => form(`Ask the worker of job ${id} to stop?`,
              { text: "It sees it with its next heartbeat. However it ends then, the job is not run again.",
                  fields: reason, label: "Ask to stop", kind: "danger",
                  submit: did("cancel", "the worker is asked to stop") }), "danger") : null,
      j.state === "running" ? button("End now", () => form(`End job ${id} now?`, {
        text: "Its worker loses the lease immediately, and goes on without knowing until it next calls. "
            + "What it does then may be done for nothing.", fields: reason, label: "Yes, end it", kind: "danger",
        submit: ({ reason }) => { ask(`Really end job ${id}?`, "This cannot be undone.", "End it now", "danger",
            did("cancel", `job ${id} is ended`, { force: true, reason })); },
      }), "danger") : null,
      isOver ? button("Forget", () => ask(`Erase what job ${id} carries?`,
          "Payload, headers, result, progress and errors are erased, for good.", "Erase", "danger",
          did("forget", `job ${id} is erased`)), "danger") : null,
      j.state === "completed" ? button("Retry", () => ask(`Retry job ${id}, which has completed?`,
          "It runs once more: what it does is done twice. Attempts are counted from 1.", "Retry", "danger",
          did("retry", `job ${id} is ready`))) : null);
  }
}

const kin = (all) => h("ul", { class: "kin" },
    all.map((one) => h("li", null, badge(one.state ?? "gone"),
        h("a", { href: href("job", { job: one.job_id }) }, one.task ?? String(one.job_id)),
        one.queue ? h("span", { class: "note" }, one.queue) : null,
        one.error ? h("span", { class: "wrong" }, one.error) : null)));

/** Returns the members of a flow: their number by state, and some of them, those that hold the flow first. */
function family(all) {
  const counts = counted(all);
  return h("div", null, h("div", { class: "line" }, flowBar(counts, all.length),
      shares(counts),
      all.length >= 500 ? h("span", { class: "note" }, "of the first 500") : null),
      kin(inOrder(all).slice(0, 100)),
      all.length > 100 ? h("p", { class: "note" }, `${count(all.length - 100)} more`) : null);
}

/** Returns an error: its first line, and folded what a package has put behind it, the trace. */
function withTrace(text, isWrong) {
  const rest = text.slice(firstLine(text).length + 1);
  return h("div", null, h("pre", { class: isWrong ? "wrong" : null }, firstLine(text)),
      rest ? h("details", { class: "trace" }, h("summary", null, "Trace"), h("pre", null, rest)) : null);
}

/** Returns a panel with the traces of attempts whose error is not shown by itself. */
function traces(said) {
  const all = said.attempts.filter((a) => a.error?.includes("\n") && a.error !== said.job.error);
  return all.length ? panel("Traces of other attempts", h("div", null, all.map((a) =>
      h("details", { class: "trace" }, h("summary", null, `attempt ${a.attempt}: ${firstLine(a.error)}`),
          h("pre", null, a.error.slice(firstLine(a.error).length + 1)))))) : null;
}

function span(from, to) {
  const ms = new Date(to) - new Date(from);
  return ms < 1000 ? `${ms} ms` : ms < 60000 ? `${(ms / 1000).toFixed(1)} s`
      : `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

