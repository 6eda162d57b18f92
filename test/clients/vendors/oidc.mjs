// A real token server: oidc-provider, with one client that may have client credentials.  Its
// tokens live for as many seconds as the second argument says.  The first one names a file
// that gets the port.
import { writeFileSync, renameSync } from 'node:fs';
import { Provider } from 'oidc-provider';

const [file, seconds] = process.argv.slice(2);
const provider = new Provider('http://127.0.0.1', {
  clients: [{
    client_id: 'shop:1', client_secret: 's%cret+/', grant_types: ['client_credentials'],
    redirect_uris: [], response_types: [], scope: 'hooks', token_endpoint_auth_method: 'client_secret_basic',
  }],
  features: {
    clientCredentials: { enabled: true },
    introspection: { enabled: true, allowedPolicy: () => true },
    devInteractions: { enabled: false },
  },
  scopes: ['hooks'],
  ttl: { ClientCredentials: Number(seconds) },
});
const server = provider.listen(0, '127.0.0.1', () => {
  writeFileSync(`${file}.new`, `${server.address().port}\n`);
  renameSync(`${file}.new`, file);
});
