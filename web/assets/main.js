// The frame: navigation, the viewer, the keyboard, and which page is shown.

import { button, h, put, text, trouble } from "./dom.js";
import { clock } from "./format.js";
import { open } from "./dialog.js";
import { begin, chosen, examine, go, health, href, live, login, logout, pause, restart, session } from "./server.js";
import { overview } from "./overview.js";
import { queue } from "./queue.js";
import { job } from "./job.js";
import { audit, doctor, errors, flows, schedules, topics, workers } from "./pages.js";

/** name: [label, key, page]. Pages without a label are reached from other pages. */
const PAGES = {
  "": ["Overview", "o", overview], errors: ["Errors", "e", errors], schedules: ["Schedules", "s", schedules],
  workers: ["Workers", "w", workers],
  flows: ["Flows", "f", flows], topics: ["Topics", "t", topics], doctor: ["Doctor", "d", doctor],
  audit: ["Audit", "a", audit],
  queue: [null, null, queue], job: [null, null, job],
};

let page = null, timer = null, turn = 0;
const main = document.getElementById("main"), nav = document.getElementById("nav"),
    top = document.getElementById("top");
const problem = h("div"), lost = h("div");
const state = h("span", { class: "live" });
const holder = h("span");
const icon = document.querySelector("link[rel=icon]"), sick = h("span", { class: "sick", hidden: true });
const find = h("input", { type: "search", placeholder: "find", title: "job id, or queue",
    "aria-label": "Go to a job by its id, or to a queue by its name", spellcheck: "false", autocomplete: "off",
    size: "12" });

function parts() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { name, params: new URLSearchParams(query ?? "") };
}

function show() {
  const { name, params } = parts();
  const db = params.get("db") ?? "";
  if (db !== chosen.db) {
    chosen.db = db;
    void enter();
    return;
  }
  const [label, , make] = PAGES[name] ?? PAGES[""];
  turn += 1;
  page = make(params);
  put(problem);
  put(main, lost, problem, page.element);
  frame(label);
  page.update();
  void refresh();
}

async function refresh() {
  clearTimeout(timer);
  const [mine, shown] = [turn, page];
  if (!shown || document.hidden) return;
  try {
    await shown.refresh();
    if (mine === turn) put(problem);
  } catch (error) {
    if (mine === turn && error.status !== 401) {
      put(problem, trouble(error));
      for (const foot of main.querySelectorAll(".looking")) foot.textContent = "";
    }
  }
  if (mine === turn && !live.paused) timer = setTimeout(refresh, shown.every * 1000);
}

function frame(current) {
  const links = Object.entries(PAGES).filter(([, [label]]) => label).map(([name, [label, key]]) =>
    h("a", { href: href(name), "aria-current": label === current ? "page" : null, title: `g ${key}` }, label,
        name === "doctor" ? sick : null));
  put(nav, links);
  const databases = session.databases.length > 1
    ? h("select", { "aria-label": "Database",
        onchange: (event) => { location.hash = `#/?db=${encodeURIComponent(event.target.value)}`; } },
        session.databases.map((name) => h("option", { value: name, selected: name === session.database }, name)))
    : h("span", { class: "database" }, session.database ?? "");
  put(top, h("a", { class: "brand", href: href("") }, "pg_queue"), databases, holder,
    h("form", { class: "find", onsubmit(event) { event.preventDefault(); jump(find.value.trim()); find.value = ""; } },
        find),
    button(state, () => pause(!live.paused), "quiet livebutton", { title: "p: pause, go on" }),
    session.user && session.auth !== "none" ? h("span", { class: "user" }, session.user) : null,
    session.auth === "password" && session.user
        ? button("Log out", async () => { await logout(); await enter(); }, "quiet") : null,
    button("?", help, "quiet", { "aria-label": "Keys" }));
  beat();
}

function jump(to) {
  if (/^\d+$/.test(to)) go("job", { job: to });
  else if (to) go("queue", { queue: to });
}

