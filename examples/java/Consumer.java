import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Types;
import java.util.ArrayDeque;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ThreadLocalRandom;

/**
 * A consumer in Java with JDBC.
 *
 * <p>Run it once over the stream:
 *
 * <pre>
 * javac -d build Consumer.java
 * java -cp build:/usr/share/java/postgresql.jar Consumer ../stream.csv \
 *     'jdbc:postgresql://localhost/shop?user=inbox_example'
 * </pre>
 *
 * <p>What correct use asks for is in this class; a service would copy that, with its own pool in
 * place of {@link #connection()}, and replace the three at the end of the file: the handler, the
 * broker and the stream.
 */
public final class Consumer {
    /** A whole transaction is run again so often when another was in its way. */
    private static final int MAX_CONFLICTS = 6;

    private static final Set<String> CONFLICTS = Set.of("40001", "40P01");

    /**
     * The broker delivers a message so often, and the inbox hands it out so often, when its handler
     * fails; then it is a dead letter.
     */
    private static final int MAX_ATTEMPTS = 3;

    /**
     * How long a released message that failed stays away. Here it comes back at once, so that the
     * example ends; a service waits for seconds, and longer each time.
     */
    private static final String RETRY_AFTER = "0 seconds";

    private static final String ORDERS = """
        [{"type": "order.placed"},
         {"type": "order.paid",      "releaseCondition": {"predecessor": "order.placed"}},
         {"type": "order.packed",    "releaseCondition": {"predecessor": "order.placed"}},
         {"type": "order.shipped",   "releaseCondition": {"and": [
             {"predecessor": "order.paid"}, {"predecessor": "order.packed"}]}},
         {"type": "order.commented", "optional": true}]""";

    private static final String ACCOUNTS = """
        [{"type": "account.entry"},
         {"type": "account.closed", "final": true}]""";

    private static final Set<String> SEQUENCES = Set.of("orders", "accounts");

    /** A message, from the broker or handed out by the inbox. */
    record Message(
            String consumer, // The plain consumer, or the sequence.
            String type,
            String id, // The producer's event id, the same on every redelivery.
            String context,
            Long position,
            byte[] payload,
            int delivery,
            boolean released) {}

    /** What became of a message, told after the commit, and the instance to drain, if any. */
    record Processed(String outcome, Long instance) {}

    /** What the inbox handed out: the number of its record, and how often it failed before. */
    record Released(long record, int failures, Message message) {}

    interface Handler {
        void handle(Connection connection, Message message) throws Exception;
    }

    interface Work<T> {
        T run(Connection connection) throws Exception;
    }

    private final String url;
    private final Handler handler;
    private Connection connection;

    Consumer(String url, Handler handler) {
        this.url = url;
        this.handler = handler;
    }

    /** A connection that works: the one there is, or a new one. With a pool: borrow one. */
    private Connection connection() throws SQLException {
        if (connection == null || connection.isClosed()) {
            connection = DriverManager.getConnection(url);
            // In JDBC's default, autocommit, a claim would commit by itself and stand, whatever
            // becomes of the work.
            connection.setAutoCommit(false);
        }
        return connection;
    }

    private boolean isDisconnected() throws SQLException {
        return connection == null || connection.isClosed();
    }

    /** Runs work in a transaction, all of it again while it has to give way to another. */
    private <T> T inTransaction(Work<T> work) throws Exception {
        for (int conflicts = 0; ; conflicts++) {
            Connection connection = connection();
            try {
                T result = work.run(connection);
                // When a statement has failed and its error was swallowed this throws, unless the
                // driver was told otherwise (raiseExceptionOnSilentRollback).
                connection.commit();
                return result;
            } catch (Exception error) {
                rollBack(connection, error);
                if (!CONFLICTS.contains(sqlState(error)) || conflicts == MAX_CONFLICTS) {
                    throw error;
                }
                double jitter = 1 + ThreadLocalRandom.current().nextDouble();
                Thread.sleep((long) (10 * (1L << conflicts) * jitter));
            }
        }
    }

    /** Rolls back, or closes a connection that cannot even do that. */
    private static void rollBack(Connection connection, Exception cause) throws SQLException {
        try {
            connection.rollback();
        } catch (SQLException lost) {
            cause.addSuppressed(lost);
            connection.close();
        }
    }

    /** The SQLSTATE of the database's error that is behind an exception, or an empty text. */
    private static String sqlState(Throwable error) {
        for (; error != null; error = error.getCause()) {
            if (error instanceof SQLException report && report.getSQLState() != null) {
                return report.getSQLState();
            }
        }
        return "";
    }

    /** Declares what this consumer needs. Nothing is written when nothing has changed. */
    void declare() throws Exception {
        inTransaction(connection -> {
            declare(connection, "orders", "30 days", ORDERS, "conditions");
            declare(connection, "accounts", "90 days", ACCOUNTS, "position");
            return null;
        });
    }

