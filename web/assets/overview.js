// The overview: the activity of all queues, now and in the last hour.

import { h, panel, put, text } from "./dom.js";
import { age, count, rate } from "./format.js";
import { Chart, hour, spark } from "./chart.js";
import { examine, health, href, learn, live, look, rates } from "./server.js";
import { Table } from "./table.js";

export const laneName = (lane) => (lane.stage ? `${lane.queue} / ${lane.stage}` : lane.queue);

const laneKey = (lane) => JSON.stringify([lane.queue, lane.stage ?? null]);

/** Returns the sums of the lanes' columns. */
export function sums(lanes, of) {
  const add = (column) => lanes.reduce((all, lane) => all + lane[column], 0);
  const flow = (column) => {
    const all = lanes.map((lane) => of(lane, column));
    return all.includes(null) ? null : all.includes(undefined) || all.length === 0 ? undefined
        : all.reduce((a, b) => a + b, 0);
  };
  return { add, flow };
}

/** Returns a number with its name. */
export class Tile {
  constructor(label, kind = "", link = null) {
    this.label = h("span", { class: "name" }, label);
    this.number = h("span", { class: "big" });
    this.note = h("span", { class: "note" });
    this.element = h(link ? "a" : "div", { class: `tile ${kind}`, href: link }, this.label, this.number, this.note);
  }

  name(label) {
    text(this.label, label);
  }

  show(number, note = "") {
    text(this.number, number);
    text(this.note, note);
  }
}

