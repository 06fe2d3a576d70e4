// The pages that consist of a list: errors, schedules, workers, flows, topics, the doctor, the audit.

import { button, h, panel, put } from "./dom.js";
import { flowBar } from "./chart.js";
import { heldBy, outcome, shares } from "./flow.js";
import { age, count, exact, firstLine, interval, inZone, when } from "./format.js";
import { ask } from "./dialog.js";
import { bulk } from "./bulk.js";
import { act, go, href, live, look, mayAct } from "./server.js";
import { Table } from "./table.js";
import { workersOf, workersTable } from "./overview.js";

const queueLink = (row, more = {}) => (row.queue
    ? h("a", { href: href("queue", { queue: row.queue, ...more }) }, row.queue) : "");
const jobLink = (id) => (id ? h("a", { class: "id", href: href("job", { job: id }) }, String(id)) : "");
const page = (title, body, refresh, every = 10, more = {}) =>
    ({ title, element: h("div", null, h("h1", null, title), body), every, refresh, update() {}, ...more });

export function errors(params) {
  const queue = params.get("queue"), isMore = Boolean(params.get("more"));
  // The jobs behind a number.
  const jobs = (e, state, text) => h("a", { href: href("queue",
      { queue: e.queue, state, field: "error", op: e.is_cut ? "starts" : "equals", value: e.error }) }, text);
  const number = (title, of, state) => ({ title, number: true, key: of,
      cell: (e) => (of(e) ? jobs(e, state, count(of(e))) : "0") });
  const table = new Table("Errors", [
    { title: "error", kind: "cut wrong", key: (e) => e.error,
        cell: (e) => jobs(e, e.dead ? "dead" : "retrying", firstLine(e.error)) },
    { title: "queue", key: (e) => e.queue, cell: (e) => queueLink(e) },
    number("jobs", (e) => e.jobs, null), number("dead", (e) => e.dead, "dead"),
    number("retrying", (e) => e.retrying, "retrying"),
    { title: "last died", number: true, cell: (e) => (e.last_died_at ? when(e.last_died_at) : "") },
    { title: "example", number: true, wide: true, key: (e) => e.example_job_id,
        cell: (e) => jobLink(e.example_job_id) },
    { title: "", key: (e) => `${mayAct()} ${e.dead}`,
        cell: (e) => (mayAct() && e.dead ? button("Retry …",
            () => bulk("retry", e.queue, ["dead"],
                { field: "error", op: e.is_cut ? "starts" : "equals", value: e.error }), "quiet") : "") },
  ], (e) => JSON.stringify([e.queue, e.error]), { empty: "No job is dead or waits for a retry.", kind: "rows" });
  const note = h("p", { class: "status" });
  return page(queue ? `Errors of ${queue}` : "Errors", h("section", { class: "panel" }, note, table.element),
      async () => {
    const rows = await look("errors", { queue, more: isMore ? "1" : "" });
    table.show(rows);
    const cut = [...new Set(rows.filter((row) => !row.is_complete).map((row) => row.queue))];
    put(note, "The jobs that died last and those that are retried next, by their error.",
        cut.length ? ` Of ${cut.join(", ")} only the newest ${isMore ? "10,000" : "2,000"} were looked at. ` : "",
        cut.length && !isMore ? h("a", { href: href("errors", { queue, more: "1" }) }, "Look at more") : "");
  });
}

