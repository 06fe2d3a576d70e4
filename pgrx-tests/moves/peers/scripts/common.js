// Shared by the scripts of the peers for Node: printing, and the handler of all jobs.
const database = { host: process.env.PGHOST, user: 'postgres', database: process.env.PGDATABASE };
exports.database = database;
exports.url = `postgresql://postgres@localhost/${database.database}?host=${encodeURIComponent(database.host)}`;
exports.print = (object) => console.log(JSON.stringify(object));
exports.sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// Runs a job with this label. `last` is the time when a job last began or ended.
exports.last = Date.now();
exports.handle = async (label, concurrency, queue) => {
  exports.print({ run: label, queue });
  exports.last = Date.now();
  await exports.sleep(concurrency > 1 ? 200 : 50);
  exports.print({ end: label });
  exports.last = Date.now();
  if (label.startsWith('fail')) throw new Error('asked to fail');
};

// Waits until no job has begun or ended for some time.
exports.quiet = async (ms = 1500) => {
  exports.last = Date.now();
  while (Date.now() - exports.last < ms) await exports.sleep(50);
};
