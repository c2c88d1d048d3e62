// Questions of pgjdbc to a server, printed as JSON with their answers or the errors' SQLSTATEs.

import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.TimeUnit;

public final class JdbcClient {
    private interface Question {
        Object answer(Connection connection) throws Exception;
    }

    private static final String LONG =
            "SELECT count(*) FROM orders a, orders b, orders c, orders d WHERE a.id + b.id < c.id - d.id";
    // The driver reads no money.
    private static final String KINDS =
            "(SELECT id, by, re, tz, ip, net, mac, bits, vb, ra, js, ia, na, nu, nm, pt, od, ts, da, ti FROM sales.kinds) k";
    // Statistics and OIDs differ between servers.
    private static final Set<String> OWN = Set.of("CARDINALITY", "PAGES", "GRANTEE", "SPECIFIC_NAME");

    private final StringBuilder json = new StringBuilder("{");
    private final String url;
    private final Properties properties = new Properties();

    private JdbcClient(String host, String port, String database, String user, String password) {
        url = "jdbc:postgresql://" + host + ":" + port + "/" + database;
        properties.setProperty("user", user);
        properties.setProperty("password", password);
    }

    public static void main(String[] arguments) throws Exception {
        java.util.TimeZone.setDefault(java.util.TimeZone.getTimeZone("Europe/Berlin"));
        JdbcClient client =
                new JdbcClient(
                        System.getenv("PGHOST"),
                        System.getenv("PGPORT"),
                        System.getenv("PGDATABASE"),
                        System.getenv("PGUSER"),
                        System.getenv("PGPASSWORD"));
        client.metadata();
        client.values();
        client.statements();
        client.failures();
        System.out.println(client.json.append("}"));
    }

    private void metadata() throws Exception {
        String[] kinds = {"TABLE", "VIEW"};
        // The SQL server has the schema headrace_guard besides.
        ask("tables", c -> rows(c.getMetaData().getTables(null, "public", null, kinds)));
        ask("tables of a schema by pattern", c -> rows(c.getMetaData().getTables(null, "sal_s", "%_", kinds)));
        ask("columns", c -> rows(c.getMetaData().getColumns(null, "public", "%", "%")));
        ask("columns of another schema", c -> rows(c.getMetaData().getColumns("lake", "sales", "%", "%")));
        for (String table : List.of("items", "Mixed Case", "events", "open_orders")) {
            ask("primary key of " + table, c -> rows(c.getMetaData().getPrimaryKeys(null, "public", table)));
            ask("indexes of " + table, c -> rows(c.getMetaData().getIndexInfo(null, "public", table, false, true)));
            ask("best row of " + table, c -> rows(c.getMetaData().getBestRowIdentifier(null, "public", table, 2, true)));
        }
        ask("foreign keys", c -> rows(c.getMetaData().getImportedKeys(null, "public", "orders")));
        ask("references", c -> rows(c.getMetaData().getCrossReference(null, "public", "customers", null, null, "orders")));
        ask("own schemas", c -> rows(c.getMetaData().getSchemas(null, "sales")));
        ask("catalogs", c -> rows(c.getMetaData().getCatalogs()));
        ask("table types", c -> rows(c.getMetaData().getTableTypes()));
        ask("types", c -> rows(c.getMetaData().getTypeInfo()).size() > 50);
        ask("user types", c -> rows(c.getMetaData().getUDTs(null, "public", "%", null)));
        ask("functions of public", c -> rows(c.getMetaData().getFunctions(null, "public", "%")));
        ask("versions", c -> version(c.getMetaData()));
    }

    private static List<Object> version(DatabaseMetaData found) throws SQLException {
        return List.of(
                found.getDatabaseProductName(),
                found.getDatabaseMajorVersion(),
                found.getIdentifierQuoteString(),
                found.getMaxColumnNameLength(),
                found.getDefaultTransactionIsolation(),
                found.getSQLKeywords().length() > 100);
    }

