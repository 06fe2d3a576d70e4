// Numbers, times and states for people. Numbers are exact. A text that is cut says so.

import { h } from "./dom.js";

const NUMBER = new Intl.NumberFormat("en-US");
const RATE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1, minimumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const SECONDS = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const STATES = ["running", "ready", "scheduled", "retrying", "held", "dead", "completed", "cancelled",
    "skipped", "expired"];
/** States that the server counts. */
export const COUNTED = ["running", "ready", "scheduled", "retrying", "held", "dead"];
/** States in which a job waits. */
export const WAITING = ["held", "scheduled", "retrying", "ready"];

export const count = (n) => (n === null || n === undefined ? "–" : NUMBER.format(n));

/** Returns a rate per second. Null: it cannot be known; undefined: it is not known yet. */
export const rate = (n) => (n === undefined ? "" : n === null ? "–" : n === 0 ? "0" : n < 0.05 ? "< 0.1" : n < 100
    ? RATE.format(n) : count(Math.round(n)));

/** Returns a length of time, given in seconds. */
export function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const n = Math.max(0, seconds);
  if (n < 1) return `${Math.round(n * 1000)} ms`;
  if (n < 10) return `${(Math.floor(n * 10) / 10).toString()} s`;
  if (n < 60) return `${Math.floor(n)} s`;
  if (n < 3600) return `${Math.floor(n / 60)} min ${Math.floor(n % 60)} s`;
  if (n < 86400) return `${Math.floor(n / 3600)} h ${Math.floor((n % 3600) / 60)} min`;
  return `${Math.floor(n / 86400)} d ${Math.floor((n % 86400) / 3600)} h`;
}

const INTERVAL = /^(?:(\d+) years? ?)?(?:(\d+) mons? ?)?(?:(\d+) days? ?)?(?:(\d+):(\d\d):(\d\d(?:\.\d+)?))?$/;

/**
 * Returns an interval of Postgres in a form that people use and that Postgres reads: 00:05:00 is 5 min. Other texts
 * stay unchanged.
 */
export function interval(text) {
  const found = text ? INTERVAL.exec(text) : null;
  if (!found) return text;
  const [years, months, days, hours, minutes, seconds] = found.slice(1).map((part) => Number(part ?? 0));
  const many = (n, unit) => (n ? `${n} ${unit}${n === 1 ? "" : "s"}` : null);
  const short = seconds < 1 && !hours && !minutes ? `${+(seconds * 1000).toFixed(3)} ms` : `${seconds} s`;
  const parts = [many(years, "year"), many(months, "month"), many(days, "day"), hours && `${hours} h`,
      minutes && `${minutes} min`, seconds && short];
  return parts.filter(Boolean).join(" ") || "0 s";
}

/** Returns the first line of a text. Packages put a trace behind the first line of an error. */
export const firstLine = (text) => (text ?? "").split("\n", 1)[0];

export const clock = (seconds) => CLOCK.format(new Date(seconds * 1000));
export const day = (seconds) => DAY.format(new Date(seconds * 1000));

/** Returns a moment. If it is near, by its distance from now. The exact time is in the title. */
export function when(iso) {
  if (!iso) return "–";
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return String(iso);
  const seconds = (Date.now() - at.getTime()) / 1000;
  const far = Math.abs(seconds) < 86400 * 2 ? (seconds >= 0 ? `${age(seconds)} ago` : `in ${age(-seconds)}`)
    : `${DAY.format(at)} ${at.getFullYear()}, ${CLOCK.format(at)}`;
  return h("time", { datetime: iso, title: iso }, far);
}

/** Returns the clock time of a moment, with the day if it is not today; to the second, or to the millisecond. */
export function exactText(at, isFine = false) {
  const isToday = at.toDateString() === new Date().toDateString();
  const time = `${SECONDS.format(at)}${isFine ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : ""}`;
  return isToday ? time : `${DAY.format(at)} ${time}`;
}

export function exact(iso, isFine = false) {
  if (!iso) return "–";
  return h("time", { datetime: iso, title: iso }, exactText(new Date(iso), isFine));
}

/** Returns a moment in a time zone of its own. If the browser does not know the zone: in that of the browser. */
export function inZone(iso, timeZone) {
  const at = new Date(iso);
  try {
    const options = { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", timeZone };
    const seconds = at.getTime() % 60000 ? { second: "2-digit" } : {};
    return h("time", { datetime: iso, title: iso },
        new Intl.DateTimeFormat("en-GB", { ...options, ...seconds }).format(at));
  } catch {
    return exact(iso);
  }
}

export const badge = (state) => h("span", { class: `badge ${STATES.includes(state) ? state : "other"}` }, state);

export function bytes(n) {
  if (n === null || n === undefined) return "";
  return n < 1000 ? `${n} B` : n < 1e6 ? `${(n / 1000).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`;
}

/** Returns the done share of a job, from 0 to 1, if its progress has one: see docs/dashboard.md. */
export function share(progress) {
  let said = progress;
  try { if (typeof said === "string") said = JSON.parse(said); } catch { return null; }
  const part = (done, total) => (Number.isFinite(done) && Number.isFinite(total) && total > 0 ? clamp(done / total)
      : null);
  if (typeof said === "number") return said <= 1 ? clamp(said) : said <= 100 ? clamp(said / 100) : null;
  if (said === null || typeof said !== "object") return null;
  if (Number.isFinite(said.percent)) return clamp(said.percent / 100);
  if (Number.isFinite(said.share)) return clamp(said.share);
  return part(said.done, said.total);
}

const clamp = (n) => (Number.isFinite(n) ? Math.min(1, Math.max(0, n)) : null);

/** Returns a bar for a share, or nothing if the share is unknown. */
export function progressBar(progress) {
  const found = share(progress);
  if (found === null) return null;
  const label = `${(found * 100).toFixed(found < 1 ? 1 : 0)} %`;
  return h("span", { class: "progress" }, h("progress", { max: "1", value: String(found), "aria-label": label }),
      h("span", null, label));
}
