import { EventEmitter } from 'node:events'
import type { ClientBase, ClientConfig } from 'pg'

/** A length of time: a number of milliseconds, or an interval as Postgres reads it, such as `'5 minutes'`. */
export type Duration = number | string

/** An object that runs a statement: a client or pool of pg, or a similar one. */
export interface Queryable {
  query (statement: any, values?: any): Promise<{ rows: any[] }>
}

/** What a value is, and where: the name of the queue, or of the topic for the payload of an event. */
export interface Context { kind: 'payload' | 'result' | 'progress' | 'step', name: string }

/** Encodes and decodes what is stored of payloads, results, progress and steps. The hooks may return promises. */
export interface Codec {
  /** Returns the JSON that is stored for a value. */
  encode (value: any, context: Context): unknown
  /**
   * Returns the value. Throws `UnknownCodec` if only another worker may be able to read it; any other error fails the
   * attempt.
   */
  decode (stored: any, context: Context): unknown
}

export interface AesGcmOptions {
  /** The keys, 32 bytes each, by their ids. */
  keys: Record<string, Uint8Array>
  /** The id of the key that encrypts. All keys decrypt, so that keys can be rotated. */
  current: string
  /** True: values that are not encrypted are refused. Default: they are read as they are. */
  strict?: boolean
  /**
   * The names of other queues and topics whose values a queue accepts: that of a topic that it is bound to, and of a
   * queue whose dead jobs are copied to it.
   */
  accepts?: Record<string, string[]>
}

/** Encrypts with AES-256-GCM. */
export class AesGcm implements Codec {
  constructor (options: AesGcmOptions)
  encode (value: any, context: Context): { codec: string, key: string, data: string }
  decode (stored: any, context: Context): any
}

/** This worker has no codec or no key for a value. The job is released, as a job without a handler is. */
export class UnknownCodec extends Error {}

/** The options of `queue.enqueue`. */
export interface EnqueueOptions {
  // type of options: made by `make generate`
  /** A job with a smaller priority runs first. */
  priority?: number | null
  /** The job does not run before this time has passed. */
  delay?: Duration | null
  /** The job does not run before this time, which may be past. Not together with `delay`. */
  runAt?: Date | string | null
  /** A queue has at most one living job with this key. */
  uniqueKey?: string | number | bigint | null
  /**
   * What happens if a living job has the key: the call does nothing, the job gets its contents, the job runs once
   * more, or the call is an error.
   */
  onDuplicate?: 'skip' | 'replace' | 'rerun' | 'error' | null
  /** A call whose version is not larger than the known version of the key does nothing, and returns the job's id. */
  version?: Date | string | null
  /** The key stays taken for this time from now, even if the job has ended. */
  uniqueFor?: Duration | null
  /** The group in which the queue's limits per group count the job. */
  groupKey?: string | number | bigint | null
  /** The stage in which a new job begins. Another run of a job under its key begins in the first stage. */
  stage?: string | null
  /** After this many counted attempts the job is dead. */
  maxAttempts?: number | null
  /** How long a claim of the job lasts without a heartbeat. */
  lease?: Duration | null
  /** An object that is kept beside the payload, for instance with a trace id. */
  headers?: unknown
  /** The job is held until these jobs have ended as `upon` says. */
  after?: readonly number[] | null
  /**
   * What the job waits for, of the jobs in `after`: that all have completed, that one has completed, that one is
   * dead, that all have ended in any way, or that they have not ended by `runAt` or the end of `delay`.
   */
  upon?: 'completed' | 'any' | 'failed' | 'ended' | 'overdue' | null
  /** The job becomes a member of this flow, which waits for it. */
  flow?: number | null
  /** The job's name in its flow. */
  task?: string | null
  /** If no worker has claimed the job before this time, the job expires. */
  startBy?: Date | string | null
  /**
   * If no worker has claimed the job within this time, which begins at `runAt` or at the end of `delay`, the job
   * expires. Not together with `startBy`.
   */
  startWithin?: Duration | null
  /** Calls under the key put the waiting job off at most this long after the first of them. */
  maxDelay?: Duration | null
  // end of type of options
}

// types of further options: made by `make generate`
type EventOptions = Omit<EnqueueOptions, 'stage' | 'maxAttempts' | 'lease'>
type FlowOptions = Omit<EnqueueOptions, 'maxDelay'>
type TaskOptions = Omit<EnqueueOptions, 'after' | 'flow' | 'maxDelay'>
// end of types of further options

export type Upon = 'completed' | 'any' | 'failed' | 'ended' | 'overdue'

