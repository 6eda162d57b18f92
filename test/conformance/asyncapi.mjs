// Reads a document of AsyncAPI, and prints what @asyncapi/parser says about it as JSON: its
// errors, and the messages of each channel.
import { readFileSync } from 'node:fs';
import { Parser } from '@asyncapi/parser';

const { document, diagnostics } = await new Parser().parse(readFileSync(0, 'utf8'));
const channels = {};
for (const channel of document?.channels().all() ?? []) {
  channels[channel.address()] = channel.messages().all().map((message) => ({
    name: message.name(),
    type: message.payload()?.type(),
    tags: message.tags().all().map((tag) => tag.name()),
    examples: message.examples().all().map((example) => example.payload()),
  }));
}
console.log(JSON.stringify({
  errors: diagnostics.filter((d) => d.severity === 0).map((d) => `${d.path.join('.')}: ${d.message}`),
  channels,
}));
