// A queue: its activity, its limits, and its jobs by state.

import { button, h, panel, put, say, trouble } from "./dom.js";
import { age, badge, COUNTED, count, interval, progressBar, rate, STATES, WAITING, when } from "./format.js";
import { Chart, hour, quarter } from "./chart.js";
import { ask, form } from "./dialog.js";
import { bulk, selected, undoable, verbsFor } from "./bulk.js";
import { act, go, href, learn, live, look, mayAct, rates, session } from "./server.js";
import { Table } from "./table.js";
import { deadLetters, sums, Tile } from "./overview.js";

const OPTIONS = [
  ["max_attempts", "Attempts", "after so many a failing job is dead"],
  ["lease", "Lease", "how long a claim lasts without a heartbeat"],
  ["backoff", "Backoff", ""], ["backoff_base", "First delay", ""], ["backoff_max", "Longest delay", ""],
  ["backoff_jitter", "Jitter", "0 to 1"],
  ["max_running", "Running at most", "empty: any number"],
  ["max_running_per_group", "Running at most, of a group", "empty: any number"],
  ["rate_limit", "Starts at most", "in each period; empty: any number"], ["rate_period", "Period of that", ""],
  ["rate_limit_per_group", "Starts at most, of a group", "in each period; empty: any number"],
  ["rate_cost", "What a job counts for that", "a jsonpath, such as $.headers.tokens; empty: 1"],
  ["fair_share", "Shares of groups", "jobs: by weight; empty: none"],
  ["max_waiting", "Waiting at most", "empty: any number"], ["retention", "Kept when completed", "-1: for ever"],
  ["dead_retention", "Kept when dead", "-1: for ever"], ["dead_letter", "Dead letters to", "a queue; empty: none"],
  ["start_within", "Must start within", "else a job expires; empty: any time"],
];

/** Returns whether a retention is for ever: then it is negative. */
const isForEver = (text) => text?.startsWith("-");
const kept = (text) => (isForEver(text) ? "for ever" : interval(text));

/** Returns a setting in the form in which people type it. */
const asTyped = (option, text) => (/retention$/.test(option) && isForEver(text) ? "-1"
    : /^(lease|backoff_base|backoff_max|rate_period|retention|dead_retention|start_within)$/.test(option)
        ? interval(text) : text);

/** Returns a table of jobs in a state, with the columns that matter in it. `onPick`: rows can be ticked. */
function jobs(state, onMore, onPick) {
  const time = { ready: ["enqueued", "enqueued_at"], scheduled: ["runs", "run_at"], retrying: ["runs", "run_at"],
      held: ["enqueued", "enqueued_at"], running: ["started", "claimed_at"] }[state] ?? ["ended", "finished_at"];
  const isFailed = ["dead", "retrying", "cancelled", "skipped"].includes(state);
  const table = new Table(`${state} jobs`, [
    { title: "job", key: (j) => j.job_id, cell: (j) =>
        h("a", { class: "id", href: href("job", { job: j.job_id }) }, String(j.job_id)) },
    state === "" ? { title: "state", key: (j) => j.state, cell: (j) => badge(j.state) } : null,
    { title: "payload", kind: "cut", key: (j) => j.payload ?? j.payload_bytes,
        cell: (j) => h("code", null, j.payload
            ?? (session.hides_payload ? "hidden" : `${count(j.payload_bytes)} bytes`)) },
    isFailed || state === "" ? { title: "error", kind: "cut wrong", cell: (j) => j.error ?? "" } : null,
    state === "running" ? { title: "progress", key: (j) => j.progress, cell: (j) => progressBar(j.progress) ?? "" }
        : null,
    state === "running" ? { title: "worker", cell: (j) => j.worker ?? "" } : null,
    { title: "attempt", number: true, wide: true, 
        cell: (j) => (j.attempt > 1 || isFailed ? `${count(j.attempt)} / ${count(j.max_attempts)}` : "") },
    { title: "priority", number: true, wide: true, cell: (j) => (j.priority === 0 ? "" : String(j.priority)) },
    { title: "key", wide: true, kind: "short", cell: (j) => j.unique_key ?? j.group_key ?? "" },
    { title: time[0], number: true, cell: (j) => when(j[time[1]] ?? j.run_at ?? j.enqueued_at) },
  ].filter(Boolean), (j) => j.job_id, 
      { empty: `No ${state ? `${state} jobs` : "job found"}.`, kind: "rows jobs", onPick });
  const more = button("More", onMore, "more", { hidden: true });
  return { table, more, element: h("div", null, table.element, more) };
}