/** A member of a flow. */
export interface Task extends TaskOptions {
  task: string
  /** Its queue. The default is the flow's queue. */
  queue?: string
  payload?: unknown
  /** The names of the tasks that it waits for. */
  after?: string[]
}

/** A job that waits for any number of other jobs, its members. The options are those of the flow itself. */
export interface Flow extends FlowOptions {
  tasks?: Task[]
  payload?: unknown
  /** True: when its members have ended, it goes to its queue, and a worker runs it. False: it completes by itself. */
  runs?: boolean
  /** True: it waits for `seal`, too. */
  open?: boolean
  /** True: the first dead member cancels the others, and the flow is dead. */
  failFast?: boolean
}

/** A statement for any driver. Each value is a text, a number or an array of texts. */
export interface Statement { text: string, values: any[] }

/** What encodes the payload. A statement without it takes a payload that the codec has encoded before. */
export interface Encoding { codec?: Codec | null }

/** Adds a job in the client's transaction and returns its id. */
export function enqueue (
  client: Queryable, queue: string, payload?: unknown, options?: EnqueueOptions & Encoding
): Promise<number>
/** Adds one job for each payload, all with the same options, and returns their ids in the order of the payloads. */
export function enqueueMany (
  client: Queryable, queue: string, payloads: readonly unknown[], options?: EnqueueOptions & Encoding
): Promise<number[]>
/** The statement of `enqueue`, which returns a column `id`. */
export function enqueueQuery (queue: string, payload?: unknown, options?: EnqueueOptions): Statement
export function enqueueManyQuery (queue: string, payloads: readonly unknown[], options?: EnqueueOptions): Statement

/** The options of `queue.publish`. Bindings and queues determine a job's other options. */
export interface PublishOptions extends EventOptions {
  /** Words with dots between them, which the patterns of bindings match. */
  key?: string
  /** True: it is an error (`P0002`) if no queue gets the event. */
  mandatory?: boolean | null
}

/**
 * Publishes an event in the client's transaction. It adds a job to each queue with a matching binding. Returns the
 * jobs' ids by queue.
 */
export function publish (
  client: Queryable, topic: string, payload?: unknown, options?: PublishOptions & Encoding
): Promise<Map<string, number>>
/** The statement of `publish`, which returns columns `queue` and `id`. */
export function publishQuery (topic: string, payload?: unknown, options?: PublishOptions): Statement

/** Adds a flow and returns its id, which is a job id. */
export function enqueueFlow (client: Queryable, queue: string, flow?: Flow & Encoding): Promise<number>
export function enqueueFlowQuery (queue: string, flow?: Flow): Statement
/** Lets an open flow end when its members have ended. */
export function seal (client: Queryable, flow: number): Promise<void>
/**
 * Completes an open flow without members: the event that it stands for has occurred. The result is stored as it is:
 * encode it with the codec before.
 */
export function resolve (client: Queryable, flow: number, result?: unknown): Promise<void>
/** Ends an open flow without members as dead: the event that it stands for has failed. */
export function reject (client: Queryable, flow: number, error: string): Promise<void>

export type StopReason = 'cancelled' | 'lost' | 'shutdown' | 'timeout'

/** Fails the attempt. The job runs again after `delay`. */
export class RetryIn extends Error {
  constructor (delay: Duration, message?: string)
  readonly delay: Duration
}
/** Fails the job for good: the job is dead. */
export class Fatal extends Error {}
/** Releases the job, and does not count the attempt. The job runs again after `delay`. */
export class Snooze extends Error {
  constructor (delay?: Duration)
  readonly delay: Duration
}
/**
 * Releases the job as `Snooze` does. Until then no worker starts a job of its queue, or of its group with `group`: for
 * instance because a service has answered 429. `delay` may be the text of a header `Retry-After`: seconds or a date.
 */
export class Throttle extends Snooze {
  constructor (delay: Duration | string, options?: { group?: boolean })
  readonly group: boolean
}
/**
 * Thrown by `transaction` of a worker with `effects`: an earlier attempt has committed the effects. Let it pass: the
 * worker completes the job.
 */
export class AlreadyDone extends Error {
  constructor (jobIds: number[])
  /** The jobs whose effects are committed. The other jobs of a batch are released. */
  readonly jobIds: number[]
}
/** Thrown when the handler is to stop. */
export class Stopped extends Error {
  constructor (reason: StopReason)
  readonly reason: StopReason
}
export interface AdvanceOptions { stage?: string | null, payload?: unknown, delay?: Duration }
/** Returned by a handler: the job goes on in the stage `stage`, by default in the next one. */
export class Advance {
  constructor (options?: AdvanceOptions)
}

