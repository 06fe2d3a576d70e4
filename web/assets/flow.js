// A flow: why it is held, and what became of its members.

import { h } from "./dom.js";
import { badge, count } from "./format.js";

/** The order in which members are shown: those that hold the flow first. */
const ORDER = ["dead", "running", "retrying", "ready", "scheduled", "held", "cancelled", "expired", "skipped",
    "completed"];
const rank = (state) => (ORDER.includes(state) ? ORDER.indexOf(state) : ORDER.length);
/** States of members that have never run, or whose run does not count. */
const OUT = ["cancelled", "expired", "skipped"];

export const inOrder = (members) => [...members].sort((a, b) => rank(a.state) - rank(b.state) || a.job_id - b.job_id);

/** Returns the number of members by state. */
export function counted(members) {
  return Object.fromEntries(Object.entries(Object.groupBy(members, (one) => one.state))
      .map(([state, some]) => [state, some.length]));
}

/** Returns the numbers of members as elements. */
export const shares = (counts) => Object.entries(counts).sort(([a], [b]) => rank(a) - rank(b))
    .map(([state, n]) => h("span", { class: "share" }, badge(state), count(n)));

const sum = (counts, states) => states.reduce((all, state) => all + (counts[state] ?? 0), 0);

/** Returns why a flow is held. Null: it is not held, or its members do not hold it. */
export function heldBy(state, counts) {
  if (state !== "held") return null;
  const dead = counts.dead ?? 0, running = counts.running ?? 0;
  const waiting = sum(counts, ["ready", "scheduled", "retrying", "held"]);
  const parts = [dead && `${count(dead)} dead`, running && `${count(running)} running`,
      waiting && `${count(waiting)} waiting`].filter(Boolean);
  return parts.length ? h("span", { class: dead ? "why deadly" : "why" }, `by ${parts.join(", ")}`) : null;
}

/** Returns the state of a flow. If some members did not run, it says how many did. */
export function outcome(state, counts) {
  const total = sum(counts, Object.keys(counts)), ran = total - sum(counts, OUT);
  if (state !== "completed" || total === 0 || ran === total) return badge(state);
  return h("span", { class: `badge ${ran ? "completed" : "other"}` },
      `completed, ${count(ran)} of ${count(total)} ran`);
}
