// Charts: bars for the ended jobs of each minute or day, with a line for the enqueued jobs. Also small charts for
// tables.

import { h, put, s } from "./dom.js";
import { clock, count, day, exactText } from "./format.js";

/** Rows of the server: [queue, begin, enqueued, completed, failed, timed out, died, is_complete, stage]. */
export function points(rows, from, step, steps) {
  const all = Array.from({ length: steps }, (_, n) =>
      ({ at: from + n * step, enqueued: 0, completed: 0, failed: 0, died: 0 }));
  for (const [, at, enqueued, completed, failed, timedOut, died] of rows) {
    const point = all[Math.round((at - from) / step)];
    if (!point) continue;
    point.enqueued += enqueued;
    point.completed += completed;
    point.failed += failed + timedOut;
    point.died += died;
  }
  return all;
}

/** Returns the points of the last hour, by the minute. */
export function hour(rows, now = Date.now() / 1000) {
  return points(rows, Math.floor(now / 60) * 60 - 59 * 60, 60, 60);
}

/** Returns the points of the last days. Days have 23 to 25 hours where clocks change, so each has its own begin. */
export function quarter(rows) {
  const today = new Date();
  const days = Array.from({ length: 90 }, (_, n) =>
      new Date(today.getFullYear(), today.getMonth(), today.getDate() - 89 + n).getTime() / 1000);
  const all = days.map((at) => ({ at, enqueued: 0, completed: 0, failed: 0, died: 0 }));
  for (const row of rows) {
    const point = all.findLast((known) => known.at <= row[1] + 1);
    if (!point) continue;
    point.enqueued += row[2];
    point.completed += row[3];
    point.failed += row[4] + row[5];
    point.died += row[6];
  }
  return all;
}

function nice(most) {
  if (most <= 4) return Math.max(1, Math.ceil(most));
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((n) => n * power).find((n) => n >= most);
}

const short = (n) => (n >= 1e6 ? `${+(n / 1e6).toFixed(1)}M` : n >= 1e4 ? `${+(n / 1e3).toFixed(1)}k` : count(n));

export class Chart {
  /** `unit`: "minute" or "day". */
  constructor(label, unit) {
    this.label = label;
    this.unit = unit;
    this.points = [];
    /** The unit of the bars: a stage that is done is not a completed job. */
    this.done = "completed";
    this.said = h("div", { class: "legend" });
    this.svg = s("svg", { class: "chart", role: "img" });
    this.element = h("div", { class: "chartbox" }, this.svg, this.said);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.at = null; this.mark(); });
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.element);
  }

  show(points) {
    this.points = points;
    this.draw();
  }

  /** Sets the unit of the bars. */
  word(done) {
    if (this.done === done) return;
    this.done = done;
    this.mark();
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const n = Math.floor(((event.clientX - box.left - this.left) / (box.width - this.left)) * this.points.length);
    this.at = n >= 0 && n < this.points.length ? n : null;
    this.mark();
  }

  draw() {
    const width = Math.max(240, this.element.clientWidth), height = 132, bottom = 18, top = 6;
    const left = this.left = 40, n = this.points.length || 1;
    const most = nice(Math.max(1, ...this.points.map((p) => Math.max(p.enqueued, p.completed + p.failed))));
    const x = (i) => left + ((width - left) * i) / n;
    const y = (value) => top + (height - top - bottom) * (1 - value / most);
    this.x = x;
    this.box = { top, bottom: height - bottom, step: (width - left) / n };
    const parts = [];
    for (const part of most > 1 ? [0, 0.5, 1] : [0, 1]) {
      parts.push(s("line", { class: "grid", x1: left, x2: width, y1: y(most * part), y2: y(most * part) }),
        s("text", { class: "tick", x: left - 6, y: y(most * part) + 3.5, "text-anchor": "end" }, short(most * part)));
    }
    const gap = Math.min(2, this.box.step * 0.2);
    const bars = { completed: [], failed: [] };
    this.points.forEach((p, i) => {
      const bar = (kind, from, to) => {
        if (to > from) bars[kind].push(`M${(x(i) + gap / 2).toFixed(1)} ${y(from).toFixed(1)}V${y(to)
            .toFixed(1)}h${(this.box.step - gap).toFixed(1)}V${y(from).toFixed(1)}z`);
      };
      bar("completed", 0, p.completed);
      bar("failed", p.completed, p.completed + p.failed);
    });
    parts.push(s("path", { class: "completed", d: bars.completed.join("") }),
        s("path", { class: "failed", d: bars.failed.join("") }));
    const line = this.points.map((p, i) => `${i ? "L"
        : "M"}${(x(i) + this.box.step / 2).toFixed(1)} ${y(p.enqueued).toFixed(1)}`);
    parts.push(s("path", { class: "enqueued", d: line.join("") }));
    const every = this.unit === "day" ? Math.max(7, Math.ceil(90 / (width / 90))) : width < 420 ? 20 : 10;
    this.points.forEach((p, i) => {
      const isMark = this.unit === "day" ? (n - 1 - i) % every === 0 : new Date(p.at * 1000).getMinutes() % every === 0;
      const at = x(i) + this.box.step / 2;
      if (isMark && at > left + 14 && at < width - 14) parts.push(
          s("text", { class: "tick", x: at, y: height - 4, "text-anchor": "middle" }, this.name(p)));
    });
    this.cursor = s("rect", { class: "cursor", width: this.box.step, y: top, height: height - bottom - top,
        visibility: "hidden" });
    parts.push(this.cursor);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    put(this.svg, parts);
    this.mark();
  }

  name(point) {
    return this.unit === "day" ? day(point.at) : clock(point.at);
  }

  mark() {
    const chosen = this.points[this.at];
    const sum = (column) => this.points.reduce((all, p) => all + p[column], 0);
    const of = (column) => count(chosen ? chosen[column] : sum(column));
    const span = chosen ? this.name(chosen) : this.unit === "day" ? "90 days" : "last hour";
    const item = (kind) => h("span", { class: `key ${kind}` }, `${kind === "completed" ? this.done : kind} `,
        h("b", null, of(kind)));
    put(this.said, h("span", { class: "span" }, span), item("enqueued"), item("completed"), item("failed"));
    this.svg.setAttribute("aria-label", `${this.label}: ${this.said.textContent}`);
    if (!this.cursor) return;
    this.cursor.setAttribute("visibility", chosen ? "visible" : "hidden");
    if (chosen) this.cursor.setAttribute("x", this.x(this.at));
  }
}

