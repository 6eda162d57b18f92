#!/usr/bin/env node
/*
 * A receiver built on the libraries that real receivers use: it verifies every
 * request with standardwebhooks and with svix, reads CloudEvents with the
 * cloudevents SDK, and keeps count.
 *
 *     receiver.js PORT_FILE
 *
 * POST /control {"path": "/a", ...} says what to expect at a path, until it is
 * said anew:
 *     secrets   every one of them has to verify, and no other signature be there
 *     wrong     a secret that must not verify
 *     mode      "structured" or "binary": every request is a CloudEvent
 *     batch     every request is a batch; with a mode, of CloudEvents
 *     answers   status codes of the first attempts of each event, then 200
 *     traceparent  that the emitter set
 * GET /report answers {"counts": {...}, "problems": [...], "requests": [...]}.
 */
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const { HTTP } = require('cloudevents');
const standardwebhooks = require('standardwebhooks');
const svix = require('svix');

const paths = new Map();
const attempts = new Map(); // path and webhook-id -> the requests so far
const counts = {};
const problems = [];
const requests = [];

function count(what, n = 1) {
  counts[what] = (counts[what] || 0) + n;
}

function sha256(bytes) {
  return crypto.createHash('sha256').update(bytes).digest('hex');
}

/* The libraries read the body as text: bytes that are none cannot be theirs. */
function isText(body) {
  return Buffer.compare(Buffer.from(body.toString()), body) === 0;
}

/* A body that is verified but no JSON is a SyntaxError of svix: not its concern. */
function verifies(library, secret, body, headers) {
  try {
    new library.Webhook(secret).verify(body, headers, { jsonParse: false });
    return true;
  } catch (error) {
    if (error instanceof SyntaxError) return true;
    if (error instanceof library.WebhookVerificationError) return false;
    throw error;
  }
}

function verifiesByHand(secret, body, headers) {
  const key = Buffer.from(secret.slice('whsec_'.length), 'base64');
  const signed = Buffer.concat([
    Buffer.from(`${headers['webhook-id']}.${headers['webhook-timestamp']}.`), body]);
  const mac = 'v1,' + crypto.createHmac('sha256', key).update(signed).digest('base64');
  return headers['webhook-signature'].split(' ').includes(mac);
}

function checkSignature(expected, body, headers, problem) {
  const verifiers = isText(body)
    ? { standardwebhooks: (...a) => verifies(standardwebhooks, ...a),
        svix: (...a) => verifies(svix, ...a) }
    : { 'node:crypto (no text)': verifiesByHand };
  const tampered = Buffer.from(body);

  if (tampered.length > 0) tampered[tampered.length - 1] ^= 1;
  for (const [name, verifier] of Object.entries(verifiers)) {
    if (expected.secrets.every((secret) => verifier(secret, body, headers))) {
      count(`verified by ${name}`);
      if (expected.secrets.length > 1) count(`both secrets verified by ${name}`);
    } else problem(`${name} does not verify it`);
    if (expected.wrong) {
      if (verifier(expected.wrong, body, headers)) problem(`${name} takes a wrong secret`);
      else count(`wrong secret refused by ${name}`);
    }
    if (tampered.length > 0) {
      if (verifier(expected.secrets[0], tampered, headers)) problem(`${name} takes another body`);
      else count(`changed body refused by ${name}`);
    }
  }
  const signatures = headers['webhook-signature'].split(' ').length;
  if (signatures !== expected.secrets.length) {
    problem(`${signatures} signatures, not ${expected.secrets.length}`);
  }
}

