// A consumer in Node with pg.
//
// Run it once over the stream, connected as PGHOST, PGPORT, PGUSER and PGDATABASE tell:
//
//     npm ci && node consumer.js ../stream.csv
//
// What correct use asks for is in `Consumer`; a service would copy that, and replace the three at
// the end of the file: the handler, the broker and the stream.

import { readFile } from "node:fs/promises";
import { setTimeout as pause } from "node:timers/promises";
import pg from "pg";

// A whole transaction is run again so often when another was in its way.
const MAX_CONFLICTS = 6;
const CONFLICTS = new Set(["40001", "40P01"]);

// The broker delivers a message so often, and the inbox hands it out so often, when its handler
// fails; then it is a dead letter.
const MAX_ATTEMPTS = 3;

// How long a released message that failed stays away. Here it comes back at once, so that the
// example ends; a service waits for seconds, and longer each time.
const RETRY_AFTER = "0 seconds";

const SEQUENCES = {
  orders: {
    retention: "30 days",
    ordering: "conditions",
    messages: [
      { type: "order.placed" },
      { type: "order.paid", releaseCondition: { predecessor: "order.placed" } },
      { type: "order.packed", releaseCondition: { predecessor: "order.placed" } },
      {
        type: "order.shipped",
        releaseCondition: { and: [{ predecessor: "order.paid" }, { predecessor: "order.packed" }] },
      },
      { type: "order.commented", optional: true },
    ],
  },
  accounts: {
    retention: "90 days",
    ordering: "position",
    messages: [{ type: "account.entry" }, { type: "account.closed", final: true }],
  },
};

// Takes care of messages around a handler, one transaction each.
class Consumer {
  constructor(pool, handle) {
    this.pool = pool;
    this.handle = handle;
  }

  // Runs `work` in a transaction, all of it again while it has to give way to another.
  async inTransaction(work) {
    for (let conflicts = 0; ; conflicts++) {
      // One client for all of the transaction. `pool.query` would take any client for each
      // statement, and BEGIN, claim and COMMIT would be strangers to each other.
      const client = await this.pool.connect();
      try {
        await client.query("BEGIN");
        const result = await work(client);
        const end = await client.query("COMMIT");
        // After a statement that failed and whose error was swallowed, COMMIT rolls back, and says
        // so in its command tag alone.
        if (end.command !== "COMMIT") throw new Error("the transaction was rolled back");
        client.release();
        return result;
      } catch (error) {
        await this.rollBack(client);
        if (!CONFLICTS.has(error.code) || conflicts === MAX_CONFLICTS) throw error;
        await pause(10 * 2 ** conflicts * (1 + Math.random()));
      }
    }
  }

  // Gives a client back to the pool, or throws it away when it cannot even roll back: the pool
  // must not hand out a client with a transaction still open, or a connection that is lost.
  async rollBack(client) {
    try {
      await client.query("ROLLBACK");
      client.release();
    } catch (error) {
      client.release(error);
    }
  }

  // Declares what this consumer needs. Nothing is written when nothing has changed.
  async declare() {
    await this.inTransaction(async (client) => {
      for (const [name, { retention, messages, ordering }] of Object.entries(SEQUENCES)) {
        await client.query("SELECT inbox_declare_sequence($1, $2, $3, ordering => $4)", [
          name,
          retention,
          JSON.stringify(messages),
          ordering,
        ]);
      }
    });
  }

  // Takes care of a message from the broker: its outcome, told after the commit, and the instance
  // to drain. An error means: do not acknowledge.
  async process(message) {
    let isHandled;
    try {
      return await this.inTransaction(async (client) => {
        isHandled = false;
        const { outcome, instance } = await this.take(client, message);
        if (outcome === "applied" || outcome === "direct") {
          isHandled = true;
          await this.handle(client, message);
        }
        return { outcome, instance: outcome === "applied" ? instance : null };
      });
    } catch (error) {
      // The broker's turn, until the handler has had its tries. A lost connection, at the commit
      // perhaps, is the broker's turn in any case: the redelivery knows what happened. So is a
      // message that could not be taken: it is not the message's fault.
      if (!isHandled || isDisconnection(error) || message.delivery < MAX_ATTEMPTS) throw error;
      return { outcome: await this.giveUp(message, error), instance: null };
    }
  }

  // Claims or receives a message: what comes of it, and its instance.
  async take(client, message) {
    const isSequenced = message.consumer in SEQUENCES;
    if (isSequenced) {
      const { rows } = await client.query(
        `SELECT decision, sequence_instance_id
           FROM inbox_receive($1, $2, $3, $4, "position" => $5)`,
        // A Buffer is sent as bytea; a string would be read as bytea's escape format.
        [message.type, message.id, message.context, message.payload, message.position],
      );
      // A bigint comes as a string: it may be larger than what a number holds exactly.
      const { decision, sequence_instance_id: instance } = rows[0];
      if (decision !== "direct") {
        return { outcome: decision === "process" ? "applied" : decision, instance };
      }
    }
    // A plain consumer's message. One without a context has no place in a sequence, and is to have
    // its effect once all the same.
    const isClaimed = await this.claim(client, message);
    const outcome = isSequenced ? "direct" : "applied";
    return { outcome: isClaimed ? outcome : "duplicate", instance: null };
  }

  async claim(client, message) {
    // The casts choose among inbox_claim(text, text) and inbox_claim(text, uuid).
    const { rows } = await client.query("SELECT inbox_claim($1::text, $2::text) AS claimed", [
      message.consumer,
      message.id,
    ]);
    return rows[0].claimed;
  }

