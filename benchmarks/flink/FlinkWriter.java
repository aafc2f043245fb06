import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedInputStream;
import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.InputStreamReader;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Timestamp;
import java.util.Map;
import javax.sql.XADataSource;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.jdbc.JdbcExactlyOnceOptions;
import org.apache.flink.connector.jdbc.JdbcExecutionOptions;
import org.apache.flink.connector.jdbc.core.datastream.sink.JdbcSink;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.function.SerializableSupplier;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Flink's exactly-once sinks in an embedded cluster that stays: one JSON command a line, an answer each (workers.py).
 *
 * <p>Everything is in Flink's favour: rows lie in memory before the clock starts, its own generator emits their
 * numbers, source and sink are one chain, and there is one checkpoint, the last. The clock runs from the first row to
 * the end of the job, which follows the commit.
 */
public final class FlinkWriter {
  private static final String INSERT = "INSERT INTO orders (id, code, score, at, note, flag, quantity, amount)"
      + " VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
  private static byte[][] keys;
  private static byte[][] values;
  private static Row[] rows;
  private static volatile long first;

  private record Row(long id, String code, double score, Timestamp at, String note, byte flag, Integer quantity,
      BigDecimal amount) {}

  public static void main(String[] arguments) throws Exception {
    ObjectMapper mapper = new ObjectMapper();
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      JsonNode request = mapper.readTree(line);
      double seconds = switch (request.get("command").asText()) {
        case "load_records" -> loadRecords(Path.of(request.get("path").asText()), request.get("count").asInt());
        case "load_rows" -> loadRows(Path.of(request.get("path").asText()), request.get("count").asInt());
        case "kafka" -> run(kafka(request), values.length);
        case "jdbc" -> run(jdbc(request), rows.length);
        default -> throw new IllegalArgumentException(line);
      };
      System.out.println("=> " + mapper.writeValueAsString(Map.of("seconds", seconds)));
    }
  }

  /** Key and value of each record, either behind its length in four bytes. */
  private static double loadRecords(Path path, int count) throws Exception {
    keys = new byte[count][];
    values = new byte[count][];
    try (var input = new DataInputStream(new BufferedInputStream(Files.newInputStream(path), 1 << 20))) {
      for (int i = 0; i < count; i++) {
        keys[i] = input.readNBytes(input.readInt());
        values[i] = input.readNBytes(input.readInt());
      }
    }
    return 0;
  }

  /** Lines of eight columns between tabs: the score in units of 2^-20, the time in microseconds, "-" for null. */
  private static double loadRows(Path path, int count) throws Exception {
    rows = new Row[count];
    try (BufferedReader lines = Files.newBufferedReader(path)) {
      for (int i = 0; i < count; i++) {
        String[] cells = lines.readLine().split("\t");
        long micros = Long.parseLong(cells[3]);
        Timestamp at = new Timestamp(Math.floorDiv(micros, 1000L));
        at.setNanos((int) Math.floorMod(micros, 1_000_000L) * 1000);
        Integer quantity = cells[6].equals("-") ? null : Integer.valueOf(cells[6]);
        rows[i] = new Row(Long.parseLong(cells[0]), cells[1], Long.parseLong(cells[2]) / 1048576.0, at, cells[4],
            Byte.parseByte(cells[5]), quantity, new BigDecimal(cells[7]));
      }
    }
    return 0;
  }

  private static double run(Sink<Long> sink, long count) throws Exception {
    StreamExecutionEnvironment cluster = StreamExecutionEnvironment.createLocalEnvironment(2, new Configuration());
    cluster.enableCheckpointing(600_000);
    cluster.getConfig().enableObjectReuse();
    first = 0;
    var source = new DataGeneratorSource<Long>(FlinkWriter::emit, count, Types.LONG);
    cluster.fromSource(source, WatermarkStrategy.noWatermarks(), "rows").sinkTo(sink);
    cluster.execute();
    return (System.nanoTime() - first) / 1e9;
  }

  private static Long emit(Long index) {
    if (first == 0) {
      first = System.nanoTime();
    }
    return index;
  }

  private static Sink<Long> kafka(JsonNode request) {
    String topic = request.get("topic").asText();
    KafkaRecordSerializationSchema<Long> records = (index, context, timestamp) ->
        new ProducerRecord<>(topic, keys[index.intValue()], values[index.intValue()]);
    var sink = KafkaSink.<Long>builder()
        .setBootstrapServers(request.get("bootstrap").asText())
        .setRecordSerializer(records)
        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .setTransactionalIdPrefix(topic)
        .setProperty("transaction.timeout.ms", "600000");
    request.get("settings").properties().forEach(each -> sink.setProperty(each.getKey(), each.getValue().asText()));
    return sink.build();
  }

  private static Sink<Long> jdbc(JsonNode request) {
    String url = request.get("url").asText();
    String user = request.get("user").asText();
    String password = request.get("password").asText();
    SerializableSupplier<XADataSource> server = request.get("driver").asText().startsWith("com.mysql")
        ? () -> connectorJ(url, user, password) : () -> mariaDb(url, user, password);
    return JdbcSink.<Long>builder()
        .withQueryStatement(INSERT, (statement, index) -> {
          Row row = rows[index.intValue()];
          statement.setLong(1, row.id());
          statement.setString(2, row.code());
          statement.setDouble(3, row.score());
          statement.setTimestamp(4, row.at());
          statement.setString(5, row.note());
          statement.setByte(6, row.flag());
          statement.setObject(7, row.quantity(), java.sql.Types.INTEGER);
          statement.setBigDecimal(8, row.amount());
        })
        .withExecutionOptions(JdbcExecutionOptions.builder()
            .withBatchSize(request.get("batch").asInt()).withBatchIntervalMs(0).withMaxRetries(0).build())
        .buildExactlyOnce(JdbcExactlyOnceOptions.builder().withTransactionPerConnection(true).build(), server);
  }

  private static XADataSource connectorJ(String url, String user, String password) {
    var source = new com.mysql.cj.jdbc.MysqlXADataSource();
    source.setUrl(url);
    source.setUser(user);
    source.setPassword(password);
    return source;
  }

  private static XADataSource mariaDb(String url, String user, String password) {
    try {
      var source = new org.mariadb.jdbc.MariaDbDataSource(url);
      source.setUser(user);
      source.setPassword(password);
      return source;
    } catch (java.sql.SQLException error) {
      throw new IllegalStateException(error);
    }
  }
}
