'use strict'
// Events: a job in each queue that is bound to the topic, in the client's transaction.

const assert = require('node:assert')
const { test } = require('node:test')
const { enqueue, publish, publishQuery } = require('..')
const { database } = require('./support')

const db = database()

test('an event adds a job to each bound queue', async () => {
  await db.client.query(
      "SELECT queue.create_topic('orders'), queue.bind('orders', 'a'), queue.bind('orders', 'b', 'order.*')")
  try {
    await db.client.query('BEGIN')
    const jobs = await publish(db.client, 'orders', { n: 1 },
        { key: 'order.placed', priority: 4, headers: { h: 1 }, delay: '1 hour' })
    assert.deepEqual([...jobs.keys()].sort(), ['a', 'b'])
    await db.client.query('COMMIT')
    for (const job of jobs.values()) {
      const { rows: [row] } = await db.client.query('SELECT payload, priority, state, headers FROM queue.job($1)',
          [job])
      const { topic, key } = row.headers.event
      assert.deepEqual([row.payload, row.priority, row.state, row.headers.h, topic, key],
          [{ n: 1 }, 4, 'scheduled', 1, 'orders', 'order.placed'])
    }
    await db.client.query('BEGIN')
    const undone = await publish(db.client, 'orders', null)
    await db.client.query('ROLLBACK')
    assert.equal((await db.client.query('SELECT FROM queue.job($1)', [undone.get('a')])).rowCount, 0)
    await db.client.query("SELECT queue.unbind('orders', 'a')")
    assert.equal((await publish(db.client, 'orders')).size, 0)
    await assert.rejects(publish(db.client, 'orders', {}, { mandatory: true }), { code: 'P0002' })
    assert.throws(() => publishQuery('orders', {}, { stage: 'x' }), /there is no option stage/)
    await assert.rejects(enqueue(db.client, 'a', {}, { mandatory: true }), /there is no option mandatory/)
  } finally {
    await db.client.query("SELECT queue.drop('orders', force => true)")
  }
})
