// pg-boss of an earlier version: its tables have other columns.
process.env.PGBOSS = 'pg-boss-12.27';
require('./pgboss.js');