export function queue(params) {
  const name = params.get("queue") ?? "", stage = params.get("stage") ?? "";
  const state = STATES.includes(params.get("state")) ? params.get("state") : null;
  const search = { filter: params.get("filter") ?? "", field: params.get("field") ?? "", op: params.get("op") ?? "",
      value: params.get("value") ?? "" };
  const isSearch = Boolean(search.filter || search.value);
  // If no state is given, the first tab with jobs opens as soon as the counts are known.
  let chosen = state ?? (isSearch ? "" : null);
  const to = (more) => href("queue", { queue: name, stage, ...more });
  let settings = null, rows = [], here = null, extra = 0, apart = null;
  // The stream has only some queues, so this one is requested.
  const streamed = () => live.data?.lanes?.filter((lane) => lane.queue === name) ?? [];
  const ownLanes = () => { const those = streamed(); return those.length ? those : apart ?? []; };
  const flow = { in: new Tile("enqueued a second"), done: new Tile("completed a second", "accent"),
      failed: new Tile("failed a second") };
  const tabs = STATES.map((one) => {
    const number = h("b");
    return { one, number, element: h("a", { class: `tab ${one}`, href: to({ state: one }) }, h("span", null, one),
        number) };
  });
  const minutes = new Chart(`${name}, last hour`, "minute"), days = new Chart(`${name}, 90 days`, "day");
  const limits = h("dl", { class: "facts" }), badges = h("span"), tools = h("div", { class: "tools" }), undo = h("div"),
  found = h("p", { class: "status", role: "status" }), problem = h("div");
  let list = null;
  const listed = h("div");
  const risky = h("p", { class: "apart" });
  const bulks = h("div", { class: "tools" }), picks = h("div", { class: "tools" });
  const stages = stage ? null : stagesTable(name), stagePanel = h("div");
  const times = latency(name, stage), groups = groupsTable(), groupPanel = h("div");
  const title = h("h1", null, stage ? `${name} / ${stage}` : name, " ", badges);
  const element = h("div", null,
    h("div", { class: "head" }, title, tools), undo,
    h("div", { class: "tiles three" }, Object.values(flow).map((tile) => tile.element)),
    h("div", { class: "two" }, panel("Last hour", minutes.element), panel("90 days", days.element)),
    stagePanel, groupPanel,
    h("div", { class: "two" }, times.element,
        panel("Settings", h("div", null, limits, risky), mayAct() ? button("Change", change, "quiet") : null)),
    h("section", { class: "panel" },
      h("nav", { class: "tabs", "aria-label": "States" }, tabs.map((tab) => tab.element)), searchForm(), bulks, picks,
      found, problem, listed));
  if (chosen !== null) choose(chosen);
  const page = {
    // A search reads much, so it runs once, when the viewer starts it.
    title: name, element, every: isSearch ? 600 : 10,
    update() {
      if (!live.data) return;
      const lanes = ownLanes().filter((lane) => !stage || lane.stage === stage);
      const { add, flow: rateOf } = sums(lanes, rates());
      const isKnown = !live.data.lanes || lanes.length > 0 || apart !== null;
      if (chosen === null && isKnown) {
        choose(["ready", "running", "dead", "retrying", "scheduled", "held", "completed"]
            .find((one) => live.data.lanes && add(one) > 0) ?? "ready");
        void load(false);
      }
      const done = lanes.some((lane) => lane.stage) ? "stages done" : "completed";
      minutes.word(done);
      days.word(done);
      flow.done.name(`${done} a second`);
      for (const tab of tabs) if (COUNTED.includes(tab.one)) {
        put(tab.number, !live.data.lanes ? "–" : isKnown ? count(add(tab.one)) : "");
        tab.element.classList.toggle("some", Boolean(live.data.lanes) && add(tab.one) > 0);
      }
      flow.in.show(rate(rateOf("enqueued")), `${count(add("enqueued"))} ever`);
      flow.done.show(rate(rateOf("completed")), `${count(add("completed"))} ever`);
      flow.failed.show(rate(rateOf("failed") === null || rateOf("failed") === undefined ? rateOf("failed")
          : rateOf("failed") + rateOf("timed_out")),
          `${count(add("failed"))} failed, ${count(add("timed_out"))} timed out, ${count(add("died"))} died, `
          + `${count(add("expired"))} expired`);
      const now = live.data.queues.find((q) => q.queue === name) ?? settings;
      const running = ownLanes().reduce((n, lane) => n + lane.running, 0);
      const feeds = settings?.feeds ?? deadLetters(live.data.queues).get(name) ?? [];
      if (stages && lanes.some((lane) => lane.stage)) {
        if (!stagePanel.firstChild) put(stagePanel, panel("Stages", stages.element));
        stages.show(lanes);
      }
      put(badges, now?.is_paused ? h("span", { class: "badge paused" }, "paused") : null,
          feeds.length ? h("span", { class: "badge other" }, "dead letters of ", feeds.flatMap((one, n) =>
              [n ? ", " : "", h("a", { href: href("queue", { queue: one, state: "dead" }) }, one)])) : null,
          now?.max_running ? h("span", { class: "gauge" },
              h("meter", { max: now.max_running, value: running, "aria-label": "running, of max_running" }),
              `${count(running)} of ${count(now.max_running)} running`) : null);
      offer(now?.is_paused, lanes);
    },
    async refresh() {
      const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
      const isApart = live.data?.lanes && streamed().length === 0;
      await Promise.all([
        load(false), times.refresh(),
        isApart ? look("lanes", { queue: name }).then((said) => { apart = said; page.update(); }) : null,
        look("queue", { queue: name }).then((said) => { settings = said; facts(); page.update(); }),
        look("groups", { queue: name }).then((said) => {
          const waiting = said.filter((group) => !stage || group.stage === stage);
          if (waiting.length && !groupPanel.firstChild) put(groupPanel, panel("Groups", groups.element));
          groups.show(waiting);
        }),
        look("activity", { queue: name }).then((said) => { learn(said, name); minutes.show(hour(ofStage(said)));
        page.update(); }),
        look("activity", { queue: name, span: "quarter", tz: zone }).then((said) => days.show(quarter(ofStage(said)))),
      ]);
    },
  };
  return page;

  /** Shows the jobs of this state. */
  function choose(one) {
    chosen = one;
    list = jobs(one, () => load(true), mayAct() && tickable(one).length ? offerPicked : null);
    put(listed, list.element);
    for (const tab of tabs) if (tab.one === one && !isSearch) tab.element.setAttribute("aria-current", "page");
  }

  /** Returns the verbs for ticked jobs of a state. */
  function tickable(one) {
    return (one ? verbsFor(one) : ["retry", "cancel"]).filter((verb) => verb !== "reprioritize");
  }

  function offerPicked(picked) {
    const again = () => { list.table.pick([...picked], false); };
    put(picks, picked.size ? [h("span", { class: "note" }, `${count(picked.size)} selected`),
        tickable(chosen).map((verb) => button({ retry: "Retry these", cancel: "Cancel these" }[verb],
            () => selected(verb, name, [...picked].map(Number), again), verb === "cancel" ? "danger" : ""))] : null);
  }

  function ofStage(all) {
    return stage ? all.filter((row) => row[8] === stage) : all;
  }

  function offer(isPaused, lanes) {
    const key = JSON.stringify([isPaused, mayAct(), chosen, lanes.map((lane) => lane[chosen])]);
    if (offer.key === key) return;
    offer.key = key;
    put(undo, undoable(name));
    if (!mayAct()) {
      put(tools);
      put(risky);
      delete tools.dataset.paused;
      return;
    }
    if (tools.dataset.paused !== String(isPaused)) {
      tools.dataset.paused = String(isPaused);
      put(tools,
        isPaused ? button("Resume", async () => { try { await act("resume", { queue: name }); say(`${name} goes on`);
        } catch (e) { put(problem, trouble(e)); } }, "primary")
          : button("Pause", () => ask(`Pause ${name}?`,
              "Claims find nothing until it is resumed. Running jobs and producers go on.", "Pause", "danger",
              async () => { await act("pause", { queue: name }); return `${name} is paused`; })),
        button("Enqueue", enqueue));
      put(risky, button("Purge", () => bulk("cancel", name, WAITING), "danger"),
          h("span", { class: "note" }, "cancels all jobs that wait"));
    }
    // The server's count at the last look. It may be out of date.
    const known = () => (isSearch || stage || !COUNTED.includes(chosen) ? null
        : ownLanes().reduce((n, lane) => n + lane[chosen], 0) || null);
    const states = chosen ? [chosen] : null;
    put(bulks, (states ? verbsFor(chosen) : []).filter(() => !stage).map((verb) =>
      button(`${{ retry: "Retry", cancel: "Cancel", reprioritize: "Set priority of" }[verb]} ${isSearch
          ? "all that match" : "all"} …`, () => bulk(verb, name, states, pick(search), known()), "quiet")));
  }

  async function load(isMore) {
    if (chosen === null) return;
    try {
      if (isMore) extra += 1;
      // All shown pages are read again, so that no job is shown twice.
      let next = null, all = [], read = 0;
      for (let n = 0; n <= extra; n += 1) {
        const part = isSearch ? await look("search",
            { queue: name, ...pick(search), states: state ? JSON.stringify([state]) : null, beyond: next })
          : await look("jobs", { queue: name, state: chosen, stage, beyond: next });
        read += part.at(-1)?.rows_read ?? 0;
        all = all.concat(part.filter((row) => row.job_id !== null));
        next = part.at(-1)?.here ?? null;
        if (!next) break;
      }
      [rows, here] = [all, next];
      list.table.show(rows);
      list.more.hidden = !here;
      put(problem);
      put(found, isSearch ? `${count(rows.length)} found${here ? `, ${count(read)} jobs read so far`
          : ", all were read"}.` : null);
      put(list.more, isSearch ? "Go on searching" : "More");
    } catch (error) {
      list.table.show([]);
      put(problem, trouble(error));
    }
  }

  /** True if a queue has this name: dead letters may go to a topic. */
  function isQueue(one) {
    return Boolean(one) && (live.data?.queues ?? []).some((q) => q.queue === one);
  }

  function facts() {
    const q = settings;
    const fact = (label, value) => (value === null || value === undefined || value === "" ? null
        : h("div", null, h("dt", null, label), h("dd", null, value instanceof Node ? value : String(value))));
    put(limits, fact("attempts", q.max_attempts), fact("lease", interval(q.lease)),
        fact("backoff", `${q.backoff}, ${interval(q.backoff_base)} to ${interval(q.backoff_max)}`),
      fact("running at most", q.max_running), fact("of a group", q.max_running_per_group),
      fact("rate", q.rate_limit && `${count(q.rate_limit)} in ${interval(q.rate_period)}`),
      fact("waiting at most", q.max_waiting),
      fact("must start within", q.start_within && interval(q.start_within)),
      fact("strict order", q.strict_order ? "yes" : null),
      fact("dead letters", isQueue(q.dead_letter)
          ? h("a", { href: href("queue", { queue: q.dead_letter }) }, q.dead_letter) : q.dead_letter),
      fact("kept", `${kept(q.retention)}; dead ${kept(q.dead_retention)}`), fact("stages", q.stages?.join(" → ")),
      fact("executor", q.executor),
      fact("procedure", q.procedure), fact("runs as", q.run_as), fact("created", q.created_at?.slice(0, 10)));
  }

  function change() {
    if (!settings) return;
    const was = (option) => (settings[option] === null || settings[option] === undefined ? ""
        : asTyped(option, String(settings[option])));
    form(`Settings of ${name}`, {
      label: "Change", text: "What is emptied goes back to its default.",
      fields: OPTIONS.map(([option, label, hint]) =>
          ({ name: option, label, hint, value: was(option),
              options: option === "backoff" ? ["constant", "linear", "exponential"] : null })),
      async submit(values) {
        const changed = Object.entries(values).filter(([option, value]) => value !== was(option));
        if (!changed.length) return null;
        const reset = changed.filter(([, value]) => value === "").map(([option]) => option);
        await act("alter", { queue: name, ...Object.fromEntries(changed.filter(([, value]) => value !== "")),
            ...(reset.length ? { reset } : {}) });
        return `${name} is changed`;
      },
    });
  }

  function enqueue() {
    const example = rows.find((row) => row.payload && row.payload.length < 240)?.payload;
    form(`Enqueue into ${name}`, {
      label: "Enqueue",
      fields: [
        { name: "payload", label: "Payload", type: "textarea", value: example ?? "{}", hint: "JSON" },
        { name: "priority", label: "Priority", type: "number", hint: "smaller runs first; empty: 0" },
        { name: "delay", label: "Delay", hint: "such as 10 minutes" },
        { name: "unique_key", label: "Unique key" }, { name: "group_key", label: "Group" },
        settings?.stages ? { name: "stage", label: "Stage", options: settings.stages } : null,
      ].filter(Boolean),
      async submit(values) {
        const done = await act("enqueue", { queue: name, ...values });
        go("job", { job: done.answer });
        return `job ${done.answer} is enqueued`;
      },
    });
  }

  function searchForm() {
    const isOfErrors = ["dead", "retrying"].includes(state);
    const field = h("select", { name: "field", "aria-label": "Field" },
        [...(session.hides_payload ? [] : ["payload"]), "unique_key", "group_key", "job_id", "error", "worker", "task",
            "stage"].sort((a, b) => (isOfErrors ? (b === "error") - (a === "error") : 0))
            .map((one) => h("option", { value: one, selected: one === search.field }, one)),
      session.hides_payload ? null : h("option", { value: "filter", selected: Boolean(search.filter) }, "jsonpath"));
    const op = h("select", { name: "op", "aria-label": "Comparison" },
        ["contains", "starts", "equals"].map((one) => h("option", { value: one, selected: one === search.op }, one)));
    const value = h("input", { type: "search", name: "value", "data-search": true, value: search.filter || search.value,
        placeholder: "search these jobs", "aria-label": "Search", spellcheck: "false" });
    const fit = () => {
      op.hidden = field.value === "filter" || field.value === "job_id";
      value.placeholder = field.value === "filter" ? "$.payload.to == 7" : "search these jobs";
    };
    field.addEventListener("change", fit);
    fit();
    return h("form", {
      class: "search", role: "search", onsubmit(event) {
        event.preventDefault();
        const isPath = field.value === "filter";
        go("queue", { queue: name, stage, state: state ?? "",
            ...(value.value ? (isPath ? { filter: value.value }
            : { field: field.value, op: field.value === "job_id" ? "equals" : op.value, value: value.value }) : {}) });
      },
    }, field, op, value, h("button", null, "Search"),
    isSearch ? h("a", { href: to({ state: state ?? "" }) }, "clear") : null,
      isSearch && state ? h("a", { href: to(search) }, "in all states") : null);
  }
}

