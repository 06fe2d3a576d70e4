import type { Client } from 'pg'
import type { Duration, Queryable } from '.'

/** A row of `queue.jobs`. */
export interface JobRow {
  job_id: number
  queue_name: string
  stage: string | null
  state: 'ready' | 'scheduled' | 'retrying' | 'held' | 'running'
  payload: any
  priority: number
  attempt: number
  run_at: Date | null
  [column: string]: any
}

export function enqueued (client: Queryable, queue: string, payload?: unknown): Promise<JobRow[]>
export function assertEnqueued (
  client: Queryable, queue: string, payload?: unknown, options?: { count?: number }
): Promise<JobRow[]>
export function refuteEnqueued (client: Queryable, queue: string, payload?: unknown): Promise<JobRow[]>
/** Lets time pass for jobs that wait for their time. Returns the ids of the jobs that became due. */
export function advanceTime (client: Queryable, by: Duration, queue?: string): Promise<number[]>

/** A temporary server with pg_queue. */
export class Server {
  constructor (options?: { pgConfig?: string, settings?: Record<string, string | number> })
  readonly dir: string
  start (): void
  stop (mode?: 'fast' | 'immediate' | 'smart'): void
  /** Makes the other server a standby of this one, and starts it. */
  baseBackup (standby: Server): void
  promote (): void
  close (): void
  config (database?: string): { host: string, port: number, user: string, database: string }
  connect (database?: string): Promise<Client>
  createDatabase (): Promise<string>
  dropDatabase (name: string): Promise<void>
}