    private void values() throws Exception {
        for (String table :
                List.of("customers", "orders", "events", "sales.targets", KINDS, "\"Mixed Case\"", "open_orders", "sales.by_customer")) {
            ask("values of " + table, c -> query(c, "SELECT * FROM " + table + " ORDER BY 1, 2 LIMIT 40"));
            // From the fifth execution on, the driver asks for binary values.
            ask("values of " + table + " after eight executions", c -> repeated(c, "SELECT * FROM " + table + " ORDER BY 1, 2 LIMIT ?"));
        }
        ask("types of the time package", this::times);
        ask("types of java.sql in a calendar", this::calendars);
    }

    private Object repeated(Connection connection, String text) throws SQLException {
        List<Object> found = new ArrayList<>();
        try (PreparedStatement statement = connection.prepareStatement(text)) {
            for (int run = 0; run < 8; run++) {
                statement.setInt(1, 30 + run);
                try (ResultSet result = statement.executeQuery()) {
                    found.add(rows(result));
                }
            }
        }
        return found;
    }

    private Object times(Connection connection) throws SQLException {
        List<Object> found = new ArrayList<>();
        String text =
                "SELECT o.id, placed, shipped, slot, birthday FROM orders o JOIN customers c ON c.id = customer_id"
                        + " WHERE placed >= ? AND shipped < ? AND slot <> ? AND birthday > ? ORDER BY o.id LIMIT 20";
        try (PreparedStatement statement = connection.prepareStatement(text)) {
            for (int run = 0; run < 7; run++) {
                statement.setObject(1, OffsetDateTime.of(2024, 5, 1, 3, run, 0, 0, ZoneOffset.ofHours(2)));
                statement.setObject(2, LocalDateTime.of(2024, 5, 20, 8, 0));
                statement.setObject(3, LocalTime.of(6, 9));
                statement.setObject(4, LocalDate.of(1961, 1, 1));
                try (ResultSet result = statement.executeQuery()) {
                    while (result.next()) {
                        found.add(
                                List.of(
                                        result.getLong(1),
                                        result.getObject(2, OffsetDateTime.class),
                                        result.getObject(3, LocalDateTime.class),
                                        result.getObject(4, LocalTime.class),
                                        result.getObject(5, LocalDate.class)));
                    }
                }
            }
        }
        return found;
    }

    private Object calendars(Connection connection) throws SQLException {
        List<Object> found = new ArrayList<>();
        String text = "SELECT placed, shipped, slot FROM orders WHERE placed > ? AND shipped <= ? ORDER BY id LIMIT 5";
        try (PreparedStatement statement = connection.prepareStatement(text)) {
            for (int run = 0; run < 7; run++) {
                statement.setTimestamp(1, Timestamp.valueOf("2024-05-01 12:00:00"));
                statement.setTimestamp(2, Timestamp.valueOf("2024-05-15 12:00:00.5"));
                try (ResultSet result = statement.executeQuery()) {
                    while (result.next()) {
                        found.add(result.getTimestamp(1) + " " + result.getTimestamp(2) + " " + result.getTime(3) + " " + result.getDate(2));
                    }
                }
            }
        }
        return found;
    }

    private void statements() throws Exception {
        ask("rows in parts of 50", c -> fetched(c, 50));
        ask("at most 33 rows", c -> limited(c, 33));
        ask("parameters of many types", this::parameters);
        ask("parameters and columns before the execution", this::described);
        ask("a statement between two others in a transaction", this::transaction);
        ask("savepoints", this::savepoints);
        ask("two results at once", this::interleaved);
        ask("read only", c -> readOnly(c));
        ask("a schema as search path", c -> withSchema(c));
        ask("validity", c -> List.of(c.isValid(5), c.getCatalog(), c.getSchema()));
        ask("a copy", c -> copied(c));
        ask("the simple protocol", this::simple);
        ask("COPY of a view", c -> query(c, "SELECT count(*), min(name) FROM open_orders"));
        ask("an escaped call", c -> query(c, "SELECT {fn length({fn concat(note, 'x')})}, {d '2024-01-01'} FROM orders WHERE id = 4"));
    }

    private Object fetched(Connection connection, int size) throws SQLException {
        connection.setAutoCommit(false);
        List<Object> found = new ArrayList<>();
        try (PreparedStatement statement =
                connection.prepareStatement("SELECT id, total, note FROM orders WHERE id > ? ORDER BY id")) {
            statement.setFetchSize(size);
            for (int run = 0; run < 7; run++) {
                statement.setLong(1, 1200 + run);
                long sum = 0;
                int count = 0;
                try (ResultSet result = statement.executeQuery()) {
                    while (result.next()) {
                        sum += result.getLong(1);
                        count++;
                    }
                }
                found.add(List.of(count, sum));
            }
        }
        connection.commit();
        return found;
    }

