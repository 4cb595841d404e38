// A table that fences its own writes: this SQL makes a late, repeated or stale call harmless.

import { DatabaseSync } from "node:sqlite";

const SCHEMA = `
  create table if not exists fences (task text primary key, epoch integer not null);
  create table if not exists stock (item text primary key, amount integer not null);
  create table if not exists moves (idempotency_key text primary key, epoch integer not null, answer text not null);
  create table if not exists shipments (id integer primary key, epoch integer not null, item text, quantity integer);
`;

// Raises the task's fence, or finds its own epoch there, or returns no row. The database stays locked until the transaction
// ends, so no other epoch can come between the comparison and the write.
const RAISE_FENCE = `
  insert into fences as f (task, epoch) values (?, ?)
  on conflict (task) do update set epoch = excluded.epoch where f.epoch <= excluded.epoch
  returning 1
`;

export class StaleEpoch extends Error {}

export class Stock {
  constructor(path) {
    this.db = new DatabaseSync(path, { timeout: 5000 });
    this.db.exec("pragma journal_mode = wal; pragma synchronous = full");
    this.db.exec(SCHEMA);
  }

  // KEYED: the key is written in the same transaction as the move, so a repeat finds it and gets the first answer.
  move({ task, epoch, key }, { item, delta }) {
    return this.#fenced(task, epoch, () => {
      const known = this.db.prepare("select answer from moves where idempotency_key = ?").get(key);
      if (known) return known.answer;
      const { amount } = this.db
        .prepare(`insert into stock as s values (?, ?) on conflict do update set amount = s.amount + excluded.amount returning amount`)
        .get(item, delta);
      const answer = `There are ${amount} of ${item}.`;
      this.db.prepare("insert into moves values (?, ?, ?)").run(key, epoch, answer);
      return answer;
    });
  }

  // IDEMPOTENT: a repeat has the same result. The fence keeps a stale call from undoing a later call.
  count({ task, epoch }, { item, amount }) {
    return this.#fenced(task, epoch, () => {
      this.db.prepare("insert into stock values (?, ?) on conflict do update set amount = excluded.amount").run(item, amount);
      return `There are ${amount} of ${item}.`;
    });
  }

  // UNSAFE: each call ships again. The fence applies here too, but a repeat under the same claim would not be noticed.
  ship({ task, epoch }, { item, quantity }) {
    return this.#fenced(task, epoch, () => {
      this.db.prepare("insert into shipments (epoch, item, quantity) values (?, ?, ?)").run(epoch, item, quantity);
      return `${quantity} of ${item} are on their way.`;
    });
  }

  // PURE: reads need no fence.
  read(_call, { item }) {
    const row = this.db.prepare("select amount from stock where item = ?").get(item);
    return `There are ${row?.amount ?? 0} of ${item}.`;
  }

  #fenced(task, epoch, write) {
    this.db.exec("begin immediate");
    try {
      if (!this.db.prepare(RAISE_FENCE).get(task, epoch)) throw new StaleEpoch(`task ${task} has a later claim than ${epoch}`);
      const answer = write();
      this.db.exec("commit");
      return answer;
    } catch (error) {
      this.db.exec("rollback");
      throw error;
    }
  }
}
