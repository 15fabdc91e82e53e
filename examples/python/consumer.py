"""A consumer in Python with psycopg 3.

Run it once over the stream, connected as libpq is told by PGHOST, PGPORT, PGUSER, PGDATABASE:

    python consumer.py ../stream.csv

What correct use asks for is in `Consumer`; a service would copy that, and replace the three at the
end of the file: the handler, the broker and the stream.
"""

import csv
import random
import re
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass

import psycopg
from psycopg.errors import DeadlockDetected, SerializationFailure
from psycopg.pq import TransactionStatus

# A whole transaction is run again so often when another was in its way.
MAX_CONFLICTS = 6

# The broker delivers a message so often, and the inbox hands it out so often, when its handler
# fails; then it is a dead letter.
MAX_ATTEMPTS = 3

# How long a released message that failed stays away. Here it comes back at once, so that the
# example ends; a service waits for seconds, and longer each time.
RETRY_AFTER = "0 seconds"

ORDERS = """[
    {"type": "order.placed"},
    {"type": "order.paid",      "releaseCondition": {"predecessor": "order.placed"}},
    {"type": "order.packed",    "releaseCondition": {"predecessor": "order.placed"}},
    {"type": "order.shipped",   "releaseCondition": {"and": [
        {"predecessor": "order.paid"}, {"predecessor": "order.packed"}]}},
    {"type": "order.commented", "optional": true}]"""

ACCOUNTS = """[
    {"type": "account.entry"},
    {"type": "account.closed", "final": true}]"""

SEQUENCES = {"orders", "accounts"}


@dataclass
class Message:
    """A message: from the broker, or handed out by the inbox."""

    consumer: str  # The plain consumer, or the sequence.
    type: str
    id: str  # The producer's event id, the same on every redelivery.
    context: str | None
    position: int | None
    payload: bytes
    delivery: int = 1
    released: bool = False


class Consumer:
    """Takes care of messages around a handler, one transaction each."""

    def __init__(self, handle):
        self.handle = handle
        self.connection = None

    def connect(self):
        """A connection that works: the one there is, or a new one."""
        if self.is_disconnected():
            # With autocommit, psycopg opens a transaction in `transaction()` and nowhere else.
            # Without it every statement would open one, the innocent SELECT included, and a
            # `transaction()` within that would be a savepoint that commits nothing.
            self.connection = psycopg.connect(autocommit=True)
        return self.connection

    def in_transaction(self, work):
        """Runs `work` in a transaction, all of it again while it has to give way to another."""
        for conflicts in range(MAX_CONFLICTS + 1):
            connection = self.connect()
            try:
                with connection.transaction():
                    result = work(connection)
                    # After a statement that failed and whose error was swallowed, COMMIT rolls
                    # back, and says so to nobody.
                    if connection.info.transaction_status != TransactionStatus.INTRANS:
                        raise RuntimeError("the transaction was rolled back")
                # The block has committed: only now anything is known.
                return result
            except (SerializationFailure, DeadlockDetected):
                if conflicts == MAX_CONFLICTS:
                    raise
                time.sleep(0.01 * 2**conflicts * (1 + random.random()))

    def declare(self):
        """Declares what this consumer needs. Nothing is written when nothing has changed."""

        def work(connection):
            declare = "SELECT inbox_declare_sequence(%s, %s, %s, ordering => %s)"
            connection.execute(declare, ("orders", "30 days", ORDERS, "conditions"))
            connection.execute(declare, ("accounts", "90 days", ACCOUNTS, "position"))

        self.in_transaction(work)

    def process(self, message):
        """Takes care of a message from the broker: its outcome, told after the commit, and the
        instance to drain. An error means: do not acknowledge."""

        is_handled = False

        def work(connection):
            nonlocal is_handled
            is_handled = False
            decision, instance = self.take(connection, message)
            if decision in ("process", "direct"):
                is_handled = True
                self.handle(connection, message)
            return decision, instance

        try:
            decision, instance = self.in_transaction(work)
        except Exception as error:
            # The broker's turn, until the handler has had its tries. A lost connection, at the
            # commit perhaps, is the broker's turn in any case: the redelivery knows what happened.
            # So is a message that could not be taken: it is not the message's fault.
            if not is_handled or self.is_disconnected() or message.delivery < MAX_ATTEMPTS:
                raise
            return self.give_up(message, error), None
        if decision == "process":
            return "applied", instance
        return decision, None

    def take(self, connection, message):
        """Claims or receives a message: what to do with it, and its instance."""
        decision, instance = "direct", None
        if message.consumer in SEQUENCES:
            decision, instance = connection.execute(
                "SELECT decision, sequence_instance_id"
                # `bytes` are sent as bytea; `str` would be read as bytea's escape format.
                ' FROM inbox_receive(%s, %s, %s, %s, "position" => %s)',
                (message.type, message.id, message.context, message.payload, message.position),
            ).fetchone()
        if decision != "direct":
            return decision, instance
        # A plain consumer's message. One without a context has no place in a sequence, and is to
        # have its effect once all the same.
        if not self.claim(connection, message):
            return "duplicate", None
        return ("direct" if message.consumer in SEQUENCES else "process"), None

    def claim(self, connection, message):
        # The casts choose among inbox_claim(text, text) and inbox_claim(text, uuid).
        sql = "SELECT inbox_claim(%s::text, %s::text)"
        return connection.execute(sql, (message.consumer, message.id)).fetchone()[0]

    def give_up(self, message, error):
        """Records a failure as a dead letter, in a transaction of its own."""
        text = f"at delivery {message.delivery}: the handler failed: {error}"

        def work(connection):
            if message.consumer in SEQUENCES and message.context is not None:
                sql = "SELECT inbox_fail(%s, %s, inbox_sequence(%s, %s), %s, payload => %s)"
                arguments = (message.type, message.id, message.consumer, message.context)
            else:
                # A bare claim looks the same whether its message succeeded or not. Whoever can
                # claim it now knows that nobody has succeeded.
                if not self.claim(connection, message):
                    return False
                sql = "SELECT inbox_fail(%s, %s, error => %s, payload => %s)"
                arguments = (message.consumer, message.id)
            return connection.execute(sql, (*arguments, text, message.payload)).fetchone()[0]

        # False: somebody else has taken care of the message meanwhile.
        return "dead_lettered" if self.in_transaction(work) else "duplicate"

    def drain(self, instance=None):
        """Handles what is ready in that instance, or in any, one transaction a message."""
        while True:
            failed = None

            def work(connection):
                nonlocal failed
                failed = None
                row = connection.execute(
                    "SELECT message_id, attempts, coalesce(sequence_name, message_type),"
                    ' message_type, idempotence_id, context_id, "position", payload'
                    " FROM inbox_next(%s)",
                    (instance,),
                ).fetchone()
                if row is None:
                    return False
                failed = row[:2]
                self.handle(connection, Message(*row[2:], released=True))
                return True

            try:
                if not self.in_transaction(work):
                    return
            except Exception as error:
                if failed is None or self.is_disconnected():
                    raise
                self.fail_released(*failed, error)

    def fail_released(self, message_id, attempts, error):
        """Records the failure of a message that the inbox handed out: nobody else would, and it
        would come again for ever."""
        retry_after = RETRY_AFTER if attempts + 1 < MAX_ATTEMPTS else None
        self.in_transaction(
            lambda connection: connection.execute(
                "SELECT inbox_fail_message(%s, %s, %s)",
                (message_id, f"the handler failed: {error}", retry_after),
            )
        )

    def is_disconnected(self):
        return self.connection is None or self.connection.closed