export function overview() {
  const tiles = {
    done: new Tile("completed a second", "accent"), in: new Tile("enqueued a second"),
    running: new Tile("running", "running"),
    ready: new Tile("ready", "ready"), late: new Tile("scheduled, retrying", "scheduled"),
    dead: new Tile("dead", "dead", href("errors")),
  };
  const chart = new Chart("All queues, last hour", "minute");
  let activity = new Map(), known = new Map();
  const settings = (lane) => known.get(lane.queue) ?? {};
  const limit = (lane) => settings(lane).max_running ?? null;
  const hourOf = (lane) => activity.get(laneKey(lane));
  let of = rates(), feeders = new Map();
  const number = (title, column, wide) => ({ title, number: true, wide, cell: (lane) => count(lane[column]) });
  const flow = (title, columns, help) => ({
    title, help, number: true, wide: true, cell: (lane) => {
      const all = columns.map((column) => of(lane, column));
      return all.includes(null) ? "–" : all.includes(undefined) ? "" : rate(all.reduce((a, b) => a + b, 0));
    },
  });
  const queues = new Table("Queues", [
    {
      title: "queue", key: (lane) => `${lane.queue} ${lane.stage} ${settings(lane).is_paused} `
          + `${feeders.get(lane.queue)} ${isAlone(lane)}`,
      cell: (lane) => [h("a", { href: href("queue", { queue: lane.queue, stage: lane.stage }) }, laneName(lane)),
        settings(lane).is_paused ? h("span", { class: "badge paused" }, "paused") : null,
        feeders.has(lane.queue) ? h("span", { class: "badge other",
            title: `dead letters of ${feeders.get(lane.queue).join(", ")}` }, "dead letters") : null,
        isAlone(lane) ? h("span", { class: "badge dead",
            title: "jobs are ready, and no worker has one or waits for one" }, "no worker") : null],
    },
    { title: "last hour", wide: true, kind: "narrow", key: (lane) => hourOf(lane)?.stamp,
        cell: (lane) => (hourOf(lane) ? spark(hourOf(lane).points) : "") },
    number("ready", "ready"),
    {
      title: "running", number: true, key: (lane) => `${lane.running} ${limit(lane)}`,
      cell: (lane) => (limit(lane) && !lane.stage
          ? h("span", { class: "gauge" }, h("meter",
              { max: limit(lane), value: lane.running, "aria-label": "of max_running" }),
              `${count(lane.running)} / ${count(limit(lane))}`) : count(lane.running)),
    },
    number("scheduled", "scheduled", true), number("retrying", "retrying", true), number("held", "held", true),
    {
      title: "dead", number: true, key: (lane) => lane.dead,
      cell: (lane) => (lane.dead ? h("a", { class: "deadly",
          href: href("queue", { queue: lane.queue, state: "dead" }) }, count(lane.dead)) : "0"),
    },
    flow("in /s", ["enqueued"], "jobs enqueued a second"),
    flow("done /s", ["completed"], "jobs completed a second, or done in this stage"),
    flow("failed /s", ["failed", "timed_out"], "attempts failed or timed out a second"),
    { title: "oldest", number: true, help: "how long the oldest ready job has been ready",
        cell: (lane) => (lane.oldest === null ? "" : age(lane.oldest)) },
  ], (lane) => JSON.stringify([lane.queue, lane.stage]),
  { empty: "There are no queues that you may observe.", kind: "rows" });
  const workers = workersTable();
  const unwell = h("div");
  const note = h("div");
  const element = h("div", null,
    h("h1", { class: "hidden" }, "Overview"), unwell, note,
    h("div", { class: "tiles" }, Object.values(tiles).map((tile) => tile.element)),
    panel("Last hour", chart.element),
    panel("Queues", queues.element),
    panel("Workers", workers.element, h("a", { href: href("workers") }, "all")));
  return {
    title: "Overview", element, every: 15,
    update() {
      const data = live.data;
      if (!data) return;
      of = rates();
      const lanes = data.lanes ?? data.queues.map((q) => ({ queue: q.queue, stage: null }));
      known = new Map(data.queues.map((q) => [q.queue, q]));
      feeders = deadLetters(data.queues);
      watchWorkers(data);
      const add = (column) => data.total[column], flow = (column) => (data.total ? of(data.total, column) : null);
      const hasStages = lanes.some((lane) => lane.stage);
      tiles.done.name(hasStages ? "done a second" : "completed a second");
      tiles.done.element.title = hasStages ? "jobs completed, and stages of jobs done" : "";
      chart.word(hasStages ? "jobs and stages done" : "completed");
      const some = new Set(lanes.map((lane) => lane.queue)).size;
      const part = data.queue_count > some ? h("p", { class: "notice" },
          `${count(some)} of ${count(
              data.queue_count)} queues are shown, those that have jobs first; the sums are of all. `
              + "The field above goes to a queue by its name.") : null;
      put(note, part, data.lanes ? null : h("p", { class: "notice" },
          "Counting takes longer than two seconds here, so there are no counts: on a standby all logs have to be read, "
            + "and after a start until the worker has counted."));
      tiles.done.show(rate(flow("completed")),
          data.lanes && flow("failed") !== undefined
              ? `${rate((flow("failed") ?? 0) + (flow("timed_out") ?? 0))} failed` : "");
      tiles.in.show(rate(flow("enqueued")));
      if (data.lanes) {
        tiles.running.show(count(add("running")),
            `${count(workersOf(data).filter((w) => w.running).length)} busy, `
            + `${count(workersOf(data).filter((w) => !w.running).length)} idle workers`);
        tiles.ready.show(count(add("ready")), add("oldest") === null ? "" : `oldest ${age(add("oldest"))}`);
        tiles.late.show(count(add("scheduled") + add("retrying")),
            `${count(add("retrying"))} retrying, ${count(add("held"))} held`);
        tiles.dead.show(count(add("dead")), add("expired") > 0 ? `${count(add("expired"))} expired, ever` : "");
        tiles.dead.element.classList.toggle("some", add("dead") > 0);
      }
      queues.show(lanes);
      workers.empty = data.is_standby ? "Which workers have jobs is known to the primary alone."
          : "No worker has a job or waits for one.";
      workers.show(workersOf(data).slice(0, 8));
      const ill = health.ill ?? [];
      put(unwell, ill.length ? h("p", { class: "notice ill" },
          h("a", { href: href("doctor") }, ill.length === 1 ? "One check of the doctor is not well"
              : `${ill.length} checks of the doctor are not well`), `: ${ill.map((check) => check.name).join(", ")}`)
              : null);
    },
    async refresh() {
      const rows = await look("activity");
      const all = rows.filter((row) => row[0] === null);
      const byLane = Map.groupBy(rows.filter((row) => row[0] !== null),
          (row) => laneKey({ queue: row[0], stage: row[8] }));
      const stamp = Date.now();
      activity = new Map([...byLane].map(([key, some]) => [key, { stamp, points: hour(some) }]));
      chart.show(hour(all));
      learn(rows);
      this.update();
      await examine();
    },
  };
}

