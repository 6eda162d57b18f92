// A shop with Prisma, see doc/orm.md.

import { PrismaPg } from "@prisma/adapter-pg";
import prismaClient from "@prisma/client";

const { Prisma, PrismaClient } = prismaClient;
const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: process.env.DATABASE_URL }) });

console.log("version", Prisma.prismaVersion.client);

// By function
const order = await prisma.$transaction(async (tx) => {
  const order = await tx.order.create({ data: { customer: "ada" } });
  const payload = { order: Number(order.id) };
  const [{ id }] = await tx.$queryRaw`
    SELECT outbox.emit('order.created', ${payload}::jsonb, key => ${order.id}) AS id`;
  console.log("created", id);
  return Number(order.id);
});

// Mapped
await prisma.$transaction(async (tx) => {
  const { id } = await tx.outgoingEvent.create({
    data: { topic: "order.paid", key: String(order), payload: { order }, headers: { "x-tenant": "acme" } },
  });
  const event = await tx.outgoingEvent.findUniqueOrThrow({ where: { id } });
  console.log("paid", event.id, event.topic, event.headers["x-tenant"], await tx.outgoingEvent.count());
  const label = await tx.outgoingEvent.create({
    data: { topic: "label.printed", body: Buffer.from("%PDF-"), content_type: "application/pdf" },
  });
  console.log("label", label.id);
});

// Many at once
await prisma.$transaction(async (tx) => {
  const events = await tx.outgoingEvent.createManyAndReturn({
    data: [1, 2, 3].map((n) => ({ topic: "order.packed", key: "k", payload: { order: n } })),
    select: { id: true },
  });
  console.log("packed", ...events.map((event) => event.id));
});

// A savepoint
await prisma.$transaction(async (tx) => {
  await tx.outgoingEvent.create({ data: { topic: "order.shipped", payload: { order } } });
  await tx.$executeRaw`SAVEPOINT a`;
  await tx.outgoingEvent.create({ data: { topic: "order.lost", payload: { order } } });
  await tx.$executeRaw`ROLLBACK TO SAVEPOINT a`;
});

// A rollback
await prisma
  .$transaction(async (tx) => {
    await tx.order.create({ data: { customer: "bob" } });
    await tx.outgoingEvent.create({ data: { topic: "order.cancelled", payload: {} } });
    throw new Error("taken back");
  })
  .catch(() => {});
await prisma.$disconnect();
