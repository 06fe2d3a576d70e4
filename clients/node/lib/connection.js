'use strict'
// Connections: how the worker connects, when a connection counts as gone, and the pool for handlers' transactions.
//
// No statement is prepared, because a pooler in transaction mode uses another connection for each transaction. No
// statement of the worker itself waits longer than its `patience`. So the worker also gives up a server that keeps its
// connections open but no longer answers. Statements of handlers have no time limit.

const net = require('node:net')
const { Client, types } = require('pg')
const { Gone, NoConnection, lineOf } = require('./backoff')
const { version } = require('../package.json')

const SILENCE = 60000 // If a server has not answered for this long, beyond the requested wait, the worker gives it up.
const FAREWELL = 1000 // How long a closing connection waits for the server to close it, too.
const PATIENCE = 10000 // How long a handler waits for a connection.
const RETRY = 200 // The pause between two attempts to connect for handlers that wait.
const IDLE = 60000 // How long the pool keeps a connection that nobody uses.
const SCARCE = 10000 // For how long it makes and keeps none after the worker itself could not connect.

const DEFAULTS = {
  connectionTimeoutMillis: 10000,
  keepAlive: true,
  application_name: `pg_queue worker node/${version}`
}

// How the answers to the package's own statements are read. The application's parsers do not count.
const { BOOL, FLOAT8, INT4 } = types.builtins
const PARSERS = new Map([[BOOL, (text) => text === 't'], [FLOAT8, Number], [INT4, Number]])
const TYPES = { getTypeParser: (type) => PARSERS.get(type) ?? String }

// The host has become a standby, or is shutting down.
const GONE = new Set(['25006', '57P01', '57P02', '57P03'])

// Only errors of the server leave a connection usable.
const isGone = (error) => error.severity === undefined || error.severity === 'FATAL' || GONE.has(error.code)

// Runs a statement of the package itself, as pg takes it. The answer comes as text, even if the application has asked
// for binary answers: pg has no such option for a single statement.
function ownQuery (client, query, values) {
  const { binary } = client
  client.binary = false
  try {
    return client.query({ ...(typeof query === 'string' ? { text: query } : query), types: TYPES }, values)
  } finally {
    client.binary = binary
  }
}

// Connects to the first of the hosts that accepts writes.
async function connect (hosts) {
  let failure
  for (const host of hosts) {
    const client = new Client({ ...DEFAULTS, ...(typeof host === 'string' ? { connectionString: host } : host) })
    client.on('error', () => {}) // the running or next query fails, too
    client.connection.on('readyForQuery', ({ status }) => { client.isInTransaction = status !== 'I' })
    try {
      await client.connect()
      if (hosts.length > 1) {
        const { rows: [row] } = await ownQuery(client, 'SELECT pg_is_in_recovery() AS is_standby')
        if (row.is_standby) throw new Error('the server is a standby')
      }
      return client
    } catch (error) {
      failure = error
      end(client)
    }
  }
  throw failure
}

function end (client) {
  const timer = setTimeout(() => client.connection.stream.destroy(), FAREWELL)
  return client.end().catch(() => {}).finally(() => clearTimeout(timer))
}

// Asks the server to cancel the running statement of a connection.
function cancel (client) {
  const packet = Buffer.alloc(16)
  packet.writeInt32BE(16, 0)
  packet.writeInt32BE(80877102, 4)
  packet.writeInt32BE(client.processID, 8)
  packet.writeInt32BE(client.secretKey, 12)
  return new Promise((resolve) => {
    const path = client.host.startsWith('/') ? { path: `${client.host}/.s.PGSQL.${client.port}` }
        : { host: client.host, port: client.port }
    // The other side closes it: PgBouncer 1.18 crashes if a client has gone before its request was passed on.
    const socket = net.connect(path, () => socket.write(packet))
    socket.setTimeout(2000, () => socket.destroy())
    socket.on('error', () => {}) // the statement ends by itself, when its wait is over
    socket.on('close', resolve)
  })
}

// Throws if a handler has ended the transaction that was begun for it.
function checkOpen (client) {
  if (client.isInTransaction) return
  throw new Error('the transaction was ended by a COMMIT or ROLLBACK: job.transaction and job.step end it themselves')
}

// One connection, made when it is needed, and made again after it was lost.
//
// `onConnect(client)`: it is made. `onRefused()`: it cannot be made. `onSilent()`: the server has not answered for as
// long as `patience`.
class Link {
  constructor (hosts, { onConnect, onRefused, onSilent, patience = SILENCE }) {
    Object.assign(this, { hosts, onConnect, onRefused, onSilent, patience })
    this.client = null
    this.giveUp = null // ends the running statement; set while one runs
    this.turn = Promise.resolve() // the end of the last statement
    this.isSevered = false
  }

  // Runs a statement, as pg takes it, in a transaction of its own, after those before it. Rejects with `Gone` if
  // another connection is needed.
  fetch (query, values) {
    const answer = this.turn.then(() => this.next(query, values))
    this.turn = answer.catch(() => {})
    return answer
  }