def handle(connection, message):
    """The handler: what a message is about. It writes with the transaction that it is given, and
    raises an error when it cannot do its work."""
    amount, _, note = message.payload.decode().partition(" ")
    if not re.fullmatch(r"-?[0-9]+", amount):
        raise ValueError(f'"{amount}" is no amount')
    connection.execute(
        "INSERT INTO ledger"
        " (consumer, context_id, message_type, message_id, amount, note, released)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s)",
        (message.consumer, message.context, message.type, message.id, int(amount), note,
         message.released),
    )


class Broker:
    """Stands in for a broker: what is not acknowledged is delivered again, after the others."""

    def __init__(self, messages):
        self.queue = deque(messages)

    def next(self):
        return self.queue.popleft() if self.queue else None

    def give_back(self, message):
        message.delivery += 1
        self.queue.append(message)


def read(path):
    """The messages of the stream."""
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield Message(
                row["consumer"],
                row["message_type"],
                row["message_id"],
                row["context_id"] or None,
                int(row["position"]) if row["position"] else None,
                row["payload"].encode(),
            )


def main():
    broker = Broker(read(sys.argv[1]))
    consumer = Consumer(handle)
    consumer.declare()
    outcomes = Counter()
    while (message := broker.next()) is not None:
        try:
            outcome, instance = consumer.process(message)
        except Exception as error:
            print(f"{message.id} goes back to the broker: {error}", file=sys.stderr)
            outcomes["redelivered"] += 1
            broker.give_back(message)
            continue
        # Committed: this is where a message is acknowledged. What it released comes after that.
        outcomes[outcome] += 1
        if instance is not None:
            try:
                consumer.drain(instance)
            except psycopg.Error as error:
                # The message itself is safe. What is ready is left to the sweep.
                print(f"the drain of {message.id} has ended: {error}", file=sys.stderr)
    # What a process that died has left released, and what is due again. A service does so every
    # few seconds, in a thread of its own.
    consumer.drain()
    for outcome, count in outcomes.items():
        print(f"{outcome}|{count}")


if __name__ == "__main__":
    main()