/** Returns a small chart for a table's cell. */
export function spark(points) {
  const width = 96, height = 22, step = width / points.length;
  const most = Math.max(1, ...points.map((p) => p.completed + p.failed));
  const bars = (low, high) => points.map((p, i) => {
    const [from, to] = [low(p), high(p)];
    if (to <= from) return "";
    const y = (value) => (height - Math.max(value > 0 ? 3 : 0, (height * value) / most)).toFixed(1);
    return `M${(i * step).toFixed(1)} ${y(from)}V${y(to)}h${(step * 0.8).toFixed(1)}V${y(from)}z`;
  }).join("");
  return s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    s("line", { class: "grid", x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 }),
    s("path", { class: "completed", d: bars(() => 0, (p) => p.completed) }),
    s("path", { class: "failed", d: bars((p) => p.completed, (p) => p.completed + p.failed) }));
}

/** Returns a bar for the members of a flow: `counts` has their number by state. What waits has no colour. */
export function flowBar(counts, total) {
  let x = 0;
  const parts = ["completed", "dead", "running", "cancelled", "skipped", "expired"].map((state) => {
    const width = (100 * (counts[state] ?? 0)) / total, part = s("rect", { class: `bar ${state}`, x: `${x}%`,
        width: `${width}%`, y: 0, height: 8 });
    x += width;
    return width ? part : null;
  });
  const label = Object.entries(counts).map(([state, n]) => `${count(n)} ${state}`).join(", ");
  return s("svg", { class: "flowbar", width: 120, height: 8, role: "img",
      "aria-label": `of ${count(total)}: ${label}` }, parts);
}

/** Returns a chart of a job's attempts over time, with a scale and a legend. */
export function timeline(job, attempts) {
  const at = (iso) => (iso ? new Date(iso).getTime() : null);
  const ran = attempts.filter((a) => a.claimed_at).reverse();
  const begin = at(job.enqueued_at) ?? at(ran[0]?.claimed_at);
  const isOver = Boolean(job.finished_at);
  const ends = [at(job.finished_at), at(job.run_at), isOver ? null : Date.now(),
      ...ran.map((a) => at(a.finished_at) ?? at(a.claimed_at))];
  const end = Math.max(begin + 1, ...ends.filter((n) => n !== null));
  const percent = (n) => (Math.min(1, Math.max(0, (n - begin) / (end - begin))) * 100);
  const bar = (kind, from, to, label) =>
    s("rect", { class: `bar ${kind}`, x: `${percent(from)}%`, width: `${Math.max(0.4, percent(to) - percent(from))}%`,
        y: 6, height: 16, rx: 2 }, s("title", null, label));
  const waits = [];
  let last = begin;
  for (const a of ran) {
    if (at(a.claimed_at) > last) waits.push(bar("waited", last, at(a.claimed_at), "waited"));
    last = at(a.finished_at) ?? end;
  }
  if (!isOver && !ran.some((a) => a.state === "running")) waits.push(bar("waited", last, end, "waits"));
  const bars = ran.map((a) => bar(a.state, at(a.claimed_at), at(a.finished_at) ?? end,
      `attempt ${a.attempt}: ${a.state}`));
  const isFine = end - begin < 20000;
  const scale = [0, 1, 2].map((n) => h("span", null, exactText(new Date(begin + ((end - begin) * n) / 2), isFine)));
  const kinds = [...new Set([...(waits.length ? ["waited"] : []), ...ran.map((a) => a.state)])];
  return h("div", { class: "timelinebox" },
      s("svg", { class: "timeline", width: "100%", height: 28, role: "img", "aria-label": `${ran.length} attempts` },
          waits, bars),
      h("div", { class: "scale" }, scale),
      h("div", { class: "legend" }, kinds.map((kind) => h("span", { class: `key bar ${kind}` }, kind))));
}
