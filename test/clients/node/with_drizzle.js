// A shop with Drizzle, see doc/orm.md.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { eq, sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import { customType, jsonb, pgSchema, text, timestamp, uuid } from "drizzle-orm/pg-core";
import pg from "pg";
import { orders } from "./drizzle.schema.js";

const bytea = customType({ dataType: () => "bytea" });

const outgoing = pgSchema("outbox").table("outgoing", {
  id: uuid().primaryKey().default(sql`outbox.new_event_id()`),
  topic: text().notNull(),
  type: text(),
  key: text(),
  expires_at: timestamp({ withTimezone: true }),
  headers: jsonb(),
  payload: jsonb(),
  body: bytea(),
  content_type: text(),
});

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const db = drizzle(pool);

console.log("version", JSON.parse(readFileSync("node_modules/drizzle-orm/package.json")).version);

// By function
const order = await db.transaction(async (tx) => {
  const [order] = await tx.insert(orders).values({ customer: "ada" }).returning();
  const payload = JSON.stringify({ order: order.id });
  const { rows } = await tx.execute(sql`SELECT outbox.emit('order.created', ${payload}, key => ${order.id}) AS id`);
  console.log("created", rows[0].id);
  return order.id;
});

// Mapped
await db.transaction(async (tx) => {
  const [event] = await tx
    .insert(outgoing)
    .values({ topic: "order.paid", key: String(order), payload: { order }, headers: { "x-tenant": "acme" } })
    .returning();
  const [again] = await tx.select().from(outgoing).where(eq(outgoing.id, event.id));
  console.log("paid", event.id, again.topic, again.headers["x-tenant"], await tx.$count(outgoing));
  const [label] = await tx
    .insert(outgoing)
    .values({ topic: "label.printed", body: Buffer.from("%PDF-"), content_type: "application/pdf" })
    .returning();
  console.log("label", label.id);
});

// Many at once
await db.transaction(async (tx) => {
  const events = await tx
    .insert(outgoing)
    .values([1, 2, 3].map((n) => ({ topic: "order.packed", key: "k", payload: { order: n } })))
    .returning({ id: outgoing.id });
  console.log("packed", ...events.map((event) => event.id));
});

// A savepoint
await db.transaction(async (tx) => {
  await tx.insert(outgoing).values({ topic: "order.shipped", payload: { order } });
  await tx
    .transaction(async (savepoint) => {
      await savepoint.insert(outgoing).values({ topic: "order.lost", payload: { order } });
      throw new Error("taken back");
    })
    .catch(() => {});
});

// A rollback
await db
  .transaction(async (tx) => {
    await tx.insert(orders).values({ customer: "bob" });
    await tx.insert(outgoing).values({ topic: "order.cancelled", payload: {} });
    throw new Error("taken back");
  })
  .catch(() => {});
await pool.end();

// What makes a schema from tables
if (!process.env.PGBOUNCER) {
  const out = mkdtempSync("drizzle-");
  writeFileSync(
    `${out}/config.js`,
    `export default { dialect: "postgresql", dbCredentials: { url: process.env.DATABASE_URL }, out: "./${out}" };`,
  );
  execFileSync("node_modules/.bin/drizzle-kit", ["pull", `--config=${out}/config.js`], { stdio: "ignore" });
  const schema = readFileSync(`${out}/schema.ts`, "utf8");
  console.log("pull", /orders/.test(schema), /outbox|outgoing/.test(schema));
}