function readCloudEvent(mode, body, headers, problem) {
  const structured = /^application\/cloudevents\+json/.test(headers['content-type']);

  if (structured !== (mode === 'structured')) problem(`${headers['content-type']} in ${mode} mode`);
  try {
    const event = HTTP.toEvent({ headers, body: isText(body) ? body.toString() : body });
    event.validate();
    if (event.id !== headers['webhook-id']) problem(`id ${event.id} is not webhook-id`);
    count(`CloudEvents read by the SDK (${mode})`);

    /* Bytes can be many: the report has their hash. */
    const { data_base64: base64, ...read } = event.toJSON();
    if (base64 !== undefined) {
      delete read.data;
      read.bytes_sha256 = sha256(Buffer.from(base64, 'base64'));
    }
    if (mode === 'binary' && headers['content-type'] !== 'application/json') delete read.data;
    return read;
  } catch (error) {
    problem(`CloudEvents SDK: ${error.message} ${JSON.stringify(error.errors || '')}`);
    return null;
  }
}

/* Every event of a batch has an id of its own; that of the batch is none of them. */
function readBatch(mode, body, headers, problem) {
  try {
    const events = mode ? HTTP.toEvent({ headers, body: body.toString() }) : JSON.parse(body);
    const ids = new Set(events.map((event) => event.id));

    if (!Array.isArray(events) || events.length === 0) problem('no array of events');
    if (ids.size !== events.length) problem('an id is there twice');
    if (ids.has(headers['webhook-id'])) problem('webhook-id is that of one event');
    if (mode) events.forEach((event) => event.validate());
    count(mode ? 'batches read by the CloudEvents SDK' : 'batches of format standard');
    count(mode ? 'CloudEvents read by the SDK (batch)' : 'events in batches of format standard', events.length);
    return events.map((event) => (mode ? event.toJSON() : event));
  } catch (error) {
    problem(`batch: ${error.message} ${JSON.stringify(error.errors || '')}`);
    return null;
  }
}

function checkTrace(expected, headers, problem) {
  if (!headers.traceparent) return;
  if (headers.traceparent !== expected.traceparent) problem(`traceparent "${headers.traceparent}"`);
  else count("the emitter's traceparent");
}

function receive(request, body, response) {
  const path = request.url;
  const headers = request.headers;
  const expected = paths.get(path);
  const id = headers['webhook-id'];
  const earlier = attempts.get(`${path} ${id}`) || [];
  const problem = (text) => problems.push(`${path} ${id}: ${text}`);
  const record = { path, id, headers, sha256: sha256(body), length: body.length };

  if (!expected) {
    problem('nothing is expected here');
  } else {
    checkSignature(expected, body, headers, problem);
    if (expected.batch) record.events = readBatch(expected.mode, body, headers, problem);
    else if (expected.mode) record.event = readCloudEvent(expected.mode, body, headers, problem);
    checkTrace(expected, headers, problem);
  }
  if (headers['idempotency-key'] !== `"${id}"`) problem('Idempotency-Key');
  if (earlier.length > 0) {
    if (earlier[0].sha256 !== record.sha256) problem('a retry with another body');
    else count('retries with an identical body');
  }
  if (body.length <= 4000 && isText(body)) record.body = body.toString();
  attempts.set(`${path} ${id}`, [...earlier, record]);
  requests.push(record);
  count('requests');
  response.statusCode = (expected && expected.answers && expected.answers[earlier.length]) || 200;
  response.end();
}

const server = http.createServer((request, response) => {
  const chunks = [];

  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    const body = Buffer.concat(chunks);

    try {
      if (request.url === '/control') {
        const expected = JSON.parse(body.toString());
        paths.set(expected.path, expected);
        response.end();
      } else if (request.url === '/report') {
        response.end(JSON.stringify({ counts, problems, requests }));
      } else receive(request, body, response);
    } catch (error) {
      problems.push(`${request.url}: ${error.stack}`);
      response.statusCode = 500;
      response.end();
    }
  });
});

server.listen(0, '127.0.0.1', () => {
  fs.writeFileSync(`${process.argv[2]}.new`, String(server.address().port));
  fs.renameSync(`${process.argv[2]}.new`, process.argv[2]);
});
process.on('SIGTERM', () => process.exit(0));