/** Returns a table with a row for each stage. */
function stagesTable(name) {
  const number = (title) => ({ title, number: true, wide: title === "scheduled", cell: (lane) => count(lane[title]) });
  return new Table("Stages", [
    { title: "stage", cell: (lane) => h("a", { href: href("queue", { queue: name, stage: lane.stage }) }, lane.stage),
        key: (lane) => lane.stage },
    number("ready"), number("running"), number("scheduled"), number("retrying"), number("dead"),
    { title: "stages done, ever", number: true, wide: true, cell: (lane) => count(lane.completed) },
    { title: "oldest", number: true, wide: true, help: "how long the oldest ready job has been ready",
        cell: (lane) => (lane.oldest === null || lane.oldest === undefined ? "" : age(lane.oldest)) },
  ], (lane) => lane.stage, { empty: "There are no stages.", kind: "rows" });
}

/** Returns the groups that have waiting jobs, in the order of their turns. */
function groupsTable() {
  const number = (title, cell, help) => ({ title, number: true, cell, help });
  return new Table("Groups", [
    { title: "group", cell: (g) => (g.group_key === null ? "no key" : g.group_key), key: (g) => g.group_key },
    number("ahead", (g) => count(g.ahead), "how many groups come before it"),
    number("running", (g) => count(g.running)),
    { title: "next job", cell: (g) => h("a", { class: "id", href: href("job", { job: g.next_job_id }) },
        String(g.next_job_id)) },
    number("waits", (g) => age(g.waits), "how long its next job has been ready"),
    { title: "weight", number: true, wide: true, cell: (g) => String(g.weight) },
    { title: "throttled", wide: true, cell: (g) => (g.throttled_until ? when(g.throttled_until) : "") },
  ], (g) => `${g.stage} ${g.group_key}`, { empty: "No group waits.", kind: "rows" });
}

