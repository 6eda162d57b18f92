// A shop with Hibernate, see doc/orm.md.

import jakarta.persistence.Column;
import jakarta.persistence.Entity;
import jakarta.persistence.GeneratedValue;
import jakarta.persistence.GenerationType;
import jakarta.persistence.Id;
import jakarta.persistence.Table;
import java.io.StringReader;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.hibernate.Session;
import org.hibernate.SessionFactory;
import org.hibernate.annotations.ColumnDefault;
import org.hibernate.annotations.Generated;
import org.hibernate.annotations.Immutable;
import org.hibernate.annotations.JdbcTypeCode;
import org.hibernate.cfg.Configuration;
import org.hibernate.type.SqlTypes;
import org.postgresql.PGConnection;

@Entity
@Table(name = "orders")
class Order {
    @Id
    @GeneratedValue(strategy = GenerationType.IDENTITY)
    Long id;
    String customer;

    protected Order() {}

    Order(String customer) {
        this.customer = customer;
    }
}

@Entity
@Immutable
@Table(schema = "outbox", name = "outgoing")
class OutgoingEvent {
    @Id
    @Generated
    @ColumnDefault("outbox.new_event_id()")
    UUID id;
    String topic;
    String type;
    String key;
    @Column(name = "expires_at")
    OffsetDateTime expiresAt;
    @JdbcTypeCode(SqlTypes.JSON)
    Map<String, String> headers;
    @JdbcTypeCode(SqlTypes.JSON)
    Map<String, Object> payload;
    byte[] body;
    @Column(name = "content_type")
    String contentType;

    protected OutgoingEvent() {}

    OutgoingEvent(String topic, Map<String, Object> payload) {
        this.topic = topic;
        this.payload = payload;
    }
}

public class WithHibernate {
    public static void main(String[] args) {
        System.out.println("version " + org.hibernate.Version.getVersionString());
        String url = "jdbc:" + System.getenv("JDBC_URL");
        if (System.getenv("PGBOUNCER") != null) {
            url += "&prepareThreshold=0";
        }
        SessionFactory factory = new Configuration()
            .addAnnotatedClass(Order.class)
            .addAnnotatedClass(OutgoingEvent.class)
            .setProperty("hibernate.connection.url", url)
            .buildSessionFactory();

        // By function
        long order = factory.fromTransaction(session -> {
            Order placed = new Order("ada");
            session.persist(placed);
            Object id = session.createNativeQuery(
                    "SELECT outbox.emit('order.created', cast(:payload AS jsonb), key => :key)", UUID.class)
                .setParameter("payload", "{\"order\": " + placed.id + "}")
                .setParameter("key", placed.id)
                .getSingleResult();
            System.out.println("created " + id);
            return placed.id;
        });

        // Mapped
        factory.inTransaction(session -> {
            OutgoingEvent event = new OutgoingEvent("order.paid", Map.of("order", order));
            event.key = String.valueOf(order);
            event.headers = Map.of("x-tenant", "acme");
            session.persist(event);
            session.detach(event);
            OutgoingEvent again = session.find(OutgoingEvent.class, event.id);
            long count = session.createQuery("select count(*) from OutgoingEvent", Long.class).getSingleResult();
            System.out.println("paid " + event.id + " " + again.topic + " " + again.headers.get("x-tenant") + " " + count);
            OutgoingEvent label = new OutgoingEvent("label.printed", null);
            label.body = "%PDF-".getBytes();
            label.contentType = "application/pdf";
            session.persist(label);
            session.flush();
            System.out.println("label " + label.id);
        });

        // Many at once
        factory.inTransaction(session -> {
            List<OutgoingEvent> events = new ArrayList<>();
            for (int n = 1; n <= 3; n++) {
                OutgoingEvent event = new OutgoingEvent("order.packed", Map.of("order", n));
                event.key = "k";
                session.persist(event);
                events.add(event);
            }
            session.flush();
            System.out.print("packed");
            events.forEach(event -> System.out.print(" " + event.id));
            System.out.println();
        });

        // COPY
        factory.inTransaction(session -> session.doWork(connection -> {
            StringBuilder rows = new StringBuilder();
            for (int n = 1; n <= 3; n++) {
                rows.append("order.counted\tk\t{\"order\": " + n + "}\n");
            }
            try {
                connection.unwrap(PGConnection.class).getCopyAPI()
                    .copyIn("COPY outbox.events (topic, key, payload) FROM STDIN", new StringReader(rows.toString()));
            } catch (java.io.IOException e) {
                throw new java.sql.SQLException(e);
            }
        }));

        // A savepoint
        factory.inTransaction(session -> session.doWork(connection -> {
            session.persist(new OutgoingEvent("order.shipped", Map.of("order", order)));
            session.flush();
            java.sql.Savepoint savepoint = connection.setSavepoint();
            session.persist(new OutgoingEvent("order.lost", Map.of("order", order)));
            session.flush();
            connection.rollback(savepoint);
        }));

        // A rollback
        try (Session session = factory.openSession()) {
            session.beginTransaction();
            session.persist(new Order("bob"));
            session.persist(new OutgoingEvent("order.cancelled", Map.of()));
            session.flush();
            session.getTransaction().rollback();
        }
        factory.close();
    }
}
