import { EventEmitter } from 'node:events'
import type { ClientBase, ClientConfig } from 'pg'

/** A length of time: a number of milliseconds, or an interval as Postgres reads it, such as `'5 minutes'`. */
export type Duration = number | string

/** What runs a statement: a client or pool of pg, or anything alike. */
export interface Queryable {
  query (statement: any, values?: any): Promise<{ rows: any[] }>
}

/** The options of `queue.enqueue`. */
export interface EnqueueOptions {
  priority?: number | null
  delay?: Duration | null
  runAt?: Date | string | null
  uniqueKey?: string | null
  onDuplicate?: 'skip' | 'replace' | 'rerun' | 'error' | null
  version?: Date | string | null
  uniqueFor?: Duration | null
  groupKey?: string | null
  stage?: string | null
  maxAttempts?: number | null
  lease?: Duration | null
  headers?: unknown
}

/** A statement for any driver: each value is a text, a number or an array of texts. */
export interface Statement { text: string, values: any[] }

/** Adds a job in the client's transaction and returns its id. */
export function enqueue (client: Queryable, queue: string, payload?: unknown, options?: EnqueueOptions): Promise<number>
/** Adds a job per payload, all with the same options, and returns their ids in the order of the payloads. */
export function enqueueMany (client: Queryable, queue: string, payloads: Iterable<unknown>, options?: EnqueueOptions): Promise<number[]>
/** The statement of `enqueue`, which returns a column `id`. */
export function enqueueQuery (queue: string, payload?: unknown, options?: EnqueueOptions): Statement
export function enqueueManyQuery (queue: string, payloads: Iterable<unknown>, options?: EnqueueOptions): Statement

export type StopReason = 'cancelled' | 'lost' | 'shutdown'

/** Fails the attempt; the job runs again after `delay`. */
export class RetryIn extends Error {
  constructor (delay: Duration, message?: string)
  readonly delay: Duration
}
/** Fails the job for good: it is dead. */
export class Fatal extends Error {}
/** Gives the attempt back, uncounted. The job runs again after `delay`. */
export class Snooze extends Error {
  constructor (delay?: Duration)
  readonly delay: Duration
}
/** The handler is to stop. */
export class Stopped extends Error {
  constructor (reason: StopReason)
  readonly reason: StopReason
}
export interface AdvanceOptions { stage?: string | null, payload?: unknown, delay?: Duration }
/** Returned by a handler: the job goes on in another stage, in the next one unless `stage` says so. */
export class Advance {
  constructor (options?: AdvanceOptions)
}

export interface Job<Payload = any> {
  /** The attempt's id, good for one end. */
  readonly id: number
  readonly jobId: number
  readonly queue: string
  readonly stage: string | null
  readonly payload: Payload
  readonly headers: any
  readonly attempt: number
  readonly maxAttempts: number
  readonly priority: number
  readonly uniqueKey: string | null
  readonly groupKey: string | null
  /** What the last attempt, or this one, has reported. */
  readonly progress: any
  readonly lastError: string | null
  readonly enqueuedAt: Date
  readonly traceparent: string | undefined
  /** Aborted when the handler is to stop; its reason is a `Stopped`. */
  readonly signal: AbortSignal
  readonly stopReason: StopReason | null
  /** Whether the worker shuts down. The handler may go on until its signal is aborted. */
  readonly stopping: boolean
  /** Whether the handler has ended the attempt itself. To be set where it did so by other means. */
  ended: boolean
  /** Throws `Stopped` if the handler is to stop. */
  check (): void
  /** Runs `work` in a transaction that completes the job at its end, with what it returns, unless it did. */
  transaction<T> (work: (client: ClientBase) => Promise<T>): Promise<T>
  /** Completes the job in the caller's own transaction. */
  complete (client: Queryable, result?: unknown): Promise<void>
  /** Takes the job on to another stage, in the caller's own transaction. */
  advance (client: Queryable, options?: AdvanceOptions): Promise<void>
  /** Remembers what was done so far, for the next attempt. */
  saveProgress (progress: unknown): Promise<void>
}

export type Handler<Payload = any> = (job: Job<Payload>) => unknown
export type Middleware = (job: Job, call: (job: Job) => unknown) => unknown

export type EventKind =
  'started' | 'completed' | 'advanced' | 'failed' | 'released' | 'lost' | 'connected' | 'disconnected'

/** Something that has happened. An end is told when the server has confirmed it. */
export interface WorkerEvent {
  kind: EventKind
  queue?: string
  jobId?: number
  attemptId?: number
  attempt?: number
  /** How long the handler ran. */
  milliseconds?: number
  error?: string | null
}

export interface Logger {
  debug (fields: object, message: string): void
  info (fields: object, message: string): void
  warn (fields: object, message: string): void
  error (fields: object, message: string): void
}

export interface WorkerOptions {
  /** So many handlers run at once. 10 */
  concurrency?: number
  /** So many jobs more are claimed ahead: for short jobs. 0 */
  prefetch?: number
  /** How long one claim sleeps; the server's `pg_queue.max_wait` at most. 10 seconds */
  wait?: number
  /** The longest time between two heartbeats. 10 seconds, or a third of the lease */
  heartbeat?: number
  lease?: Duration
  stage?: string
  /** Not behind a pooler in transaction mode. */
  sessionBound?: boolean
  /** How long handlers may go on after `stop` or SIGTERM. 30 seconds */
  shutdownTimeout?: number
  /** For the views: host and process id unless given. */
  name?: string
  /** As that of pino. Unless given, lines of JSON to stderr. */
  logger?: Logger
}

/** Runs the jobs of up to eight queues. It emits each `WorkerEvent` under its kind. */
export class Worker extends EventEmitter {
  /** `connection`: as of pg; several: the first one that takes writes is used. */
  constructor (connection?: string | ClientConfig | Array<string | ClientConfig>, options?: WorkerOptions)
  /** What the handler returns is the job's result; an error fails the attempt. */
  handle<Payload = any> (queues: string | string[], handler: Handler<Payload>): this
  /** Is called around each handler, the first one outermost. */
  use (around: Middleware): this
  /** Works until SIGTERM, SIGINT or `stop`, then waits for the handlers and gives back what is left. */
  run (): Promise<void>
  /** The same without a look at signals. */
  serve (): Promise<void>
  /** Begins to shut down. A second call ends the wait for the handlers. */
  stop (): void
  /** Works off everything that is ready now, and returns what happened. */
  drain (): Promise<WorkerEvent[]>
  on (event: EventKind, listener: (event: WorkerEvent) => void): this
}