/** Returns how long jobs waited and ran: in the last minute, and if the viewer asks for it in the last hour. */
function latency(name, stage) {
  const body = h("div"), quantiles = ["0.5", "0.95", "0.99"];
  let hour = null;
  const ask = button("Last hour", async () => {
    try {
      hour = await look("latency", { queue: name, span: "hour" });
      show(hour);
    } catch (e) {
      put(body, trouble(e));
    }
  }, "quiet");
  const element = panel("Latency", body, ask);
  function show(rows) {
    const ofStage = rows.filter((row) => !stage || row.stage === stage);
    const names = [...new Set(ofStage.map((row) => row.stage))].sort();
    const cell = (one, kind, q) => {
      const found = ofStage.find((row) => row.stage === one && row.kind === kind && Number(row.quantile) === Number(q));
      return h("td", { class: "number" }, found ? (found.seconds < 0.001 ? "< 1 ms" : age(found.seconds)) : "");
    };
    const span = hour ? "the last hour" : "the last minute";
    put(body, names.length ? h("table", { class: "quantiles" },
        h("thead", null, h("tr", null, h("th", null, span), ["p50", "p95", "p99"].map((q) =>
            h("th", { class: "number" }, q)))),
        h("tbody", null, names.flatMap((one) => [["wait", "waited"], ["run", "ran"]].map(([kind, word]) =>
            h("tr", null, h("th", null, one && !stage ? `${one}: ${word}` : word),
                quantiles.map((q) => cell(one, kind, q)))))))
        : h("p", { class: "empty" }, `No job was claimed or ended in ${span}.`));
  }
  return { element, async refresh() { if (!hour) show(await look("latency", { queue: name })); } };
}

const pick = (search) => Object.fromEntries(Object.entries(search).filter(([, value]) => value));