function beat() {
  const is = live.paused ? "paused" : live.error ? "trouble" : live.data ? "live" : "waits";
  state.className = `live ${is}`;
  text(state, is === "live" ? `live ${clock(live.data.at)}` : is === "waits" ? "…" : is);
  put(holder, live.data?.is_standby ? h("span", { class: "badge paused" }, "standby") : null,
      session.allow_actions ? null : h("span", { class: "badge other", title: "started without --allow-actions" },
          "read-only"));
  put(lost, live.error ? trouble(live.error) : null);
  mark();
}

/** Shows in the title and the icon of the tab whether a check of the doctor fails. */
function mark() {
  const ill = health.ill?.length ?? 0;
  const wrong = live.error ? "no answer" : ill === 0 ? "" : ill === 1 ? "1 check not well" : `${ill} checks not well`;
  const title = [wrong && `⚠ ${wrong}`, page?.title ?? "Log in", session.database, "pg_queue"].filter(Boolean)
      .join(" · ");
  if (document.title !== title) document.title = title;
  const picture = `assets/${wrong ? "icon-ill" : "icon"}.svg`;
  if (icon.getAttribute("href") !== picture) icon.setAttribute("href", picture);
  text(sick, ill || "");
  sick.hidden = ill === 0;
}

function help() {
  const key = (keys, what) => [h("dt", null, keys.map((one) => h("kbd", null, one))), h("dd", null, what)];
  const dialog = h("dialog", { "aria-label": "Keys" }, h("h2", null, "Keys"),
    h("dl", { class: "keys" }, Object.values(PAGES).filter(([label]) => label)
        .map(([label, letter]) => key(["g", letter], label)),
      key(["/"], "search"), key(["j", "k"], "next row, row before"), key(["Enter"], "open it"),
      key(["p"], "pause, go on"), key(["r"], "look again"), key(["?"], "this")),
    h("form", { method: "dialog" }, h("footer", null, h("button", { class: "primary" }, "Close"))));
  open(dialog);
}

let before = null;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const last = before;
  before = event.key;
  const found = last === "g" && Object.entries(PAGES).find(([, [, key]]) => key === event.key);
  if (found) go(found[0]);
  else if (event.key === "/") (main.querySelector("[data-search]") ?? find).focus();
  else if (event.key === "j" || event.key === "k") row(event.key === "j" ? 1 : -1);
  else if (event.key === "p") pause(!live.paused);
  else if (event.key === "r") void refresh();
  else if (event.key === "?") help();
  else return;
  event.preventDefault();
});

/** Moves the focus from row to row: to the first link of each. */
function row(step) {
  const links = [...main.querySelectorAll("table.rows tbody tr")].map((tr) => tr.querySelector("a, button"))
      .filter((link) => link?.offsetParent);
  const now = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
  links[Math.min(links.length - 1, Math.max(0, now + step))]?.focus();
}

function ask() {
  const user = h("input", { name: "user", autocomplete: "username", required: true, spellcheck: "false" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const said = h("div");
  clearTimeout(timer);
  turn += 1;
  page = null;
  frame(null);
  put(nav);
  put(main, h("form", {
    class: "login panel", async onsubmit(event) {
      event.preventDefault();
      try {
        await login(user.value, password.value);
        await enter();
      } catch (error) {
        password.value = "";
        put(said, trouble(error));
      }
    },
  }, h("h1", null, "Log in"), h("p", null, `with a role of database ${session.database}`),
  h("label", { class: "field" }, h("span", null, "Role"), user),
  h("label", { class: "field" }, h("span", null, "Password"), password), said,
  h("footer", null, h("button", { class: "primary" }, "Log in"))));
  user.focus();
}

async function enter() {
  try {
    await begin();
  } catch (error) {
    put(main, trouble(error));
    return;
  }
  if (session.auth === "password" && !session.user) {
    live.data = null;
    ask();
  } else {
    restart();
    show();
    void examine();
  }
}

addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
addEventListener("overview", () => { beat(); page?.update(); if (!live.paused && page && !timer) void refresh(); });
addEventListener("examined", () => { mark(); page?.update(); });
addEventListener("acted", () => void refresh());
setInterval(examine, 30000);
addEventListener("login", () => { if (page) void enter(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) void refresh(); });
chosen.db = parts().params.get("db") ?? "";
void enter();

