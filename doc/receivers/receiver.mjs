import { appendFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { Webhook } from 'standardwebhooks';

const webhook = new Webhook(process.env.WEBHOOK_SECRET);
const done = new Map(); // id -> its work

// The work. When it throws, the event comes again.
async function handle(id, key, event) {
  const what = 'data_base64' in event
    ? `${Buffer.from(event.data_base64, 'base64').length} bytes`
    : JSON.stringify(event.data);
  await appendFile('events.txt', `${id}\t${event.type}\t${key}\t${what}\n`);
}

async function once(id, key, event) {
  if (!done.has(id)) done.set(id, handle(id, key, event));
  try {
    await done.get(id); // a repetition awaits the work of the first request
  } catch (error) {
    done.delete(id);
    throw error;
  }
}

async function receive(headers, body) {
  let event;
  try {
    event = webhook.verify(body.toString(), headers);
  } catch {
    return [401];
  }
  try {
    await once(headers['webhook-id'], decodeURIComponent(headers['outbox-key'] ?? ''), event);
    return [204];
  } catch (error) {
    console.error(error);
    return [500];
  }
}

createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', async () => {
    const [status, answer] = await receive(request.headers, Buffer.concat(chunks));
    response.writeHead(status).end(answer);
  });
}).listen(Number(process.env.PORT), '127.0.0.1');