    private static void declare(
            Connection connection, String name, String retention, String messages, String ordering)
            throws SQLException {
        // setString sends text; what is to be an interval or jsonb needs a cast.
        String sql = "SELECT inbox_declare_sequence(?, ?::interval, ?::jsonb, ordering => ?)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setString(1, name);
            statement.setString(2, retention);
            statement.setString(3, messages);
            statement.setString(4, ordering);
            statement.execute();
        }
    }

    /** Takes care of a message from the broker. An exception means: do not acknowledge. */
    Processed process(Message message) throws Exception {
        boolean[] isHandled = {false};
        try {
            return inTransaction(connection -> {
                isHandled[0] = false;
                Processed taken = take(connection, message);
                if (taken.outcome().equals("applied") || taken.outcome().equals("direct")) {
                    isHandled[0] = true;
                    handler.handle(connection, message);
                }
                return taken;
            });
        } catch (Exception error) {
            // The broker's turn, until the handler has had its tries. A lost connection, at the
            // commit perhaps, is the broker's turn in any case: the redelivery knows what happened.
            // So is a message that could not be taken: it is not the message's fault.
            if (!isHandled[0] || isDisconnected() || message.delivery() < MAX_ATTEMPTS) {
                throw error;
            }
            return new Processed(giveUp(message, error), null);
        }
    }

    /** Claims or receives a message: what comes of it, and the instance to drain. */
    private Processed take(Connection connection, Message message) throws SQLException {
        boolean isSequenced = SEQUENCES.contains(message.consumer());
        if (isSequenced) {
            String sql = "SELECT decision, sequence_instance_id"
                    + " FROM inbox_receive(?, ?, ?, ?, \"position\" => ?)";
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                statement.setString(1, message.type());
                statement.setString(2, message.id());
                statement.setString(3, message.context());
                statement.setBytes(4, message.payload());
                // A null needs its type: setObject(5, null) would leave it to the server to guess.
                statement.setObject(5, message.position(), Types.BIGINT);
                try (ResultSet row = statement.executeQuery()) {
                    row.next();
                    String decision = row.getString(1);
                    if (decision.equals("process")) {
                        return new Processed("applied", row.getLong(2));
                    }
                    if (!decision.equals("direct")) {
                        return new Processed(decision, null);
                    }
                }
            }
        }
        // A plain consumer's message. One without a context has no place in a sequence, and is to
        // have its effect once all the same.
        if (!claim(connection, message)) {
            return new Processed("duplicate", null);
        }
        return new Processed(isSequenced ? "direct" : "applied", null);
    }

    private static boolean claim(Connection connection, Message message) throws SQLException {
        // The casts choose among inbox_claim(text, text) and inbox_claim(text, uuid).
        String sql = "SELECT inbox_claim(?::text, ?::text)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setString(1, message.consumer());
            statement.setString(2, message.id());
            return isTrue(statement);
        }
    }

    private static boolean isTrue(PreparedStatement statement) throws SQLException {
        try (ResultSet row = statement.executeQuery()) {
            return row.next() && row.getBoolean(1);
        }
    }

    /** Records a failure as a dead letter, in a transaction of its own. */
    private String giveUp(Message message, Exception error) throws Exception {
        String text =
                "at delivery " + message.delivery() + ": the handler failed: " + error.getMessage();
        boolean isRecorded = inTransaction(connection -> {
            boolean isSequenced =
                    SEQUENCES.contains(message.consumer()) && message.context() != null;
            // A bare claim looks the same whether its message succeeded or not. Whoever can claim
            // it now knows that nobody has succeeded.
            if (!isSequenced && !claim(connection, message)) {
                return false;
            }
            String sql = isSequenced
                    ? "SELECT inbox_fail(?, ?, inbox_sequence(?, ?), ?, payload => ?)"
                    : "SELECT inbox_fail(?, ?, error => ?, payload => ?)";
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                int next = 1;
                statement.setString(next++, isSequenced ? message.type() : message.consumer());
                statement.setString(next++, message.id());
                if (isSequenced) {
                    statement.setString(next++, message.consumer());
                    statement.setString(next++, message.context());
                }
                statement.setString(next++, text);
                statement.setBytes(next, message.payload());
                return isTrue(statement);
            }
        });
        // false: somebody else has taken care of the message meanwhile.
        return isRecorded ? "dead_lettered" : "duplicate";
    }

    /** Handles what is ready in an instance, or in any for null, one transaction a message. */
    void drain(Long instance) throws Exception {
        for (; ; ) {
            Released[] handed = {null};
            try {
                inTransaction(connection -> {
                    handed[0] = next(connection, instance);
                    if (handed[0] != null) {
                        handler.handle(connection, handed[0].message());
                    }
                    return null;
                });
            } catch (Exception error) {
                if (handed[0] == null || isDisconnected()) {
                    throw error;
                }
                failReleased(handed[0], error);
                continue;
            }
            if (handed[0] == null) {
                return;
            }
        }
    }

    private static Released next(Connection connection, Long instance) throws SQLException {
        String sql = "SELECT message_id, attempts, coalesce(sequence_name, message_type),"
                + " message_type, idempotence_id, context_id, \"position\", payload"
                + " FROM inbox_next(?)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setObject(1, instance, Types.BIGINT);
            try (ResultSet row = statement.executeQuery()) {
                if (!row.next()) {
                    return null;
                }
                Message message = new Message(
                        row.getString(3),
                        row.getString(4),
                        row.getString(5),
                        row.getString(6),
                        row.getObject(7, Long.class),
                        row.getBytes(8),
                        1,
                        true);
                return new Released(row.getLong(1), row.getInt(2), message);
            }
        }
    }

    /**
     * Records the failure of a message that the inbox handed out: nobody else would, and it would
     * come again for ever.
     */
    private void failReleased(Released released, Exception error) throws Exception {
        String retryAfter = released.failures() + 1 < MAX_ATTEMPTS ? RETRY_AFTER : null;
        inTransaction(connection -> {
            String sql = "SELECT inbox_fail_message(?, ?, ?::interval)";
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                statement.setLong(1, released.record());
                statement.setString(2, "the handler failed: " + error.getMessage());
                statement.setString(3, retryAfter);
                return isTrue(statement);
            }
        });
    }

    /**
     * The handler: what a message is about. It writes with the connection that it is given, and
     * throws when it cannot do its work.
     */
    static void handle(Connection connection, Message message) throws Exception {
        String[] parts = new String(message.payload(), StandardCharsets.UTF_8).split(" ", 2);
        if (!parts[0].matches("-?[0-9]+")) {
            throw new IllegalArgumentException("\"" + parts[0] + "\" is no amount");
        }
        String sql = "INSERT INTO ledger"
                + " (consumer, context_id, message_type, message_id, amount, note, released)"
                + " VALUES (?, ?, ?, ?, ?, ?, ?)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setString(1, message.consumer());
            statement.setString(2, message.context());
            statement.setString(3, message.type());
            statement.setString(4, message.id());
            statement.setInt(5, Integer.parseInt(parts[0]));
            statement.setString(6, parts.length > 1 ? parts[1] : "");
            statement.setBoolean(7, message.released());
            statement.executeUpdate();
        }
    }

    /** Stands in for a broker: what is not acknowledged is delivered again, after the others. */
    static final class Broker {
        private final ArrayDeque<Message> queue = new ArrayDeque<>();

        void deliver(Message message) {
            queue.add(message);
        }

        Message next() {
            return queue.poll();
        }

        void giveBack(Message it) {
            queue.add(new Message(it.consumer(), it.type(), it.id(), it.context(), it.position(),
                    it.payload(), it.delivery() + 1, false));
        }
    }

    /** Delivers the messages of the stream, which quotes nothing. */
    static Broker read(Path path) throws IOException {
        Broker broker = new Broker();
        Files.readAllLines(path).stream().skip(1).forEach(line -> {
            String[] field = line.split(",", -1);
            broker.deliver(new Message(
                    field[0],
                    field[1],
                    field[2],
                    field[3].isEmpty() ? null : field[3],
                    field[4].isEmpty() ? null : Long.valueOf(field[4]),
                    field[5].getBytes(StandardCharsets.UTF_8),
                    1,
                    false));
        });
        return broker;
    }

    public static void main(String[] arguments) throws Exception {
        Broker broker = read(Path.of(arguments[0]));
        Consumer consumer = new Consumer(arguments[1], Consumer::handle);
        consumer.declare();
        Map<String, Integer> outcomes = new TreeMap<>();
        for (Message message; (message = broker.next()) != null; ) {
            Processed processed;
            try {
                processed = consumer.process(message);
            } catch (Exception error) {
                System.err.println(
                        message.id() + " goes back to the broker: " + error.getMessage());
                outcomes.merge("redelivered", 1, Integer::sum);
                broker.giveBack(message);
                continue;
            }
            // Committed: this is where a message is acknowledged. What it released comes after.
            outcomes.merge(processed.outcome(), 1, Integer::sum);
            if (processed.instance() != null) {
                try {
                    consumer.drain(processed.instance());
                } catch (SQLException error) {
                    // The message itself is safe. What is ready is left to the sweep.
                    System.err.println(
                            "the drain of " + message.id() + " has ended: " + error.getMessage());
                }
            }
        }
        // What a process that died has left released, and what is due again. A service does so
        // every few seconds, in a thread of its own.
        consumer.drain(null);
        outcomes.forEach((outcome, count) -> System.out.println(outcome + "|" + count));
    }
}