export interface SuspendOptions {
  after?: readonly number[] | null
  upon?: Upon
  progress?: unknown
  /** When the job goes on at the latest. */
  until?: Date | string | null
}
/**
 * Returned by a handler: the job is held until other jobs have ended, and then goes on. Without `after`, it waits for
 * its own members.
 */
export class Suspend {
  constructor (options?: SuspendOptions)
}

/** The outcome of a job that another job waited for. If it is no longer kept, only its id is there. */
export interface Input {
  jobId: number
  queue: string | null
  task: string | null
  state: string | null
  result: any
  error: string | null
}

/**
 * Reads JSON without loss: an integer beyond 2^53 is a `bigint`. The JSON of jobs is read this way.
 */
export function parseJson (text: string | null): any
/** Writes JSON, a `bigint` as an integer. `JSON.stringify` throws a TypeError for a `bigint`. */
export function stringifyJson (value: unknown): string

/** Integers beyond 2^53 in `payload`, `headers`, `progress` and results are of type `bigint`, exactly. */
export interface Job<Payload = any> {
  /** The attempt's id. The attempt can be ended once. */
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
  /** The progress that the last attempt, or this one, has reported. */
  readonly progress: any
  readonly lastError: string | null
  readonly enqueuedAt: Date
  readonly traceparent: string | undefined
  /** Aborted when the handler is to stop; its reason is a `Stopped`. */
  readonly signal: AbortSignal
  readonly stopReason: StopReason | null
  /** True if the worker shuts down. The handler may go on until its signal is aborted. */
  readonly stopping: boolean
  /**
   * True if the handler itself has ended the attempt. A handler that does so without this package's functions sets it.
   */
  ended: boolean
  /** Throws `Stopped` if the handler is to stop. */
  check (): void
  /**
   * Runs `work` in a transaction that completes the job when it ends, with the result of `work`. If `work` has ended
   * the job itself, the transaction only commits.
   *
   * If the worker has `effects`, the transaction is there. If an earlier attempt has committed the effects, this throws
   * `AlreadyDone`.
   */
  transaction<T> (work: (client: ClientBase) => Promise<T>): Promise<T>
  /** Completes the job in the caller's own transaction. */
  complete (client: Queryable, result?: unknown): Promise<void>
  /** Moves the job to another stage, in the caller's own transaction. */
  advance (client: Queryable, options?: AdvanceOptions): Promise<void>
  /** Lets the job wait for other jobs, in the caller's own transaction. */
  suspend (client: Queryable, options?: SuspendOptions): Promise<void>
  /**
   * Returns the result of `work`, which runs once for all attempts. Its writes and the note of its result commit
   * together.
   */
  step<T> (name: string, work: (client: ClientBase) => Promise<T>): Promise<T>
  /** Returns the outcomes of the jobs that this job was after, and of the members of its flow. */
  inputs (): Promise<Input[]>
  /** Stores what was done so far, for the next attempt. */
  saveProgress (progress: unknown): Promise<void>
  /** Says how much of the rates of a queue with `rate_cost` the job has used so far. */
  charge (used: number): Promise<void>
}

export type Handler<Payload = any> = (job: Job<Payload>) => unknown
/** Several jobs of a queue. */
export class Batch<Payload = any> implements Iterable<Job<Payload>> {
  private constructor ()
  readonly jobs: Array<Job<Payload>>
  readonly queue: string
  readonly length: number
  [Symbol.iterator] (): Iterator<Job<Payload>>
  /** Aborted when all of the jobs are to stop. */
  readonly signal: AbortSignal
  /** Throws `Stopped` if the handler is to stop one of the jobs. */
  check (): void
  /**
   * Runs `work` in a transaction that completes all jobs. If the lease of one job is lost, the transaction rolls back.
   *
   * If the worker has `effects`, the transaction is there. If an earlier attempt has committed effects of a job, this
   * throws `AlreadyDone`: that job is completed, and the others are released.
   */
  transaction<T> (work: (client: ClientBase) => Promise<T>): Promise<T>
}
/** If it returns nothing, all jobs are completed. Otherwise it returns a result for each job, which may be an error. */
export type BatchHandler<Payload = any> = (batch: Batch<Payload>) => unknown
export type Middleware = (job: Job, call: (job: Job) => unknown) => unknown

