// A portal for the customers of an application: an HTTP API in front of the functions
// outbox.portal_...().  Each request is one call, and what the call returns is the answer.
// The role of its connection has the purpose portal of outbox.grant_to(), and nothing else.
//
//   CUSTOMERS='{"token": {"tenant": "acme", "user": "jane"}}' PGHOST=… PGUSER=portal node portal.cjs PORT
'use strict';

const express = require('express');
const pg = require('pg');

const pool = new pg.Pool({ max: 8 });
const customers = JSON.parse(process.env.CUSTOMERS);
const app = express();
app.use(express.json({ strict: false }));
app.set('query parser', 'simple');

// ---------------------------------------------------------------- the calls

// Arguments are passed by name, and those that are undefined are left out.  The same query
// says who acts, for outbox.endpoint_audit.
async function rows(name, request, args = {}) {
  const given = Object.entries({ tenant: request.tenant, ...args }).filter(([, value]) => value !== undefined);
  const list = given.map(([argument], i) => `${argument} => $${i + 2}`).join(', ');
  const result = await pool.query({
    text: `SELECT outbox.portal_${name}(${list}) AS value FROM set_config('outbox.actor', $1, true)`,
    values: [request.user, ...given.map(([, value]) => value)],
  });
  return result.rows.map((row) => row.value);
}

async function one(name, request, args) {
  return (await rows(name, request, args))[0];
}

// A part of the address that may come several times, as an array of SQL
function many(value) {
  return value === undefined ? undefined : [].concat(value);
}

// What is given in the address, for those arguments of a function that have the same names
function chosen(query, ...names) {
  return Object.fromEntries(names.map((name) => [name, query[name]]));
}

// An endpoint has a version, which a change may name, so that none is lost.
function show(response, endpoint) {
  response.set('ETag', `"${endpoint.version}"`).set('Cache-Control', 'no-store').json(endpoint);
}

function version(request) {
  const tag = request.get('If-Match');
  return tag === undefined || tag === '*' ? undefined : tag.replaceAll('"', '');
}

// ---------------------------------------------------------------- which customer it is

// An application has a session here.  The tenant never comes from the request itself.
app.use((request, response, next) => {
  const token = (request.get('Authorization') ?? '').replace(/^Bearer /, '');
  Object.assign(request, Object.hasOwn(customers, token) ? customers[token] : {});
  if (request.tenant === undefined) {
    response.status(401).json({ error: { message: 'log in first' } });
  } else {
    next();
  }
});

// ---------------------------------------------------------------- screen: endpoints

app.get('/endpoints', async (request, response) => {
  response.json(await rows('endpoints', request));
});

app.get('/limits', async (request, response) => {
  response.json(await one('limits', request));
});

app.get('/event-types', async (request, response) => {
  response.json(await rows('event_types', request));
});

app.get('/asyncapi', async (request, response) => {
  response.json(await one('asyncapi', request, { title: 'Events of a shop' }));
});

app.post('/endpoints', async (request, response) => {
  const { url, ...settings } = request.body;
  const endpoint = await one('create_endpoint', request, {
    url: url ?? null,
    settings: JSON.stringify(settings),
    idempotency_key: request.get('Idempotency-Key'),
  });
  response.status(201).location(`/endpoints/${endpoint.name}`);
  show(response, endpoint);
});

// ---------------------------------------------------------------- screen: one endpoint

app.get('/endpoints/:name', async (request, response) => {
  show(response, await one('endpoints', request, { name: request.params.name }));
});

app.patch('/endpoints/:name', async (request, response) => {
  show(response, await one('alter_endpoint', request, {
    name: request.params.name,
    settings: JSON.stringify(request.body),
    version: version(request),
  }));
});

app.delete('/endpoints/:name', async (request, response) => {
  await one('drop_endpoint', request, { name: request.params.name, ...chosen(request.query, 'discard') });
  response.status(204).end();
});

app.post('/endpoints/:name/pause', async (request, response) => {
  show(response, await one('pause_endpoint', request, { name: request.params.name }));
});

app.post('/endpoints/:name/resume', async (request, response) => {
  show(response, await one('resume_endpoint', request, { name: request.params.name }));
});

app.get('/endpoints/:name/secret', async (request, response) => {
  response.set('Cache-Control', 'no-store').json(await one('secret', request, { name: request.params.name }));
});

