import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;

import java.io.FileInputStream;
import java.io.FileWriter;
import java.io.PrintWriter;
import java.util.Properties;

/**
 * Runs Debezium's connector with the given properties and appends each record to a
 * file: its topic, key and value, with tabs between them.  Ends with SIGTERM.
 */
public class Events {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (FileInputStream in = new FileInputStream(args[0])) {
            properties.load(in);
        }
        PrintWriter out = new PrintWriter(new FileWriter(args[1], true), true);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(properties)
            .notifying(record -> out.println(
                record.destination() + "\t" + record.key() + "\t" + record.value()))
            .using((success, message, error) -> {
                if (!success) {
                    System.err.println("ended: " + message);
                    if (error != null) {
                        error.printStackTrace();
                    }
                }
            })
            .build();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                engine.close();
            } catch (Exception e) {
                System.err.println("could not be closed: " + e);
            }
        }));
        engine.run();
    }
}
