// Judges requests by the libraries that vendors give to their own receivers.  Reads lines of
// JSON {"profile", "secret", "headers", "body", "url"}, and prints "true" or "false" for each.
import { createInterface } from 'node:readline';

const judges = {
  async standard({ secret, headers, body }) {
    const library = await import('standardwebhooks');
    return !!new library.Webhook(secret).verify(body, headers);
  },
  async svix({ secret, headers, body }) {
    const library = await import('svix');
    return !!new library.Webhook(secret).verify(body, headers);
  },
  async stripe({ secret, headers, body }) {
    const library = await import('stripe');
    return !!new library.default('sk_test_none').webhooks.constructEvent(
      body, headers['stripe-signature'], secret);
  },
  async github({ secret, headers, body }) {
    const library = await import('@octokit/webhooks-methods');
    return await library.verify(secret, body, headers['x-hub-signature-256']);
  },
  async slack({ secret, headers, body }) {
    const library = await import('@slack/bolt');
    (library.verifySlackRequest ?? library.default.verifySlackRequest)({
      signingSecret: secret,
      body,
      headers: {
        'x-slack-signature': headers['x-slack-signature'],
        'x-slack-request-timestamp': Number(headers['x-slack-request-timestamp']),
      },
    });
    return true;
  },
  async shopify({ secret, headers, body, url }) {
    await import('@shopify/shopify-api/adapters/node');
    const library = await import('@shopify/shopify-api');
    const api = library.shopifyApi({
      apiKey: 'key',
      apiSecretKey: secret,
      apiVersion: Object.values(library.ApiVersion).at(-1),
      hostName: 'shop.example',
      isEmbeddedApp: false,
      logger: { level: library.LogSeverity.Error },
    });
    const answer = await api.webhooks.validate({
      rawBody: body,
      rawRequest: { method: 'POST', url, headers },
      rawResponse: {},
    });
    return answer.valid;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let verdict;
  try {
    verdict = await judges[request.profile](request);
  } catch (error) {
    process.stderr.write(`${request.profile}: ${error.message}\n`);
    verdict = false;
  }
  process.stdout.write(`${verdict}\n`);
}
