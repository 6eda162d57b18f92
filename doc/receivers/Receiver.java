import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.standardwebhooks.Webhook;
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.net.http.HttpHeaders;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Base64;
import java.util.HashSet;
import java.util.Set;

public class Receiver {
    static final Set<String> done = new HashSet<>();

    // The work. When it throws, the event comes again.
    static void handle(String id, String key, JsonObject event) throws Exception {
        String what = event.has("data_base64")
            ? Base64.getDecoder().decode(event.get("data_base64").getAsString()).length + " bytes"
            : event.get("data").toString();
        String line = String.join("\t", id, event.get("type").getAsString(), key, what) + "\n";
        Files.writeString(Path.of("events.txt"), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    static int receive(Webhook webhook, HttpHeaders headers, String body) {
        try {
            webhook.verify(body, headers);
        } catch (Exception e) {
            return 401;
        }
        String id = headers.firstValue("webhook-id").get();
        String key = URLDecoder.decode(headers.firstValue("outbox-key").orElse(""), StandardCharsets.UTF_8);
        synchronized (done) {
            try {
                if (!done.contains(id)) handle(id, key, JsonParser.parseString(body).getAsJsonObject());
            } catch (Exception e) {
                e.printStackTrace();
                return 500;
            }
            done.add(id); // after the work
        }
        return 204;
    }

    public static void main(String[] args) throws Exception {
        Webhook webhook = new Webhook(System.getenv("WEBHOOK_SECRET"));
        int port = Integer.parseInt(System.getenv("PORT"));
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        server.createContext("/", exchange -> {
            HttpHeaders headers = HttpHeaders.of(exchange.getRequestHeaders(), (name, value) -> true);
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(receive(webhook, headers, body), -1);
            exchange.close();
        });
        server.start();
    }
}
