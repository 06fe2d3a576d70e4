"""Compares what a peer does with its jobs and what pg_queue does with them after the move.

A peer's script has these verbs; each line that it prints is a JSON object.

    fill      puts jobs in, and prints for each one its `label` and what it was asked for (see Job)
    late      puts in some more, to be moved by another run of the block
    work N    runs what is due with N handlers at a time until nothing is due, and prints `run` and `end` of each label

The handler of a job whose label begins with `fail` fails. Handlers take 50 ms, or 200 ms if N is more than 1.
"""

import csv
import io
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Dict, List, Optional, Tuple

from place import blocks

# A job is due at the requested time. Filling takes a while, and several programs read their clocks.
TOLERANCE = timedelta(seconds=20)
LEFT = "queue_name,jobs,reason,ids"
# The page and the heading of the SQL that all blocks call.
HELPER = ("docs/coming-from/libraries.md", "Moving the waiting jobs")


@dataclass
class Job:
    """What `fill` asked for. `lock`: jobs with the same one must not run side by side."""

    label: str
    queue: str
    delay: Optional[float] = None
    lock: Optional[str] = None
    key: Optional[str] = None


@dataclass
class Peer:
    """One peer and the page with its block.

    living: SQL for id and label of each job that waits or runs in the peer.
    stays: the labels that the block has to leave, and a part of the reason that it has to print.
    says: what the block has to print beside that, as CSV.
    differs: differences that are right, and why. The keys are `order QUEUE`, `order QUEUE, lock LOCK`,
    `runs LABEL` and `lock LOCK`.
    repeated: how many of the last blocks below the heading a later run repeats; 0 for all.
    hasten: SQL that makes waiting retries of the peer due.
    """

    name: str
    script: str
    page: str
    heading: str
    living: str
    helper: Tuple[str, str] = HELPER
    stays: Dict[str, str] = field(default_factory=dict)
    says: List[str] = field(default_factory=list)
    differs: Dict[str, str] = field(default_factory=dict)
    hasten: str = ""
    prepare: str = ""
    late: int = 1
    repeated: int = 0

    def check(self, place):
        """Returns what is wrong. See Case."""
        return Comparison(self, place).wrong()


