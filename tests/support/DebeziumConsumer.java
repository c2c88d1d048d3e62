import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.serde.DebeziumSerdes;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;

/** Reads envelopes, one in each line, by Debezium's own deserializer; prints what it found. */
public class DebeziumConsumer {
    @SuppressWarnings("rawtypes")
    static Deserializer<Map> reader(Map<String, Object> settings) {
        Serde<Map> serde = DebeziumSerdes.payloadJson(Map.class);
        serde.configure(settings, false);
        return serde.deserializer();
    }

    @SuppressWarnings("rawtypes")
    public static void main(String[] arguments) throws Exception {
        Deserializer<Map> whole = reader(Map.of());
        Deserializer<Map> after = reader(Map.of("from.field", "after"));
        Deserializer<Map> before = reader(Map.of("from.field", "before"));
        ObjectMapper json = new ObjectMapper();
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] data = line.getBytes(StandardCharsets.UTF_8);
            Map source = (Map) whole.deserialize("topic", data).get("source");
            Object op = whole.deserialize("topic", data).get("op");
            Object[] found = {
                op,
                source.get("schema"),
                source.get("table"),
                after.deserialize("topic", data),
                before.deserialize("topic", data),
            };
            System.out.println(json.writeValueAsString(Arrays.asList(found)));
        }
    }
}