// "grace" is a number of seconds, for which the former secret signs as well.
app.post('/endpoints/:name/secret', async (request, response) => {
  show(response, await one('rotate_secret', request, {
    name: request.params.name, grace: request.body?.grace, version: version(request),
  }));
});

app.post('/endpoints/:name/test', async (request, response) => {
  const { topic, payload } = request.body ?? {};
  response.status(202).json(await one('send_test', request, {
    name: request.params.name,
    topic,
    payload: payload === undefined ? undefined : JSON.stringify(payload),
  }));
});

// ---------------------------------------------------------------- screen: who changed what

app.get('/changes', async (request, response) => {
  response.json(await one('changes', request, chosen(request.query, 'endpoint', 'before', 'page_size')));
});

// ---------------------------------------------------------------- screen: charts

// Of one endpoint, or of all: /figures?endpoint=…&bucket=300&from_time=…
app.get('/figures', async (request, response) => {
  response.json(await rows('figures', request, chosen(request.query, 'endpoint', 'bucket', 'from_time', 'to_time')));
});

// ---------------------------------------------------------------- screen: the log

// The answer's "cursor" is "before" of the next page, until it is null.
app.get('/deliveries', async (request, response) => {
  response.json(await one('deliveries', request, {
    ...chosen(request.query, 'endpoint', 'status', 'before', 'page_size', 'from_time', 'to_time', 'event'),
    topics: many(request.query.topics),
  }));
});

app.get('/attempts', async (request, response) => {
  response.json(await one('attempts', request, chosen(request.query, 'endpoint', 'event', 'before', 'page_size')));
});

// ---------------------------------------------------------------- screen: one delivery

app.get('/endpoints/:name/deliveries/:event', async (request, response) => {
  response.json(await one('delivery', request, { endpoint: request.params.name, event: request.params.event }));
});

app.post('/endpoints/:name/deliveries/:event/retry', async (request, response) => {
  response.status(202).json(await one('retry', request, { endpoint: request.params.name, event: request.params.event }));
});

// ---------------------------------------------------------------- screen: recovery

// All that failed, or what failed since a time
app.post('/endpoints/:name/retry', async (request, response) => {
  const { since, topics } = request.body ?? {};
  response.status(202).json(await one('retry', request, { endpoint: request.params.name, since, topics: many(topics) }));
});

app.get('/endpoints/:name/replays', async (request, response) => {
  response.json(await rows('replays', request, { endpoint: request.params.name }));
});

app.post('/endpoints/:name/replays', async (request, response) => {
  const { from_time = null, to_time, topics } = request.body ?? {};
  response.status(202).json(await one('replay', request, {
    endpoint: request.params.name, from_time, to_time, topics: many(topics),
  }));
});

app.delete('/endpoints/:name/replays/:id', async (request, response) => {
  response.json(await one('cancel_replay', request, { endpoint: request.params.name, replay: request.params.id }));
});

// ---------------------------------------------------------------- errors

// The table of doc/tenants.md
const statuses = {
  22023: 422, 22004: 422, 42704: 404, 42710: 409, 42939: 422, 54000: 409, 54001: 422, 53400: 429,
  55000: 409, 55006: 409, OX412: 412, 25001: 500, 42501: 500, 25006: 503, 40001: 503, '40P01': 503, '55P03': 503,
};

// Express knows a handler of errors by its four arguments.
// eslint-disable-next-line no-unused-vars
app.use((error, request, response, next) => {
  const code = error instanceof pg.DatabaseError ? error.code : undefined;
  let status = error.status ?? 500;          // a body that is no JSON

  if (code !== undefined) {
    // A value that is no text of its type is a fault of the caller, too.
    status = statuses[code] ?? (/^22/.test(code) ? 422 : /^(08|53|57)/.test(code) ? 503 : 500);
  } else if (error.code !== undefined) {
    status = 503;                            // the connection
  }
  if (status >= 500) {
    console.error(error);
    response.status(status).json({ error: { message: 'something went wrong here' } });
  } else {
    response.status(status).json({ error: { code, message: error.message, hint: error.hint, field: error.column } });
  }
});

const server = app.listen(Number(process.argv[2] ?? 0), '127.0.0.1', () => {
  console.log(`listening on ${server.address().port}`);
});