class Comparison:
    """One peer's jobs in one place."""

    def __init__(self, peer, place):
        self.peer, self.place, self.found, self.used = peer, place, [], set()
        self.helper = "\n".join(blocks(*peer.helper))
        self.blocks = blocks(peer.page, peer.heading)

    def wrong(self):
        peer, place = self.peer, self.place
        order, counts, jobs = self.by_peer()
        database, jobs_here = self.filled()
        place.psql(database, "CREATE EXTENSION pg_queue")
        with place.connect(database) as conn:
            before = self.living(conn)
            moved = self.first_move(conn, database, before, jobs_here)
            self.again(conn, database)
            self.runs(conn, order, counts, moved, jobs)
        if any(job.lock for job in jobs.values()):
            self.beside(jobs)
        if any(job.lock or job.key for job in jobs.values()):
            self.locks(jobs)
        for what in set(peer.differs) - self.used:
            self.found.append(f"{what} was expected to differ, and does not")
        for what, why in peer.differs.items():
            place.say(f"differs, as it should: {what}: {why}")
        place.say(f"{len(moved)} jobs moved, {len(before) - len(moved)} left with a reason")
        return self.found

    def filled(self):
        """Returns a new database that the peer has filled, and the jobs by their labels."""
        database = self.place.database()
        if self.peer.prepare:
            self.place.psql(database, self.peer.prepare)
        printed = self.place.script(self.peer.script, database, "fill")
        return database, {one["label"]: Job(**one) for one in printed}

    def by_peer(self):
        """Lets the peer run its jobs. Returns their first starts in order, how often each ran, and the jobs."""
        database, jobs = self.filled()
        order, counts = [], {}
        for _ in range(12):
            printed = self.place.script(self.peer.script, database, "work", 1)
            for one in printed:
                label = one.get("run")
                if label is None or one.get("queue", jobs[label].queue) != jobs[label].queue:
                    continue  # an end, or the copy of a dead job in another queue
                counts[label] = counts.get(label, 0) + 1
                if label not in order:
                    order.append(label)
            if not printed or not self.peer.hasten:
                break
            self.place.psql(database, self.peer.hasten)
        return order, counts, jobs

    def beside(self, jobs):
        """Notes which jobs of one lock the peer itself runs side by side."""
        database, _ = self.filled()
        running, beside = set(), set()
        for one in self.place.script(self.peer.script, database, "work", 8):
            if "run" in one:
                beside |= {(one["run"], other) for other in running if self.same(jobs, one["run"], other)}
                running.add(one["run"])
            else:
                running.discard(one["end"])
        if beside:
            self.found.append(f"the peer itself ran jobs of one lock side by side: {sorted(beside)}")

    @staticmethod
    def same(jobs, one, other):
        return one != other and jobs[one].lock is not None and jobs[one].lock == jobs[other].lock

    def living(self, conn):
        return {str(id): label for id, label in conn.execute(self.peer.living).fetchall()}

    def move(self, database, again=False):
        """Runs the page's blocks. Returns how many jobs moved, and the reason for each id that stays."""
        sql = "\n".join(self.blocks[-self.peer.repeated:] if again else self.blocks)
        try:
            printed = self.place.psql(database, "\\pset format csv\n\\pset tuples_only off\n" + sql)
        except RuntimeError as error:
            self.found.append(f"the block fails: {error}")
            self.printed = ""
            return 0, {}
        moved, reasons, reading = 0, {}, False
        for row in csv.reader(io.StringIO(printed)):
            if ",".join(row) == LEFT:
                reading = True
            elif reading and len(row) == 4:
                if row[2]:
                    for id in row[3].strip("{}").replace('"', "").split(","):
                        reasons[id] = reasons[f"{row[0]}:{id}"] = row[2]
                else:
                    moved += int(row[1])
        self.printed = printed
        if not reading:
            self.found.append(f"the block does not print {LEFT}")
        return moved, reasons

    def first_move(self, conn, database, before, jobs):
        peer = self.peer
        self.place.psql(database, self.helper)
        count, reasons = self.move(database)
        self.found += [f"the block does not say {text!r}" for text in peer.says if text not in self.printed]
        after = self.living(conn)
        moved = self.moved(conn)
        labels = set(before.values())
        if count != len(moved):
            self.found.append(f"the block says {count} moved, {len(moved)} are here")
        for label in labels & set(after.values()) & set(moved):
            self.found.append(f"{label} is in both")
        for label in labels - set(after.values()) - set(moved):
            self.found.append(f"{label} is in neither")
        for label in set(moved) - labels:
            self.found.append(f"{label} was moved, and neither waited nor ran")
        said = {before[id]: reason for id, reason in reasons.items() if id in before}
        for label in set(after.values()) | set(said):
            wanted = peer.stays.get(label)
            if wanted is None:
                self.found.append(f"{label} stays: {said.get(label, 'no reason given')}")
            elif wanted not in said.get(label, ""):
                self.found.append(f"{label} stays: {said.get(label, 'no reason given')!r}, not {wanted!r}")
        for label in set(peer.stays) - set(after.values()):
            self.found.append(f"{label} should stay: {peer.stays[label]}")
        for label, job in moved.items():
            asked = jobs[label]
            begun = (job["run_at"] or job["enqueued_at"]) - job["enqueued_at"]
            due = timedelta(seconds=asked.delay or 0)
            if abs(begun - due) > TOLERANCE and (asked.delay or begun > TOLERANCE):
                self.found.append(f"{label} is due after {begun}, asked for {due}")
            if asked.key and job["unique_key"] != asked.key:
                self.found.append(f"{label} has the key {job['unique_key']!r}, not {asked.key!r}")
        return moved

    def moved(self, conn):
        names = "job_id, queue_name, run_at, enqueued_at, unique_key, group_key, priority, max_attempts, state"
        rows = conn.execute(f"SELECT {names}, {LABEL} FROM queue.jobs ORDER BY job_id").fetchall()
        found = {}
        for *values, label in rows:
            if label in found:
                self.found.append(f"{label} is here twice")
            found[label] = dict(zip(names.split(", "), values))
        return found

    def again(self, conn, database):
        """A second run moves nothing, a third one what has come since."""
        count, _ = self.move(database, again=True)
        if count:
            self.found.append(f"the second run moved {count} more")
        self.place.script(self.peer.script, database, "late")
        count, reasons = self.move(database, again=True)
        if count != self.peer.late:
            self.found.append(f"{count} of {self.peer.late} late jobs were moved: {reasons}")

    def locks(self, jobs):
        """Moves jobs whose keys are taken, and claims all due jobs together: no two jobs of one lock may be among them.
        This takes a database of its own, for a job that comes back would have lost its place.
        """
        database, _ = self.filled()
        self.place.psql(database, "CREATE EXTENSION pg_queue\n;" + self.helper)
        with self.place.connect(database) as conn:
            before = {label: id for id, label in self.living(conn).items()}
            keyed = [job for job in jobs.values() if job.key]
            for job in keyed:
                conn.execute("SELECT queue.create(%s, if_not_exists => true)", [job.queue])
                conn.execute("""SELECT queue.enqueue(%s, '{"label": "new"}', unique_key => %s)""", [job.queue, job.key])
            _, reasons = self.move(database)
            for job in keyed:
                if reasons.get(before[job.label]) != "a job here has its unique key":
                    self.found.append(f"{job.label} should stay, for its key is taken here")
            for (name,) in conn.execute("SELECT queue_name FROM queue.queues").fetchall():
                claimed = [
                    label for (label,) in conn.execute(f"SELECT {LABEL} FROM queue.claim(%s, 1000)", [name]).fetchall()
                ]
                for n, one in enumerate(claimed):
                    for other in claimed[:n]:
                        if one in jobs and other in jobs and self.same(jobs, one, other):
                            self.differ(f"lock {jobs[one].lock}", f"{other} and {one} run side by side here")

    def runs(self, conn, order, counts, moved, jobs):
        """Runs what is due one by one. Compares how often failing jobs run, and the order of the jobs of each lock and
        of the jobs without one. Jobs of different locks take turns here.
        """
        for name in sorted({job["queue_name"] for job in moved.values()}):
            here, runs = [], {}
            for _ in range(1000):
                row = conn.execute(f"SELECT id, {LABEL} FROM queue.claim(%s)", [name]).fetchone()
                if not row:
                    break
                runs[row[1]] = runs.get(row[1], 0) + 1
                if row[1] not in here:
                    here.append(row[1])
                if row[1].startswith("fail"):
                    conn.execute("SELECT queue.fail(%s, 'asked to', retry_in => '0')", [row[0]])
                else:
                    conn.execute("SELECT queue.complete(%s)", [row[0]])
            mine = {label for label, job in moved.items() if job["queue_name"] == name}
            for lock in sorted({jobs[label].lock or "" for label in mine}):
                same = {label for label in mine if (jobs[label].lock or "") == lock}
                mine_there = [label for label in order if label in same]
                mine_here = [label for label in here if label in same]
                if mine_there != mine_here:
                    what = f"order {name}" + (f", lock {lock}" if lock else "")
                    self.differ(what, f"there {mine_there}, here {mine_here}")
            for label in mine:
                if label.startswith("fail") and counts.get(label) != runs.get(label):
                    self.differ(f"runs {label}", f"{counts.get(label)} times there, {runs.get(label)} times here")

    def differ(self, what, how):
        if what in self.peer.differs:
            self.used.add(what)
        else:
            self.found.append(f"{what}: {how}")


# The label of a peer's job, at any of the places where the blocks put it.
LABEL = """coalesce(payload ->> 'label', payload #>> '{namedArgs,label}',
    convert_from(decode(payload ->> 'base64', 'base64'), 'UTF8'), payload #>> '{}')"""