export function schedules() {
  const tool = (label, verb, told, kind) => (s) =>
      button(label, () => ask(`${label} ${s.name}?`, null, label, "primary", async () => {
    const done = await act(verb, { schedule: s.name });
    return verb === "run_schedule" ? `job ${done.answer} is enqueued` : told;
  }), kind);
  const [run, pause, resume] = [tool("Run now", "run_schedule", "", "quiet"),
      tool("Pause", "pause_schedule", "paused", "quiet"), tool("Resume", "resume_schedule", "it goes on", "quiet")];
  const table = new Table("Schedules", [
    { title: "schedule", key: (s) => `${s.name} ${s.is_paused}`,
        cell: (s) => [h("b", null, s.name), s.is_paused ? h("span", { class: "badge paused" }, "paused") : null] },
    { title: "queue", key: (s) => s.queue, cell: (s) => queueLink(s) },
    { title: "plan", key: (s) => `${s.cron} ${s.every} ${s.timezone}`,
        cell: (s) => h("span", { title: `missed slots: ${s.missed}${s.overlap ? "" : "; no overlap"}` },
            h("code", null, s.cron ?? `every ${interval(s.every)}`)) },
    {
      title: "next slots", help: "in the time zone of the schedule", cell: (s) => {
        const next = s.upcoming ?? [];
        if (s.is_paused) return "–";
        return h("span", { class: "slots", title: next.join("\n") },
            next.slice(0, 3).map((at) => h("span", null, inZone(at, s.timezone))),
            h("span", { class: "note" }, s.timezone));
      },
    },
    { title: "next run", number: true, cell: (s) => (s.is_paused ? "–" : when(s.next_run_at)) },
    { title: "last run", number: true, cell: (s) => (s.last_run_at ? when(s.last_run_at) : "") },
    { title: "its job", number: true, wide: true, key: (s) => s.last_job_id, cell: (s) => jobLink(s.last_job_id) },
    { title: "", key: (s) => `${mayAct()} ${s.is_paused}`,
        cell: (s) => (mayAct() ? h("span", { class: "tools" }, run(s), s.is_paused ? resume(s) : pause(s)) : "") },
  ], (s) => s.name, { empty: "There are no schedules.", kind: "rows" });
  return page("Schedules", h("section", { class: "panel" }, table.element),
      async () => table.show(await look("schedules")));
}

export function workers() {
  const table = workersTable(), others = h("p", { class: "status" });
  const executors = new Table("Executors", [
    { title: "process", cell: (e) => String(e.pid) }, { title: "role", cell: (e) => e.role },
    { title: "queue", key: (e) => e.queue, cell: (e) => queueLink(e) },
    { title: "state", cell: (e) => e.state },
    { title: "job", number: true, key: (e) => e.job_id, cell: (e) => jobLink(e.job_id) },
    { title: "for", number: true, cell: (e) => age(e.seconds) },
    { title: "command", kind: "cut", cell: (e) => e.command ?? "" },
  ], (e) => e.pid, { empty: "No process of the server runs jobs.", kind: "rows" });
  return page("Workers", h("div", null, panel("Workers", h("div", null, table.element, others)),
      panel("Executors: jobs that are SQL", executors.element)),
      async () => executors.show((await look("workers")).executors), 3,
    {
      update() {
        if (!live.data) return;
        table.empty = live.data.is_standby ? "Which workers have jobs is known to the primary alone."
            : "No worker has a job or waits for one.";
        table.show(workersOf(live.data));
        const names = Object.groupBy(live.data.workers.filter((w) => w.queue === null), (w) => w.application);
        const said = Object.entries(names).map(([name, rows]) => `${name} (${count(rows.length)})`).join(", ");
        put(others, said ? `Other connections of workers, for heartbeats or between two claims: ${said}.` : null);
      },
    });
}

export function flows(params) {
  const known = () => (live.data?.queues ?? []).map((q) => q.queue);
  const queue = params.get("queue");
  const choose = h("select", { "aria-label": "Queue", onchange: () => go("flows", { queue: choose.value }) });
  const table = new Table("Flows", [
    { title: "flow", key: (f) => f.job_id, cell: (f) => jobLink(f.job_id) },
    { title: "name", kind: "cut", key: (f) => f.task ?? f.unique_key ?? f.payload,
        cell: (f) => f.task ?? f.unique_key ?? (f.payload && f.payload !== "{}" ? h("code", null, f.payload) : "") },
    { title: "state", key: (f) => `${f.state} ${JSON.stringify(f.members)}`,
        cell: (f) => h("span", { class: "line" }, outcome(f.state, f.members ?? {}),
            heldBy(f.state, f.members ?? {})) },
    {
      title: "members", key: (f) => JSON.stringify(f.members), cell: (f) => {
        const total = Object.values(f.members ?? {}).reduce((n, m) => n + m, 0);
        return h("span", { class: "line" }, total ? flowBar(f.members, total) : null,
            shares(f.members ?? {}),
            total >= 200 ? h("span", { class: "note" }, "of the first 200") : null);
      },
    },
    { title: "enqueued", number: true, cell: (f) => when(f.enqueued_at) },
    { title: "ended", number: true, cell: (f) => (f.finished_at ? when(f.finished_at) : "") },
  ], (f) => f.job_id, { empty: "No flow was found.", kind: "rows" });
  const note = h("p", { class: "status" });
  const more = button("Go on searching", () => { beyond = here; load(); }, "more", { hidden: true });
  let beyond = null, here = null, found = [];
  async function load() {
    if (!queue) return;
    const part = await look("flows", { queue, beyond });
    here = part.at(-1)?.here ?? null;
    const rows = part.filter((row) => row.job_id !== null);
    found = beyond ? [...found.filter((f) => !rows.some((row) => row.job_id === f.job_id)), ...rows] : rows;
    table.show(found);
    more.hidden = !here;
    put(note, `${count(found.length)} found${here ? ", and there may be more" : ""}.`);
  }
  return page("Flows", h("section", { class: "panel" },
      h("div", { class: "search" }, h("label", null, "in queue ", choose)), note, table.element, more),
      async () => { if (!beyond) await load(); }, 60, {
    update() {
      const names = known();
      if (choose.dataset.names === JSON.stringify(names)) return;
      choose.dataset.names = JSON.stringify(names);
      put(choose, names.map((name) => h("option", { value: name, selected: name === queue }, name)));
      // Flows wait for their members, so the queue with the most held jobs comes first.
      const most = [...(live.data?.lanes ?? [])].sort((a, b) => b.held - a.held)[0]?.queue ?? names[0];
      if (!queue && names.length) location.replace(href("flows", { queue: most }));
    },
  });
}

