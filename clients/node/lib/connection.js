'use strict'
// Connections: how the worker connects, when a connection counts as gone, and the pool for handlers' transactions.
//
// No statement is prepared, because a pooler in transaction mode uses another connection for each transaction. No
// statement of the worker itself waits longer than its `patience`. So the worker also gives up a server that keeps its
// connections open but no longer answers. Statements of handlers have no time limit.

const net = require('node:net')
const { Client } = require('pg')

const SILENCE = 60000 // If a server has not answered for this long, beyond the requested wait, the worker gives it up.
const LOST = 'QJ001' // The SQLSTATE for an attempt that the worker has lost.
const FAREWELL = 1000 // How long a closing connection waits for the server to close it, too.

const DEFAULTS = {
  connectionTimeoutMillis: 10000,
  keepAlive: true,
  application_name: 'pg_queue worker'
}

// The host has become a standby, or is shutting down.
const GONE = new Set(['25006', '57P01', '57P02', '57P03'])

// The connection is gone, or the server accepts no writes: the worker connects anew, maybe to another host.
class Gone extends Error {}

// Only errors of the server leave a connection usable.
const isGone = (error) => error.severity === undefined || error.severity === 'FATAL' || GONE.has(error.code)

// Connects to the first of the hosts that accepts writes.
async function connect (hosts) {
  let failure
  for (const host of hosts) {
    const client = new Client({ ...DEFAULTS, ...(typeof host === 'string' ? { connectionString: host } : host) })
    client.on('error', () => {}) // the running or next query fails, too
    try {
      await client.connect()
      if (hosts.length > 1) {
        const { rows: [row] } = await client.query('SELECT pg_is_in_recovery() AS is_standby')
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

// One connection, made when it is needed, and made again after it was lost.
class Link {
  constructor (hosts, onConnect = () => {}, patience = SILENCE) {
    this.hosts = hosts
    this.onConnect = onConnect
    this.patience = patience
    this.client = null
    this.giveUp = null // ends the running statement; set while one runs
    this.isSevered = false
  }

  // Runs a statement in a transaction of its own. Rejects with `Gone` if another connection is needed.
  async fetch (text, values) {
    if (this.isSevered) throw new Gone('the worker has ended')
    let giveUp
    const silent = new Promise((resolve, reject) => {
      giveUp = this.giveUp = () => reject(new Error('the server has not answered'))
    })
    const timer = setTimeout(giveUp, Math.min(this.patience, 2 ** 31 - 1))
    const answer = this.answer(giveUp, text, values)
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

  async answer (giveUp, text, values) {
    if (!this.client) {
      const client = await connect(this.hosts)
      if (this.giveUp !== giveUp) { // given up meanwhile: its claims would be lost
        end(client)
        throw new Error('the connection has come too late')
      }
      this.client = client
      this.onConnect(client)
    }
    return (await this.client.query(text, values)).rows
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

// Connections for handlers. It grows to the number in use at the same time, and keeps them until `close`.
class Pool {
  constructor (hosts) {
    this.hosts = hosts
    this.idle = []
    this.isClosed = false
  }

  async use (work) {
    const client = this.idle.pop() ?? await this.connect()
    try {
      const result = await work(client)
      this.keep(client)
      return result
    } catch (error) {
      // Its state is unknown. Closing it rolls back.
      end(client)
      throw error
    }
  }

  async connect () {
    const client = await connect(this.hosts)
    client.on('end', () => { this.idle = this.idle.filter((other) => other !== client) })
    client.on('error', () => { this.idle = this.idle.filter((other) => other !== client) })
    return client
  }

  transaction (work) {
    return this.use(async (client) => {
      await client.query('BEGIN')
      const result = await work(client)
      await client.query('COMMIT')
      return result
    })
  }

  keep (client) {
    if (this.isClosed) end(client)
    else this.idle.push(client)
  }

  async close () {
    this.isClosed = true
    await Promise.all(this.idle.splice(0).map(end))
  }
}

module.exports = { Gone, LOST, Link, Pool, SILENCE, isGone }