/** Returns the queues that feed each dead-letter queue. */
export function deadLetters(queues) {
  const found = new Map();
  for (const q of queues) if (q.dead_letter) found.set(q.dead_letter, [...(found.get(q.dead_letter) ?? []), q.queue]);
  return found;
}

/** A worker that polls is not seen between two claims. So a queue counts as without workers after this many seconds. */
const ALONE_AFTER = 10;
/** The time at which each queue was first seen without a worker. */
const aloneSince = new Map();
let seenAt = 0;

function watchWorkers(data) {
  const served = new Set(data.workers.map((w) => w.queue));
  const isKnown = !data.is_standby && data.workers.length < 500;
  seenAt = data.at;
  for (const q of data.queues) {
    if (!isKnown || served.has(q.queue) || q.executor || q.is_paused) aloneSince.delete(q.queue);
    else if (!aloneSince.has(q.queue)) aloneSince.set(q.queue, data.at);
  }
}

const isAlone = (lane) => lane.ready > 0 && seenAt - (aloneSince.get(lane.queue) ?? seenAt) >= ALONE_AFTER;

/** Returns a row for each worker, that is, each connection that has jobs or waits for some. */
export function workersOf(data) {
  const byProcess = Map.groupBy(data.workers.filter((w) => w.queue !== null), (w) => w.pid);
  const most = (values) => values.reduce((all, n) => (n !== null && (all === null || n > all) ? n : all), null);
  return [...byProcess.values()].map((rows) => ({
    ...rows[0], worker: [...new Set(rows.map((w) => w.worker).filter(Boolean))].join(", ") || null,
    queues: [...new Set(rows.map((w) => w.queue))], running: rows.reduce((all, w) => all + w.running, 0),
    oldest: most(rows.map((w) => w.oldest)), waits: most(rows.map((w) => w.waits)),
  }));
}

export function workersTable() {
  return new Table("Workers", [
    { title: "worker", key: (w) => `${w.worker} ${w.running > 0}`,
        cell: (w) => (w.running ? w.worker ?? "unnamed" : h("span", { class: "badge other" }, "idle")) },
    { title: "application", kind: "short", cell: (w) => w.application ?? "" },
    { title: "queues", key: (w) => w.queues.join(), cell: (w) => w.queues.flatMap((one, n) => [n ? ", " : "",
        h("a", { href: href("queue", { queue: one, state: w.running ? "running" : "ready" }) }, one)]) },
    { title: "jobs", number: true, cell: (w) => count(w.running) },
    { title: "oldest job", number: true, cell: (w) => (w.oldest === null ? "" : age(w.oldest)) },
    { title: "waits for jobs", number: true, help: "for how long it has slept in its claim",
        cell: (w) => (w.waits === null ? "" : age(w.waits)) },
    { title: "process", number: true, wide: true, cell: (w) => String(w.pid) },
    { title: "from", wide: true, cell: (w) => (w.client ? `${w.client}:${w.port}` : "local") },
  ], (w) => w.pid, { empty: "No worker has a job or waits for one.", kind: "rows" });
}
