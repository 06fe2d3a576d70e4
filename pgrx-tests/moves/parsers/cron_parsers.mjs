// Asks the cron parsers of JavaScript when expressions match. See cron_parsers.py for the argument and the answers.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// NODE_PATH has an effect on `require` only.
const require = createRequire(import.meta.url);
const load = async (name) => import(pathToFileURL(require.resolve(name)));

/** Calls `next` with each time found, from `start` on. */
function chain(next, start, count) {
  const found = [];
  for (let at = start; found.length < count; found.push(at)) at = next(at);
  return found;
}

const TOOLS = {
  "cron-parser": async (text, zone, start, count) => {
    const { CronExpressionParser } = await load("cron-parser");
    return CronExpressionParser.parse(text, { currentDate: start, tz: zone }).take(count).map((at) => at.toDate());
  },
  "cron-parser-4": async (text, zone, start, count) => {
    const found = require("cron-parser-4").parseExpression(text, { currentDate: start, tz: zone });
    return Array.from({ length: count }, () => found.next().toDate());
  },
  cron: async (text, zone, start, count) => {
    const { CronTime } = await load("cron");
    const time = new CronTime(text, zone);
    return chain((at) => time.getNextDateFrom(at, zone).toJSDate(), start, count);
  },
  "node-cron": async (text, zone, start, count) => {
    const task = require("node-cron").createTask(text, () => {}, { timezone: zone });
    return chain((at) => task.timeMatcher.getNextMatch(at), start, count);
  },
  croner: async (text, zone, start, count) => {
    const { Cron } = await load("croner");
    return new Cron(text, { timezone: zone }).nextRuns(count, start);
  },
  later: async (text, zone, start, count) => {
    const later = require("@breejs/later");
    later.date.UTC();
    return later.schedule(later.parse.cron(text, text.split(" ").length === 6)).next(count, start);
  },
  "cron-schedule": async (text, zone, start, count) => {
    process.env.TZ = zone;
    const { parseCronExpression } = await load("cron-schedule");
    const entry = parseCronExpression(text);
    return chain((at) => entry.getNextDate(at), start, count);
  },
  cronjs: async (text, zone, start, count) => {
    const matcher = require("@datasert/cronjs-matcher");
    const options = { startAt: start.toISOString(), matchCount: count, timezone: zone };
    return matcher.getFutureMatches(text, options).map((at) => new Date(at));
  },
  // graphile-worker checks every minute. For these expressions midnights are enough.
  "graphile-worker": async (text, zone, start, count) => {
    const item = (await load("graphile-worker")).parseCronItem({ task: "x", match: text });
    const day = 86400e3;
    const found = [];
    const first = Math.ceil(+start / day) * day;
    for (let at = first; found.length < count && at < first + 4000 * day; at += day) {
      const date = new Date(at);
      const digest = { min: 0, hour: 0, date: date.getUTCDate(), month: date.getUTCMonth() + 1, dow: date.getUTCDay() };
      if (item.match(digest)) found.push(date);
    }
    return found;
  },
};

async function answer(tool, text, zone, start, count) {
  try {
    const times = await TOOLS[tool](text, zone, new Date(start), count);
    return times.map((at) => at.toISOString().replace(".000Z", "Z"));
  } catch (error) {
    return `refused: ${error.message}`;
  }
}

for (const one of JSON.parse(process.argv[2])) console.log(JSON.stringify(await answer(...one)));
