import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * A stream from topic to topic, exactly once, in an embedded cluster: "start" and "stop" as JSON lines (workers.py).
 *
 * <p>Records pass as they are, so it does a little less than the job it is compared with, which parses them.
 */
public final class FlinkStream {
  public static void main(String[] arguments) throws Exception {
    ObjectMapper mapper = new ObjectMapper();
    JobClient running = null;
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      JsonNode request = mapper.readTree(line);
      switch (request.get("command").asText()) {
        case "start" -> running = start(request);
        case "stop" -> running.cancel().get();
        default -> throw new IllegalArgumentException(line);
      }
      System.out.println("=> " + mapper.writeValueAsString(Map.of()));
    }
  }

  private static JobClient start(JsonNode request) throws Exception {
    String bootstrap = request.get("bootstrap").asText();
    String to = request.get("to").asText();
    StreamExecutionEnvironment cluster = StreamExecutionEnvironment.createLocalEnvironment(2, new Configuration());
    cluster.enableCheckpointing(request.get("interval_ms").asLong());
    cluster.getConfig().enableObjectReuse();
    KafkaSource<String> source = KafkaSource.<String>builder()
        .setBootstrapServers(bootstrap)
        .setTopics(request.get("from").asText())
        .setGroupId(to)
        .setStartingOffsets(OffsetsInitializer.earliest())
        .setValueOnlyDeserializer(new SimpleStringSchema())
        .build();
    KafkaSink<String> sink = KafkaSink.<String>builder()
        .setBootstrapServers(bootstrap)
        .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
            .setTopic(to).setValueSerializationSchema(new SimpleStringSchema()).build())
        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .setTransactionalIdPrefix(to)
        .setProperty("transaction.timeout.ms", "600000")
        .build();
    cluster.fromSource(source, WatermarkStrategy.noWatermarks(), "records").sinkTo(sink);
    return cluster.executeAsync();
  }
}