  // Records a failure as a dead letter, in a transaction of its own.
  async giveUp(message, error) {
    const text = `at delivery ${message.delivery}: the handler failed: ${error.message}`;
    const isRecorded = await this.inTransaction(async (client) => {
      if (message.consumer in SEQUENCES && message.context !== null) {
        const { rows } = await client.query(
          `SELECT inbox_fail($1, $2, inbox_sequence($3, $4), $5, payload => $6) AS recorded`,
          [message.type, message.id, message.consumer, message.context, text, message.payload],
        );
        return rows[0].recorded;
      }
      // A bare claim looks the same whether its message succeeded or not. Whoever can claim it now
      // knows that nobody has succeeded.
      if (!(await this.claim(client, message))) return false;
      const { rows } = await client.query(
        `SELECT inbox_fail($1, $2, error => $3, payload => $4) AS recorded`,
        [message.consumer, message.id, text, message.payload],
      );
      return rows[0].recorded;
    });
    // false: somebody else has taken care of the message meanwhile.
    return isRecorded ? "dead_lettered" : "duplicate";
  }

  // Handles what is ready in that instance, or in any, one transaction a message.
  async drain(instance = null) {
    for (;;) {
      let next;
      try {
        await this.inTransaction(async (client) => {
          next = undefined;
          const { rows } = await client.query(
            `SELECT message_id, attempts, coalesce(sequence_name, message_type) AS consumer,
                    message_type, idempotence_id, context_id, "position", payload
               FROM inbox_next($1)`,
            [instance],
          );
          next = rows[0];
          if (next === undefined) return;
          await this.handle(client, {
            consumer: next.consumer,
            type: next.message_type,
            id: next.idempotence_id,
            context: next.context_id,
            position: next.position,
            payload: next.payload,
            released: true,
          });
        });
        if (next === undefined) return;
      } catch (error) {
        if (next === undefined || isDisconnection(error)) throw error;
        await this.failReleased(next, error);
      }
    }
  }

  // Records the failure of a message that the inbox handed out: nobody else would, and it would
  // come again for ever.
  async failReleased({ message_id, attempts }, error) {
    await this.inTransaction((client) =>
      client.query("SELECT inbox_fail_message($1, $2, $3)", [
        message_id,
        `the handler failed: ${error.message}`,
        attempts + 1 < MAX_ATTEMPTS ? RETRY_AFTER : null,
      ]),
    );
  }
}

// Whether the connection is at fault: class 08, the administrator's and a crash's 57P01 to 57P05,
// and what the driver itself reports, which has no SQLSTATE.
function isDisconnection(error) {
  return (
    /^(08|57P)/.test(error.code ?? "") ||
    ["ECONNRESET", "ECONNREFUSED", "EPIPE", "ETIMEDOUT"].includes(error.code) ||
    /^Connection terminated/.test(error.message)
  );
}

// The handler: what a message is about. It writes with the client that it is given, and throws
// when it cannot do its work.
async function handle(client, message) {
  const [, amount, note] = /^(\S*) ?(.*)$/s.exec(message.payload.toString("utf8"));
  if (!/^-?[0-9]+$/.test(amount)) throw new Error(`"${amount}" is no amount`);
  await client.query(
    `INSERT INTO ledger
       (consumer, context_id, message_type, message_id, amount, note, released)
       VALUES ($1, $2, $3, $4, $5, $6, $7)`,
    [
      message.consumer,
      message.context,
      message.type,
      message.id,
      Number(amount),
      note,
      message.released ?? false,
    ],
  );
}

// Stands in for a broker: what is not acknowledged is delivered again, after the others.
class Broker {
  constructor(messages) {
    this.queue = messages;
  }

  next() {
    return this.queue.shift();
  }

  giveBack(message) {
    this.queue.push({ ...message, delivery: message.delivery + 1 });
  }
}

// The messages of the stream, which quotes nothing.
async function read(path) {
  const lines = (await readFile(path, "utf8")).trimEnd().split("\n").slice(1);
  return lines.map((line) => {
    const [consumer, type, id, context, position, payload] = line.split(",");
    return {
      consumer,
      type,
      id,
      context: context || null,
      position: position || null,
      payload: Buffer.from(payload, "utf8"),
      delivery: 1,
    };
  });
}

const pool = new pg.Pool({ max: 2 });
// Of a client that breaks while nobody uses it. Without a listener it would end the process.
pool.on("error", (error) => console.error(`an idle connection was lost: ${error.message}`));
// The same for one that is in use; the statement that waits for it fails anyway.
pool.on("connect", (client) => client.on("error", () => {}));

const broker = new Broker(await read(process.argv[2]));
const consumer = new Consumer(pool, handle);
await consumer.declare();
const outcomes = new Map();
const count = (outcome) => outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);

for (let message = broker.next(); message !== undefined; message = broker.next()) {
  let processed;
  try {
    processed = await consumer.process(message);
  } catch (error) {
    console.error(`${message.id} goes back to the broker: ${error.message}`);
    count("redelivered");
    broker.giveBack(message);
    continue;
  }
  // Committed: this is where a message is acknowledged. What it released comes after that.
  count(processed.outcome);
  if (processed.instance !== null) {
    try {
      await consumer.drain(processed.instance);
    } catch (error) {
      // The message itself is safe. What is ready is left to the sweep.
      console.error(`the drain of ${message.id} has ended: ${error.message}`);
    }
  }
}
// What a process that died has left released, and what is due again. A service does so every few
// seconds.
await consumer.drain();
for (const [outcome, times] of outcomes) console.log(`${outcome}|${times}`);
await pool.end();