    private Object limited(Connection connection, int rows) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.setMaxRows(rows);
            return rows(statement.executeQuery("SELECT id FROM orders ORDER BY id DESC")).size();
        }
    }

    private Object parameters(Connection connection) throws SQLException {
        String text =
                "SELECT id, name FROM customers WHERE id = ANY (?) AND active = ? AND credit < ? AND uid <> ?"
                        + " AND name LIKE ? AND profile ->> 'level' = ? ORDER BY id";
        List<Object> found = new ArrayList<>();
        try (PreparedStatement statement = connection.prepareStatement(text)) {
            for (int run = 0; run < 7; run++) {
                statement.setArray(1, connection.createArrayOf("int4", new Integer[] {1, 6, 11, 16, 31 + run}));
                statement.setBoolean(2, true);
                statement.setBigDecimal(3, new java.math.BigDecimal("20000.505"));
                statement.setObject(4, java.util.UUID.fromString("00000000-0000-0000-0000-000000000000"));
                statement.setString(5, "Customer %");
                statement.setString(6, "1");
                found.add(rows(statement.executeQuery()));
            }
        }
        return found;
    }

    private Object described(Connection connection) throws SQLException {
        try (PreparedStatement statement =
                connection.prepareStatement("SELECT id, total * ?::numeric, note || 'x' FROM orders WHERE placed > ? AND id = ?")) {
            ResultSetMetaData columns = statement.getMetaData();
            List<Object> found = new ArrayList<>();
            for (int number = 1; number <= columns.getColumnCount(); number++) {
                found.add(columns.getColumnName(number) + " " + columns.getColumnTypeName(number) + " " + columns.getTableName(number) + " " + columns.isNullable(number) + " " + columns.getPrecision(number));
            }
            for (int number = 1; number <= 3; number++) {
                found.add(statement.getParameterMetaData().getParameterTypeName(number));
            }
            return found;
        }
    }

    private Object transaction(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        connection.setTransactionIsolation(Connection.TRANSACTION_REPEATABLE_READ);
        List<Object> found = new ArrayList<>();
        found.add(query(connection, "SELECT count(*) FROM orders"));
        found.add(query(connection, "SELECT current_setting('transaction_isolation')"));
        found.add(query(connection, "SELECT sum(quantity) FROM items"));
        connection.rollback();
        found.add(query(connection, "SELECT max(id) FROM orders"));
        connection.commit();
        return found;
    }

    private Object savepoints(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        List<Object> found = new ArrayList<>();
        found.add(query(connection, "SELECT count(*) FROM orders"));
        java.sql.Savepoint point = connection.setSavepoint("before");
        try {
            query(connection, "SELECT id / (id - 4) FROM orders");
        } catch (SQLException error) {
            found.add(error.getSQLState());
        }
        connection.rollback(point);
        found.add(query(connection, "SELECT count(*) FROM items"));
        connection.commit();
        return found;
    }

    private Object interleaved(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        List<Object> found = new ArrayList<>();
        try (Statement one = connection.createStatement(); Statement other = connection.createStatement()) {
            one.setFetchSize(3);
            other.setFetchSize(4);
            ResultSet orders = one.executeQuery("SELECT id FROM orders ORDER BY id LIMIT 20");
            ResultSet items = other.executeQuery("SELECT order_id FROM items ORDER BY order_id DESC, line LIMIT 20");
            while (orders.next() && items.next()) {
                found.add(List.of(orders.getLong(1), items.getLong(1)));
            }
        }
        connection.commit();
        return found;
    }

    private Object readOnly(Connection connection) throws SQLException {
        connection.setReadOnly(true);
        connection.setAutoCommit(false);
        Object found = query(connection, "SELECT count(*), current_setting('transaction_read_only') FROM orders GROUP BY 2");
        connection.commit();
        return found;
    }

    private Object withSchema(Connection connection) throws SQLException {
        connection.setSchema("sales");
        return query(connection, "SELECT count(*), sum(amount) FROM targets");
    }

    private Object copied(Connection connection) throws Exception {
        java.io.StringWriter found = new java.io.StringWriter();
        long rows =
                new org.postgresql.copy.CopyManager(connection.unwrap(org.postgresql.core.BaseConnection.class))
                        .copyOut("COPY (SELECT id, note, placed FROM orders WHERE id < 30 ORDER BY id) TO STDOUT (FORMAT csv, HEADER)", found);
        return List.of(rows, found.toString());
    }

    private Object simple(Connection ignored) throws SQLException {
        Properties own = new Properties();
        own.putAll(properties);
        own.setProperty("preferQueryMode", "simple");
        try (Connection connection = DriverManager.getConnection(url, own);
                PreparedStatement statement = connection.prepareStatement("SELECT id, note FROM orders WHERE id < ? AND note <> ? ORDER BY id")) {
            statement.setInt(1, 9);
            statement.setString(2, "it's");
            return rows(statement.executeQuery());
        }
    }

    private void failures() throws Exception {
        ask("an unknown column", c -> query(c, "SELECT nothing FROM orders"));
        ask("an unknown table", c -> query(c, "SELECT 1 FROM nothing"));
        ask("a syntax error", c -> query(c, "SELEC 1"));
        ask("a division by zero", c -> query(c, "SELECT total / (id - 3) FROM orders"));
        ask("a query timeout", c -> timedOut(c));
        ask("a cancelled query", this::cancelled);
    }

    private Object timedOut(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.setQueryTimeout(1);
            return rows(statement.executeQuery(LONG));
        }
    }

    private Object cancelled(Connection connection) throws Exception {
        try (Statement statement = connection.createStatement()) {
            Thread other =
                    new Thread(
                            () -> {
                                try {
                                    TimeUnit.MILLISECONDS.sleep(400);
                                    statement.cancel();
                                } catch (InterruptedException | SQLException error) {
                                    throw new IllegalStateException(error);
                                }
                            });
            other.start();
            try {
                return rows(statement.executeQuery(LONG));
            } catch (SQLException error) {
                other.join();
                return List.of(error.getSQLState(), query(connection, "SELECT count(*) FROM orders"));
            }
        }
    }

    private void ask(String question, Question work) throws Exception {
        Object found;
        try (Connection connection = DriverManager.getConnection(url, properties)) {
            try {
                found = work.answer(connection);
            } catch (SQLException error) {
                found = "failed: " + error.getSQLState() + " " + error.getMessage().replaceAll("It ran for .*", "");
            }
        }
        json.append(json.length() > 1 ? ",\n" : "").append(quoted(question)).append(": ").append(text(found));
    }

    private static List<Object> query(Connection connection, String text) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            return rows(statement.executeQuery(text));
        }
    }

    private static List<Object> rows(ResultSet result) throws SQLException {
        ResultSetMetaData columns = result.getMetaData();
        List<Object> found = new ArrayList<>();
        while (result.next()) {
            List<Object> row = new ArrayList<>();
            for (int number = 1; number <= columns.getColumnCount(); number++) {
                String name = columns.getColumnName(number);
                Object value = result.getObject(number);
                if (!OWN.contains(name)) {
                    String text = value instanceof byte[] ? "" : shown(result.getString(number));
                    row.add(name + " " + columns.getColumnTypeName(number) + " " + shown(value) + " " + text);
                }
            }
            found.add(row);
        }
        return found;
    }

    private static String shown(Object value) throws SQLException {
        if (value instanceof byte[] bytes) {
            return java.util.Arrays.toString(bytes);
        }
        if (value instanceof java.sql.Array array) {
            return array.getBaseTypeName() + array;
        }
        return value == null ? "null" : value.getClass().getSimpleName() + ":" + value;
    }

    private static String text(Object found) {
        if (found instanceof List<?> list) {
            StringBuilder all = new StringBuilder("[");
            for (Object each : list) {
                all.append(all.length() > 1 ? "," : "").append(text(each));
            }
            return all.append("]").toString();
        }
        return quoted(String.valueOf(found));
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            quoted.append(each < 32 || each == '"' || each == '\\' || each > 126 ? String.format("\\u%04x", (int) each) : each);
        }
        return quoted.append("\"").toString();
    }
}