export function topics() {
  const table = new Table("Topics", [
    { title: "topic", cell: (t) => t.topic }, { title: "bindings", number: true, cell: (t) => count(t.bindings) },
    { title: "published", number: true, cell: (t) => count(t.published) },
    { title: "jobs made", number: true, cell: (t) => count(t.copies) },
    { title: "unrouted", number: true, cell: (t) => count(t.unrouted) },
    { title: "dropped", number: true, cell: (t) => count(t.dropped) },
    { title: "filter errors", number: true, wide: true, cell: (t) => count(t.filter_errors) },
  ], (t) => t.topic, { empty: "There are no topics.", kind: "rows" });
  const bindings = new Table("Bindings", [
    { title: "topic", cell: (b) => b.topic },
    { title: "pattern", key: (b) => b.pattern, cell: (b) => h("code", null, b.pattern) },
    { title: "queue", key: (b) => b.queue, cell: (b) => queueLink(b) },
    { title: "filter", kind: "cut", key: (b) => b.filter, cell: (b) => (b.filter ? h("code", null, b.filter) : "") },
    { title: "when full", wide: true, cell: (b) => b.on_full },
    { title: "bound by", wide: true, cell: (b) => b.bound_by },
  ], (b) => b.binding_id, { empty: "No queue is bound.", kind: "rows" });
  return page("Topics", h("div", null, panel("Topics", table.element), panel("Bindings", bindings.element)),
      async () => {
    const said = await look("topics");
    table.show(said.topics);
    bindings.show(said.bindings);
  });
}

export function doctor() {
  const list = h("ul", { class: "checks" });
  return page("Doctor", h("section", { class: "panel" }, list), async () => {
    const checks = await look("doctor");
    put(list, [...checks].sort((a, b) => a.ok - b.ok).map((check) => h("li", { class: check.ok ? "well" : "ill" },
      h("span", { class: "badge" }, check.ok ? "well" : "not well"), h("b", null, check.name),
      h("span", null, check.detail), check.hint ? h("p", { class: "hint" }, check.hint) : null)));
  }, 30);
}

export function audit() {
  const table = new Table("What was done", [
    { title: "when", key: (a) => a.at, cell: (a) => exact(new Date(a.at * 1000).toISOString()) },
    { title: "user", cell: (a) => (a.role && a.role !== a.user ? `${a.user} (${a.role})` : a.user) },
    { title: "verb", cell: (a) => a.verb.replaceAll("_", " ") },
    { title: "queue", key: (a) => a.queue, cell: (a) => queueLink(a) },
    { title: "on", kind: "cut", cell: (a) => a.on ?? "" }, { title: "jobs", number: true, cell: (a) => count(a.count) },
    { title: "ids", wide: true, key: (a) => a.job_ids.join(),
        cell: (a) => a.job_ids.slice(0, 3).flatMap((id) => [jobLink(id), " "]).concat(a.count > 3 ? "…" : "") },
    { title: "reason", kind: "cut", cell: (a) => a.reason ?? "" },
    { title: "failed", kind: "cut wrong", cell: (a) => a.error ?? "" },
  ], (a) => `${a.at} ${a.verb}`, { empty: "Nothing was done since this program was started.", kind: "rows" });
  const body = h("section", { class: "panel" },
      h("p", { class: "status" }, "What was done through this dashboard since it was started. Its log has all of it."),
      table.element);
  return page("Audit", body, async () => table.show(await look("audit")), 5);
}

