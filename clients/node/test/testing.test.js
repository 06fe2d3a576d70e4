'use strict'
// Servers of the test helpers.

const assert = require('node:assert')
const { spawnSync } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')
const { Server } = require('../lib/testing')
const { until } = require('./support')

test('a server ends with its program, also if that is killed', async () => {
  const lib = JSON.stringify(path.join(__dirname, '../lib/testing'))
  const program = `const { Server } = require(${lib})
    require('node:fs').writeSync(1, new Server().dir)
    process.kill(process.pid, 'SIGKILL')`
  const { stdout, signal } = spawnSync(process.execPath, ['-e', program], { encoding: 'utf8' })
  assert.equal(signal, 'SIGKILL')
  assert.ok(stdout.startsWith('/'), stdout)
  await until('its folder is gone', () => !fs.existsSync(stdout))
})

test('a server can be closed twice, and after it has died', async () => {
  const server = new Server()
  const file = path.join(server.data, 'postmaster.pid')
  process.kill(Number(fs.readFileSync(file, 'utf8').split('\n')[0]), 'SIGKILL')
  server.close()
  server.close()
  await until('its folder is gone', () => !fs.existsSync(server.dir))
})
