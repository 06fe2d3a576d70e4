// Verbs for many jobs: counts the jobs that a verb would find, asks, and runs the verb in parts. A cancel can be
// undone.

import { button, h, put, say, text, trouble } from "./dom.js";
import { form, open } from "./dialog.js";
import { count, WAITING } from "./format.js";
import { act, chosen, look } from "./server.js";

const VERBS = {
  retry: { call: "retry_many", label: "Retry", done: "retried",
      states: ["dead", "retrying", "cancelled", "completed", "skipped", "expired", "scheduled"] },
  cancel: { call: "cancel_many", label: "Cancel", done: "cancelled", states: [...WAITING, "running"] },
  reprioritize: { call: "reprioritize_many", label: "Set priority", done: "changed", states: WAITING },
};

/** The verbs for jobs of a state. */
export const verbsFor = (state) => Object.keys(VERBS).filter((verb) => VERBS[verb].states.includes(state));

/** Searches stop counting after this many calls. */
const PATIENCE = 40;

/** `filter`: the filter of the search, in the server's form. `known`: the number of jobs, if it is known. */
export function bulk(verb, queue, states, filter = {}, known = null) {
  const { call, label, done } = VERBS[verb];
  const status = h("p", { class: "status", role: "status" }, "Counting …");
  const bar = h("progress", { max: "1", value: "0", hidden: true });
  const problem = h("div");
  const reason = h("input", { name: "reason", autocomplete: "off", placeholder: "why, for the record" });
  const priority = h("input", { name: "priority", type: "number", value: "0", required: true });
  const go = button(label, run, verb === "cancel" ? "danger" : "primary", { disabled: true });
  const stop = button("Close", () => dialog.close(), "quiet");
  const search = { queue, states: JSON.stringify(states), ...filter };
  const what = filter.filter ?? (filter.value ? `${filter.field} ${filter.op} ${filter.value}` : null);
  let found = null, closed = false;
  const dialog = h("dialog", { "aria-label": `${label} jobs` },
    h("h2", null, `${label} jobs`),
    h("p", null, h("strong", null, states.join(", ")), " jobs of ", h("strong", null, queue),
        what ? [" that match ", h("code", null, what)] : null),
    verb === "cancel" ? h("label", { class: "field" }, h("span", null, "Reason"), reason) : null,
    verb === "reprioritize" ? h("label", { class: "field" }, h("span", null, "Priority"), priority,
        h("small", null, "smaller runs first")) : null,
    status, bar, problem, h("footer", null, stop, go));
  dialog.addEventListener("close", () => { closed = true; });
  open(dialog);
  tally();

  async function tally() {
    try {
      let jobs = 0, read = 0, here = null, calls = 0;
      if (known !== null) {
        [jobs, here] = [known, null];
      } else {
        do {
          const part = await look("count", { ...search, beyond: here });
          jobs += part.jobs;
          read += part.rows_read;
          here = part.here;
          calls += 1;
          text(status, `${count(jobs)} found so far, ${count(read)} read …`);
        } while (here && calls < PATIENCE && !closed);
      }
      found = jobs;
      text(status, here ? `More than ${count(jobs)} jobs.` : jobs === 1 ? "1 job." : `${count(jobs)} jobs.`);
      text(go, jobs === 0 && !here ? label : `${label} ${here ? "all of them" : count(jobs)}`);
      go.disabled = jobs === 0 && !here;
    } catch (error) {
      put(problem, trouble(error));
    }
  }

  async function run() {
    go.hidden = true;
    bar.hidden = false;
    text(stop, "Stop");
    const ids = [];
    let beyond = null;
    try {
      do {
        const body = { queue, states, ...filter, beyond };
        if (verb === "cancel") body.reason = reason.value;
        if (verb === "reprioritize") body.priority = priority.value;
        const part = await act(call, body);
        ids.push(...part.job_ids);
        beyond = part.here;
        bar.value = found ? Math.min(1, ids.length / found) : 0;
        text(status, `${count(ids.length)} ${done} …`);
      } while (beyond && !closed);
      bar.value = 1;
      text(status, `${count(ids.length)} ${done}${beyond ? ", and stopped" : ""}.`);
    } catch (error) {
      put(problem, trouble(error));
    }
    text(stop, "Close");
    say(`${count(ids.length)} ${done}`);
    if (verb === "cancel" && ids.length) remember(queue, ids);
  }
}

// The cancelled jobs that can be retried. This tab keeps them.

const KEPT = "pg_queue undo";
const MOST = 100000;

function remember(queue, ids) {
  const all = remembered();
  all.unshift({ at: Date.now(), db: chosen.db, queue, ids });
  while (all.length > 5 || all.reduce((n, one) => n + one.ids.length, 0) > MOST && all.length > 1) all.pop();
  keep(all);
}

function keep(all) {
  try { sessionStorage.setItem(KEPT, JSON.stringify(all));
  } catch { say("what was cancelled is too much to keep: it cannot be undone here"); }
  dispatchEvent(new Event("acted"));
}

function remembered() {
  try { return JSON.parse(sessionStorage.getItem(KEPT)) ?? []; } catch { return []; }
}

/** Asks, and retries or cancels the jobs with these ids. */
export function selected(verb, queue, ids, then) {
  const label = VERBS[verb].label, many = ids.length === 1 ? "1 job" : `${count(ids.length)} jobs`;
  form(`${label} ${many}?`, {
    text: verb === "retry" ? "Those that have ended run once more, with attempts counted from 1. Others run now."
        : "Those that run are asked to stop.",
    fields: verb === "cancel" ? [{ name: "reason", label: "Reason", hint: "kept with the jobs" }] : [],
    label: `${label} ${many}`, kind: verb === "cancel" ? "danger" : "primary",
    async submit({ reason }) {
      const changed = [];
      let refused = null;
      for (let n = 0; n < ids.length; n += 500) {
        const part = await act(`${verb}_jobs`, { job_ids: ids.slice(n, n + 500), reason });
        changed.push(...part.job_ids);
        refused ??= part.refused;
      }
      if (verb === "cancel" && changed.length) remember(queue, changed);
      then();
      return `${count(changed.length)} of ${many} ${VERBS[verb].done}${refused ? `; ${refused}` : ""}`;
    },
  });
}

/** Returns a line for each cancel of this queue that can be undone. */
export function undoable(queue) {
  return remembered().filter((one) => one.queue === queue && one.db === chosen.db).map((one) => {
    const line = h("p", { class: "undo" }, `${count(one.ids.length)} jobs were cancelled here. `,
        button("Undo: retry these", undo, "quiet"));
    async function undo(event) {
      event.target.disabled = true;
      const left = [...one.ids];
      let back = 0;
      try {
        while (left.length) {
          const part = left.slice(0, 500);
          back += (await act("retry_jobs", { job_ids: part })).job_ids.length;
          left.splice(0, 500);
          text(line, `${count(back)} of ${count(one.ids.length)} retried …`);
        }
        say(`${count(back)} of ${count(one.ids.length)} jobs retried`);
        keep(remembered().filter((other) => other.at !== one.at));
      } catch (error) {
        put(line, trouble(error));
      }
    }
    return line;
  });
}
