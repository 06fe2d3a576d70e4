'use strict'
// JSON without loss: an integer that a JavaScript number may not hold exactly is read and written as a BigInt.
//
// JSON.parse silently rounds such integers, and JSON.stringify refuses a BigInt. A number with a fraction becomes a
// JavaScript number. A producer that needs all of its digits sends a text.

const { randomUUID } = require('node:crypto')

const LONG = /\d{16}/ // Below 2^53 an integer has at most 16 digits.
const INTEGER = /^-?\d+$/

// Reads JSON as Postgres writes it. Returns null for null.
function parse (text) {
  if (text === null || text === undefined) return null
  if (text.length < 16 || !LONG.test(text)) return JSON.parse(text)
  const mark = randomUUID() // unpredictable, so no text of a job contains it
  return JSON.parse(marked(text, mark), (key, value) =>
    typeof value === 'string' && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value)
}

// Returns the JSON with a marked string for each integer that would be rounded.
function marked (text, mark) {
  let found = ''
  let from = 0
  for (let at = 0; at < text.length;) {
    const sign = text[at]
    if (sign === '"') {
      at = endOfString(text, at)
    } else if (sign === '-' || isDigit(sign)) {
      const begin = at
      while (at < text.length && (isDigit(text[at]) || '+-.eE'.includes(text[at]))) at++
      const number = text.slice(begin, at)
      if (INTEGER.test(number) && !Number.isSafeInteger(Number(number))) {
        found += `${text.slice(from, begin)}"${mark}${number}"`
        from = at
      }
    } else {
      at++
    }
  }
  return found + text.slice(from)
}

const isDigit = (sign) => sign >= '0' && sign <= '9'

function endOfString (text, begin) {
  for (let at = begin + 1; ;) {
    at = text.indexOf('"', at)
    if (at < 0) return text.length
    let escapes = 0
    while (text[at - 1 - escapes] === '\\') escapes++
    at++
    if (escapes % 2 === 0) return at
  }
}

// Writes JSON, a BigInt as an integer. Returns undefined for values without JSON, as JSON.stringify does.
function stringify (value) {
  try {
    return JSON.stringify(value)
  } catch (error) {
    const mark = randomUUID()
    let has = false
    const text = JSON.stringify(value, (key, value) => {
      if (typeof value !== 'bigint') return value
      has = true
      return `${mark}${value}`
    })
    if (!has) throw error
    return text.replace(new RegExp(`"${mark}(-?\\d+)"`, 'g'), '$1')
  }
}

module.exports = { parse, stringify }
