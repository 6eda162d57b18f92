// A shop with TypeORM, see doc/orm.md.

import { readFileSync } from "node:fs";
import { DataSource, EntitySchema } from "typeorm";

const Order = new EntitySchema({
  name: "Order",
  tableName: "orders",
  columns: {
    id: { type: "bigint", primary: true, generated: "identity" },
    customer: { type: "text" },
  },
});

const OutgoingEvent = new EntitySchema({
  name: "OutgoingEvent",
  schema: "outbox",
  tableName: "outgoing",
  synchronize: false,
  columns: {
    id: { type: "uuid", primary: true, default: () => "outbox.new_event_id()" },
    topic: { type: "text" },
    type: { type: "text", nullable: true },
    key: { type: "text", nullable: true },
    expires_at: { type: "timestamptz", nullable: true },
    headers: { type: "jsonb", nullable: true },
    payload: { type: "jsonb", nullable: true },
    body: { type: "bytea", nullable: true },
    content_type: { type: "text", nullable: true },
  },
});

const shop = new DataSource({
  type: "postgres",
  url: process.env.DATABASE_URL,
  entities: [Order, OutgoingEvent],
  installExtensions: false,
});
await shop.initialize();

console.log("version", JSON.parse(readFileSync("node_modules/typeorm/package.json")).version);

// By function
const order = await shop.transaction(async (manager) => {
  const order = await manager.save(Order, { customer: "ada" });
  const [{ id }] = await manager.query("SELECT outbox.emit('order.created', $1, key => $2) AS id", [
    { order: Number(order.id) },
    order.id,
  ]);
  console.log("created", id);
  return Number(order.id);
});

// Mapped
await shop.transaction(async (manager) => {
  const events = manager.getRepository(OutgoingEvent);
  const { id } = await events.save({
    topic: "order.paid",
    key: String(order),
    payload: { order },
    headers: { "x-tenant": "acme" },
  });
  const event = await events.findOneByOrFail({ id });
  console.log("paid", event.id, event.topic, event.headers["x-tenant"], await events.count());
  const label = await events.save({
    topic: "label.printed",
    body: Buffer.from("%PDF-"),
    content_type: "application/pdf",
  });
  console.log("label", label.id);
});

// Many at once
await shop.transaction(async (manager) => {
  const result = await manager.insert(
    OutgoingEvent,
    [1, 2, 3].map((n) => ({ topic: "order.packed", key: "k", payload: { order: n } })),
  );
  console.log("packed", ...result.identifiers.map((event) => event.id));
});

// A savepoint
await shop.transaction(async (manager) => {
  await manager.insert(OutgoingEvent, { topic: "order.shipped", payload: { order } });
  await manager
    .transaction(async (savepoint) => {
      await savepoint.insert(OutgoingEvent, { topic: "order.lost", payload: { order } });
      throw new Error("taken back");
    })
    .catch(() => {});
});

// A rollback
await shop
  .transaction(async (manager) => {
    await manager.insert(Order, { customer: "bob" });
    await manager.insert(OutgoingEvent, { topic: "order.cancelled", payload: {} });
    throw new Error("taken back");
  })
  .catch(() => {});

// What makes migrations from entities
if (!process.env.PGBOUNCER) {
  const { upQueries } = await shop.driver.createSchemaBuilder().log();
  console.log("log", ...upQueries.map(({ query }) => query).filter((query) => /outbox|outgoing/.test(query)));
}
await shop.destroy();
