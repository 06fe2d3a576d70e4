// Addresses: of the page's own pages, and of its requests to the server. The stream that the server pushes.

/** The session: user, databases, permitted verbs. */
export const session = { user: null, databases: [], allow_actions: false };

/** The database that the page shows; empty: the first. */
export const chosen = { db: "" };

export class Refused extends Error {
  constructor(status, said) {
    super(said?.message || `the dashboard answers ${status}`);
    Object.assign(this, { status, code: said?.code, detail: said?.detail, hint: said?.hint });
  }
}

function address(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...params, db: chosen.db })) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** Returns the address of a page. */
export const href = (name, params) => address(`#/${name}`, params);

export const go = (name, params) => { location.hash = href(name, params); };

async function send(path, params, options) {
  let answer;
  try {
    answer = await fetch(address(path, params),
        { cache: "no-store", credentials: "same-origin", redirect: "error", ...options });
  } catch {
    throw new Refused(0, { message: "the dashboard does not answer" });
  }
  const said = await answer.json().catch(() => null);
  if (!answer.ok) {
    if (answer.status === 401) dispatchEvent(new Event("login"));
    throw new Refused(answer.status, said?.error);
  }
  return said;
}

export const look = (what, params) => send(`api/${what}`, params);

const post = (path, body) => send(path, null, {
  method: "POST", headers: { "content-type": "application/json", "x-pg-queue-web": "1" }, body: JSON.stringify(body),
});

/** Runs a verb. The server decides whether the viewer may run it. */
export async function act(verb, body) {
  const done = await post(`api/act/${verb}`, body);
  dispatchEvent(new Event("acted"));
  return done;
}

export const login = (user, password) => post("login", { user, password });
export const logout = () => post("logout", {});

export async function begin() {
  Object.assign(session, await look("session"));
  return session;
}

/** Returns whether the viewer may run a verb, as far as the page knows. */
export const mayAct = () => session.allow_actions && !live.data?.is_standby;

export const documentAddress = (job, what) => address("api/document", { job, what });

// The stream. A hidden or paused page has none, so that the server does no work for it.

export const live = { data: null, error: null, paused: false, at: 0 };

/**
 * Rates are those of this many seconds, or of the last two looks. A server that is slow to answer is looked at seldom:
 * of a number of looks, the first would be a minute old.
 */
const SPAN = 12;
const history = [];
let source = null;
let hiding = null;

function open() {
  if (source || live.paused || document.hidden || (session.auth === "password" && !session.user)) return;
  source = new EventSource(address("api/events"));
  source.addEventListener("overview", (event) => {
    live.data = JSON.parse(event.data);
    live.error = null;
    live.at = performance.now();
    history.push(live.data);
    // The clock may go back, and looks come once a second at most.
    const isOver = () => live.data.at - history[1].at >= SPAN || history.length > SPAN + 1;
    while (history.length > 2 && isOver()) history.shift();
    dispatchEvent(new Event("overview"));
  });
  source.addEventListener("trouble", (event) => {
    live.error = JSON.parse(event.data).error;
    dispatchEvent(new Event("overview"));
  });
  source.addEventListener("error", () => {
    // The stream was refused. The browser does not retry by itself.
    if (source?.readyState === EventSource.CLOSED) {
      close();
      setTimeout(async () => { try { await begin(); open(); } catch (e) { live.error = e;
      dispatchEvent(new Event("overview")); setTimeout(open, 5000); } }, 2000);
    } else if (performance.now() - live.at > 5000) {
      live.error = { message: "the dashboard does not answer" };
      dispatchEvent(new Event("overview"));
    }
  });
}

function close() {
  source?.close();
  source = null;
}

/** Restarts the stream for another database or viewer. */
export function restart() {
  close();
  history.length = 0;
  minute.clear();
  learned.clear();
  Object.assign(live, { data: null, error: null });
  Object.assign(health, { ill: null, mayAsk: true });
  open();
}

export function pause(paused) {
  live.paused = paused;
  if (paused) close(); else open();
  dispatchEvent(new Event("overview"));
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(close, 10000);
  else open();
});

const keyOf = (lane) => JSON.stringify([lane.queue, lane.stage ?? null]);

/** The seconds of looks that are needed for rates. Until then the page shows the rates of the last minute. */
const SETTLED = 4;

/**
 * The rates per second of the last whole minute and of the present one, by lane. The key `null` has the sum of all
 * lanes.
 */
const minute = new Map();
/** The queues with known rates; `null`: all. */
const learned = new Set();

/** Sets the rates from the rows of the activity of a queue, or of all queues. */
export function learn(rows, queue = null, now = Date.now() / 1000) {
  const from = Math.floor(now / 60) * 60 - 60;
  for (const key of minute.keys()) if (queue === null || key !== null
      && JSON.parse(key)[0] === queue) minute.delete(key);
  learned.add(queue);
  for (const [name, at, enqueued, completed, failed, timed_out, , , stage] of rows) {
    if (at < from) continue;
    const key = name === null ? null : keyOf({ queue: name, stage });
    const sum = minute.get(key) ?? { enqueued: 0, completed: 0, failed: 0, timed_out: 0 };
    const more = { enqueued, completed, failed, timed_out };
    for (const column of Object.keys(sum)) sum[column] += more[column] / (now - from);
    minute.set(key, sum);
  }
}

/**
 * Returns the rate per second of the given column, by lane or for all lanes. It is that of the last looks, or at first
 * that of the last minute. Null: it cannot be known; undefined: it is not known yet.
 */
export function rates() {
  const [first, last] = [history[0], history.at(-1)];
  if (last && !last.lanes) return () => null;
  if (!first?.lanes || last.at - first.at < SETTLED) {
    const sum = (lane) => minute.get(lane === last?.total ? null : keyOf(lane));
    return (lane, column) => (learned.has(null) || learned.has(lane.queue) ? sum(lane)?.[column] ?? 0 : undefined);
  }
  const before = new Map(first.lanes.map((lane) => [keyOf(lane), lane]));
  return (lane, column) => {
    const was = lane === last.total ? first.total : before.get(keyOf(lane));
    return was ? Math.max(0, (lane[column] - was[column]) / (last.at - first.at)) : null;
  };
}

// The doctor: called from time to time while the page is visible, for the mark in the title and in the navigation.

/** `ill`: the failing checks; null: they are unknown, or the viewer may not call the doctor. */
export const health = { ill: null, mayAsk: true };

export async function examine() {
  if (!health.mayAsk || live.paused || document.hidden || (session.auth === "password" && !session.user)) return;
  try {
    health.ill = (await look("doctor")).filter((check) => !check.ok);
  } catch (error) {
    health.ill = null;
    health.mayAsk = error.status !== 403;
  }
  dispatchEvent(new Event("examined"));
}