  async next (query, values) {
    if (this.isSevered) throw new Gone('the worker has ended')
    let giveUp
    const silent = new Promise((resolve, reject) => {
      giveUp = this.giveUp = () => reject(new Error('the server has not answered'))
    })
    const timer = setTimeout(() => { giveUp(); this.onSilent?.() }, Math.min(this.patience, 2 ** 31 - 1))
    const answer = this.answer(giveUp, query, values)
    answer.catch(() => {}) // in case it was given up
    try {
      return await Promise.race([answer, silent])
    } catch (error) {
      if (!isGone(error)) throw error
      this.close()
      throw new Gone(error.message, { cause: error })
    } finally {
      clearTimeout(timer)
      this.giveUp = null
    }
  }

  async answer (giveUp, query, values) {
    if (!this.client) {
      const client = await connect(this.hosts).catch((error) => {
        this.onRefused?.()
        throw error
      })
      if (this.giveUp !== giveUp) { // given up meanwhile: its claims would be lost
        end(client)
        throw new Error('the connection has come too late')
      }
      this.client = client
      this.onConnect?.(client)
    }
    return (await ownQuery(this.client, query, values)).rows
  }

  // Gives the connection up: the running statement fails with `Gone`, and the next one connects anew.
  renew () {
    if (this.giveUp) this.giveUp()
    else this.close()
  }

  // Lets the running statement, and all later ones, fail with `Gone`.
  sever () {
    this.isSevered = true
    this.giveUp?.()
  }

  async cancel () {
    if (this.client?.processID) await cancel(this.client)
  }

  async close () {
    const client = this.client
    this.client = null
    if (client) await end(client)
  }
}

// Connections for handlers, at most `limit`. It grows to the number in use at the same time.
class Pool {
  constructor (hosts, limit = Infinity) {
    this.hosts = hosts
    this.limit = limit
    this.count = 0 // in use, idle, or being made
    this.idle = new Map() // client -> the timer that closes it
    this.waiting = [] // handlers that wait for a connection: each wakes, maybe with a client
    this.scarceUntil = -Infinity
    this.isClosed = false
  }

  // Runs `work(client)`. Rejects with `NoConnection` if none can be made for too long, and with the signal's reason if
  // the handler is to stop before. `mayWait`: other handlers may use the connections for longer than that. A handler
  // that has one itself must not wait for them: they may wait for it.
  async use (work, signal, { patience = PATIENCE, mayWait = true } = {}) {
    const client = await this.take(signal, patience, mayWait)
    try {
      const result = await work(client)
      this.giveBack(client)
      return result
    } catch (error) {
      // Its state is unknown. Closing it rolls back.
      this.drop(client)
      throw error
    }
  }

  async take (signal, patience, mayWait) {
    const end = performance.now() + patience
    let failure = new Error('no connection is free')
    for (;;) {
      const [client] = this.idle.keys()
      if (client) {
        this.forget(client)
        return client
      }
      if (this.count < this.limit && performance.now() >= this.scarceUntil) {
        try {
          return await this.connect()
        } catch (error) {
          failure = error
        }
      }
      const isOver = performance.now() >= end && !(mayWait && this.count >= this.limit)
      if (this.isClosed || isOver) throw new NoConnection(lineOf(failure), { cause: failure })
      signal?.throwIfAborted()
      const given = await this.turn(signal)
      if (given) return given
    }
  }

  // Waits until a connection is given back, and returns it; or until it is time to try again.
  turn (signal) {
    return new Promise((resolve, reject) => {
      const wake = (client) => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', abort)
        this.waiting = this.waiting.filter((other) => other !== wake)
        resolve(client)
      }
      const abort = () => { wake(); reject(signal.reason) }
      const timer = setTimeout(wake, RETRY)
      this.waiting.push(wake)
      signal?.addEventListener('abort', abort)
    })
  }

  async connect () {
    this.count++
    try {
      const client = await connect(this.hosts)
      const lost = () => { if (this.idle.has(client)) this.drop(client) }
      client.on('end', lost).on('error', lost)
      return client
    } catch (error) {
      this.count--
      throw error
    }
  }

  transaction (work, signal, mayWait) {
    return this.use(async (client) => {
      await client.query('BEGIN')
      const result = await work(client)
      await client.query('COMMIT')
      return result
    }, signal, { mayWait })
  }

  giveBack (client) {
    const [wake] = this.waiting
    if (this.isClosed || performance.now() < this.scarceUntil) this.drop(client)
    else if (wake) wake(client)
    else this.idle.set(client, setTimeout(() => this.drop(client), IDLE).unref())
  }

  forget (client) {
    clearTimeout(this.idle.get(client))
    this.idle.delete(client)
  }

  drop (client) {
    this.forget(client)
    this.count--
    this.waiting[0]?.() // there is room for another one
    return end(client)
  }

  // Leaves connections to the worker itself, until it could make one.
  makeRoom (isNeeded) {
    this.scarceUntil = isNeeded ? performance.now() + SCARCE : -Infinity
    if (isNeeded) for (const client of this.idle.keys()) this.drop(client)
  }

  async close () {
    this.isClosed = true
    await Promise.all([...this.idle.keys()].map((client) => this.drop(client)))
  }
}

module.exports = { Gone, Link, NoConnection, Pool, SILENCE, checkOpen, isGone, ownQuery }