export type EventKind =
  'started' | 'completed' | 'advanced' | 'suspended' | 'failed' | 'released' | 'lost' | 'connected' | 'disconnected'

/** An event. The worker reports the end of an attempt when the server has confirmed it. */
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
  /** How many handlers run at the same time. Default: 10 */
  concurrency?: number
  /**
   * How many further jobs are claimed ahead, for short jobs. Beside jobs whose last attempt has timed out, none is.
   * Default: 0
   */
  prefetch?: number
  /**
   * How many connections handlers use at the same time, for `transaction`, steps and so on. They wait for each other.
   * Default: as many as they ask for, and the server accepts
   */
  maxConnections?: number
  /** How long one claim sleeps; at most the server's `pg_queue.max_wait`. Default: 15 seconds */
  wait?: number
  /**
   * How long a claim collects a full batch, from when its first job is ready. For a worker with one handler, of
   * batches. If its queue has stages, it is for one of them. Default: 0
   */
  linger?: number
  /**
   * The longest time between two heartbeats. Default: 10 seconds; a third of the lease or of `disconnect` if that is
   * shorter
   */
  heartbeat?: number
  lease?: Duration
  /**
   * When the jobs of this worker run elsewhere after its connection has broken and not come back, as when the process
   * is killed. 0: immediately, however the connection ends; not behind a pooler. null: when their leases end. Default:
   * 5 seconds
   */
  disconnect?: number | null
  /** How long handlers may go on after `stop` or SIGTERM. Default: 30 seconds */
  shutdownTimeout?: number
  /**
   * Ends the process if for this long the event loop was blocked, or all slots were taken by handlers that did not stop
   * when they were told to. The default is never.
   */
  stallTimeout?: number
  /**
   * How long a handler may take, in milliseconds. Then it is told to stop, and the attempt fails. Default: as long as
   * it likes
   */
  timeout?: number
  /** Whether the error of a failed attempt is kept with its trace, of 4,096 characters at most. Default: false */
  trace?: boolean
  /**
   * A second `connection`, for `transaction`: the primary of a bridge (docs/bridge.md). Effects there are committed
   * once, however often the job runs. Without it, `transaction` is on the queue's server.
   */
  effects?: string | ClientConfig | Array<string | ClientConfig> | null
  /** Encodes and decodes payloads, results, progress and steps, such as `AesGcm`. */
  codec?: Codec | null
  /**
   * What becomes of a job whose codec or key this worker does not have, such as one that a newer producer has enqueued.
   * `release`, the default, gives it back for 30 seconds, without counting the attempt; `fail` fails the attempt.
   */
  onUnknown?: 'release' | 'fail'
  /** The worker's name in the views. Default: host and process id */
  name?: string
  /** A logger with pino's methods. Default: lines of JSON to stderr */
  logger?: Logger
}

/** A queue, or the jobs of one stage of it. A queue alone: all stages that have no handler of their own. */
export type Source = string | { queue: string, stage?: string | null }

export interface HandlerOptions {
  /** How long the handler may take, in milliseconds, in place of the worker's `timeout`. */
  timeout?: number | null
}

/** Runs the jobs of up to eight queues. It emits each `WorkerEvent` under its kind. */
export class Worker extends EventEmitter {
  /** `connection`: as for pg. If there are several, the worker uses the first one that accepts writes. */
  constructor (connection?: string | ClientConfig | Array<string | ClientConfig>, options?: WorkerOptions)
  /** The handler returns the job's result; an error fails the attempt. */
  handle<Payload = any> (from: Source | Source[], handler: Handler<Payload>, options?: HandlerOptions): this
  /**
   * The handler gets up to `size` jobs of a queue together, as many as are claimed. Each job takes a slot. `use` does
   * not apply.
   */
  handleBatch<Payload = any> (
    from: Source | Source[], size: number, handler: BatchHandler<Payload>, options?: HandlerOptions
  ): this
  /** Adds a function that is called around each handler. The first one is the outermost. */
  use (around: Middleware): this
  /** Works until SIGTERM, SIGINT or `stop`. Then it waits for the handlers, and releases the remaining jobs. */
  run (): Promise<void>
  /** Works as `run`, and does not handle signals. */
  serve (): Promise<void>
  /**
   * Begins to shut down. A second call ends the wait for the handlers. If the worker does not run yet, it stops as soon
   * as it starts.
   */
  stop (): void
  /** Runs all jobs that are ready now, and returns the events. */
  drain (): Promise<WorkerEvent[]>
  on (event: EventKind, listener: (event: WorkerEvent) => void): this
}
