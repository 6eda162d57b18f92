// A shop with Sequelize, see doc/orm.md.

import { DataTypes, QueryTypes, Sequelize } from "sequelize";

const sequelize = new Sequelize(process.env.DATABASE_URL, { logging: false });

const Order = sequelize.define(
  "Order",
  { id: { type: DataTypes.BIGINT, primaryKey: true, autoIncrement: true }, customer: DataTypes.TEXT },
  { tableName: "orders", timestamps: false },
);

const OutgoingEvent = sequelize.define(
  "OutgoingEvent",
  {
    id: { type: DataTypes.UUID, primaryKey: true },
    topic: DataTypes.TEXT,
    type: DataTypes.TEXT,
    key: DataTypes.TEXT,
    expires_at: DataTypes.DATE,
    headers: DataTypes.JSONB,
    payload: DataTypes.JSONB,
    body: DataTypes.BLOB,
    content_type: DataTypes.TEXT,
  },
  { schema: "outbox", tableName: "outgoing", timestamps: false },
);
OutgoingEvent.sync = async () => OutgoingEvent; // sequelize.sync() leaves it alone

console.log("version", Sequelize.version);

// By function
const order = await sequelize.transaction(async (transaction) => {
  const order = await Order.create({ customer: "ada" }, { transaction });
  const [{ id }] = await sequelize.query("SELECT outbox.emit('order.created', $payload, key => $key) AS id", {
    bind: { payload: { order: Number(order.id) }, key: order.id },
    type: QueryTypes.SELECT,
    transaction,
  });
  console.log("created", id);
  return Number(order.id);
});

// Mapped
await sequelize.transaction(async (transaction) => {
  const event = await OutgoingEvent.create(
    { topic: "order.paid", key: String(order), payload: { order }, headers: { "x-tenant": "acme" } },
    { transaction },
  );
  await event.reload({ transaction });
  console.log("paid", event.id, event.topic, event.headers["x-tenant"], await OutgoingEvent.count({ transaction }));
  const label = await OutgoingEvent.create(
    { topic: "label.printed", body: Buffer.from("%PDF-"), content_type: "application/pdf" },
    { transaction },
  );
  console.log("label", label.id);
});

// Many at once
await sequelize.transaction(async (transaction) => {
  const events = await OutgoingEvent.bulkCreate(
    [1, 2, 3].map((n) => ({ topic: "order.packed", key: "k", payload: { order: n } })),
    { transaction },
  );
  console.log("packed", ...events.map((event) => event.id));
});

// A savepoint
await sequelize.transaction(async (transaction) => {
  await OutgoingEvent.create({ topic: "order.shipped", payload: { order } }, { transaction });
  await sequelize
    .transaction({ transaction }, async (savepoint) => {
      await OutgoingEvent.create({ topic: "order.lost", payload: { order } }, { transaction: savepoint });
      throw new Error("taken back");
    })
    .catch(() => {});
});

// A rollback
await sequelize
  .transaction(async (transaction) => {
    await Order.create({ customer: "bob" }, { transaction });
    await OutgoingEvent.create({ topic: "order.cancelled", payload: {} }, { transaction });
    throw new Error("taken back");
  })
  .catch(() => {});

// What makes tables from models
if (!process.env.PGBOUNCER) {
  const statements = [];
  await sequelize.sync({ logging: (sql) => statements.push(sql) });
  console.log("sync", statements.some((sql) => /orders/.test(sql)), statements.some((sql) => /outbox/.test(sql)));
}
await sequelize.close();
