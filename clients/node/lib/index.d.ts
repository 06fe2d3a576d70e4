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
  /** It is held until these jobs have ended, as `upon` says. */
  after?: Iterable<number> | null
  upon?: Upon | null
  /** It is a member of this flow, or of this job that runs. */
  flow?: number | null
  /** Its name in the flow. */
  task?: string | null
}

export type Upon = 'completed' | 'failed' | 'ended' | 'overdue'

/** A member of a flow. */
export interface Task extends Omit<EnqueueOptions, 'after' | 'flow'> {
  task: string
  /** That of the flow unless it is said. */
  queue?: string
  payload?: unknown
  /** The names of the tasks that it waits for. */
  after?: string[]
}

/** A job that waits for any number of others, its members. The options are its own. */
export interface Flow extends EnqueueOptions {
  tasks?: Task[]
  payload?: unknown
  /** Whether it goes to its queue when its members have ended, for a worker; else it completes by itself. */
  runs?: boolean
  /** Whether it waits for `seal`, too. */
  open?: boolean
  /** Whether the first death among its members cancels the others, and ends it as dead. */
  failFast?: boolean
}

/** A statement for any driver: each value is a text, a number or an array of texts. */
export interface Statement { text: string, values: any[] }

/** Adds a job in the client's transaction and returns its id. */
export function enqueue (client: Queryable, queue: string, payload?: unknown, options?: EnqueueOptions): Promise<number>
/** Adds a job per payload, all with the same options, and returns their ids in the order of the payloads. */
export function enqueueMany (
  client: Queryable, queue: string, payloads: Iterable<unknown>, options?: EnqueueOptions
): Promise<number[]>
/** The statement of `enqueue`, which returns a column `id`. */
export function enqueueQuery (queue: string, payload?: unknown, options?: EnqueueOptions): Statement
export function enqueueManyQuery (queue: string, payloads: Iterable<unknown>, options?: EnqueueOptions): Statement

/** The options of `queue.publish`. What else a job has is said by bindings and queues. */
export interface PublishOptions extends Omit<EnqueueOptions, 'stage' | 'maxAttempts' | 'lease'> {
  /** Words with dots between them, which the patterns of bindings match. */
  key?: string
  /** Whether it is an error (`P0002`) if no queue gets it. */
  mandatory?: boolean | null
}

/**
 * Publishes an event in the client's transaction: a job in each queue that is bound to the topic. Returns their ids by
 * queue.
 */
export function publish (
  client: Queryable, topic: string, payload?: unknown, options?: PublishOptions
): Promise<Map<string, number>>
/** The statement of `publish`, which returns columns `queue` and `id`. */
export function publishQuery (topic: string, payload?: unknown, options?: PublishOptions): Statement

/** Adds a flow and returns its id, which is a job's. */
export function enqueueFlow (client: Queryable, queue: string, flow?: Flow): Promise<number>
export function enqueueFlowQuery (queue: string, flow?: Flow): Statement
/** An open flow can end when its members have. */
export function seal (client: Queryable, flow: number): Promise<void>
/** Completes an open flow without members: an event has come. */
export function resolve (client: Queryable, flow: number, result?: unknown): Promise<void>
/** Ends it as dead: the event has failed. */
export function reject (client: Queryable, flow: number, error: string): Promise<void>

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

export interface SuspendOptions { after?: Iterable<number> | null, upon?: Upon, progress?: unknown }
/**
 * Returned by a handler: the job is held until others have ended, and then runs on. Without `after`: its own members.
 */
export class Suspend {
  constructor (options?: SuspendOptions)
}

/** What became of a job that another one waited for. Of one that is kept no longer there is no more than its id. */
export interface Input {
  jobId: number
  queue: string | null
  task: string | null
  state: string | null
  result: any
  error: string | null
}

/**
 * Reads JSON without loss: an integer beyond 2^53 is a `bigint`. All that a job carries is read so.
 */
export function parseJson (text: string | null): any
/** Writes JSON, a `bigint` as an integer. `JSON.stringify` throws a TypeError for a `bigint`. */
export function stringifyJson (value: unknown): string

/** Integers beyond 2^53 in `payload`, `headers`, `progress` and results are of type `bigint`, exactly. */
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
  /** Lets the job wait for others, in the caller's own transaction. */
  suspend (client: Queryable, options?: SuspendOptions): Promise<void>
  /**
   * The result of `work`, which runs once for all attempts: what it writes and the note of its result commit together.
   */
  step<T> (name: string, work: (client: ClientBase) => Promise<T>): Promise<T>
  /** What became of the jobs that this one was after, and of its members. */
  inputs (): Promise<Input[]>
  /** Remembers what was done so far, for the next attempt. */
  saveProgress (progress: unknown): Promise<void>
}

export type Handler<Payload = any> = (job: Job<Payload>) => unknown
/** Several jobs of a queue. */
export class Batch<Payload = any> implements Iterable<Job<Payload>> {
  private constructor ()
  readonly jobs: Array<Job<Payload>>
  readonly queue: string
  readonly length: number
  [Symbol.iterator] (): Iterator<Job<Payload>>
  /** Aborted when all of them are to stop. */
  readonly signal: AbortSignal
  /** Throws `Stopped` if one of them is to stop. */
  check (): void
  /** Runs `work` in a transaction that completes all of them. If the lease of one is lost it rolls back. */
  transaction<T> (work: (client: ClientBase) => Promise<T>): Promise<T>
}
/** Returns nothing, and all are completed, or a result for each, which may be an error. */
export type BatchHandler<Payload = any> = (batch: Batch<Payload>) => unknown
export type Middleware = (job: Job, call: (job: Job) => unknown) => unknown

export type EventKind =
  'started' | 'completed' | 'advanced' | 'suspended' | 'failed' | 'released' | 'lost' | 'connected' | 'disconnected'

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
  /** Ends the process when for so long the event loop was blocked, or all slots were taken by handlers that go on after
   * they were told to stop. Never, unless this is set. */
  stallTimeout?: number
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
  /** The handler gets up to `size` jobs of a queue at once, as many as are there. Each of them takes a slot. Not within
   * `use`. */
  handleBatch<Payload = any> (queues: string | string[], size: number, handler: BatchHandler<Payload>): this
  /** Is called around each handler, the first one outermost. */
  use (around: Middleware): this
  /** Works until SIGTERM, SIGINT or `stop`, then waits for the handlers and gives back what is left. */
  run (): Promise<void>
  /** The same without a look at signals. */
  serve (): Promise<void>
  /** Begins to shut down. A second call ends the wait for the handlers. A worker that does not run yet ends as soon as
   * it does. */
  stop (): void
  /** Works off everything that is ready now, and returns what happened. */
  drain (): Promise<WorkerEvent[]>
  on (event: EventKind, listener: (event: WorkerEvent) => void): this
}
