/*
 * signature.c
 *	  Signs requests as Standard Webhooks 1.0 says, and reads and makes secrets.
 *
 * PostgreSQL's pg_hmac looks up the digest and prepares the key anew for each
 * signature.  That takes 900 ns, of which hashing a small body is 170.  A worker signs
 * often, with few keys.  So with OpenSSL, the two hash states of a key (RFC 2104,
 * section 4) are kept and copied, which takes 220 ns.
 */
#include "postgres.h"

#include "common/cryptohash.h"
#include "common/hmac.h"
#include "common/sha2.h"
#include "utils/builtins.h"

#ifdef USE_OPENSSL
#include <openssl/evp.h>
#endif

#include "base/compat.h"
#include "format/signature.h"

#define PREFIX_LEN (sizeof(OUTBOX_SECRET_PREFIX) - 1)

/* Characters of base64 for n bytes. */
#define BASE64_LEN(n) (((n) + 2) / 3 * 4)

bool
outbox_secret_decode(const char *secret, OutboxKey *key)
{
	uint8  bytes[OUTBOX_SECRET_MAX + 2];
	char   again[BASE64_LEN(OUTBOX_SECRET_MAX) + 1];
	size_t len;
	int	   n;

	if (strncmp(secret, OUTBOX_SECRET_PREFIX, PREFIX_LEN) != 0)
		return false;
	secret += PREFIX_LEN;
	len = strlen(secret);
	if (len < BASE64_LEN(OUTBOX_SECRET_MIN) || len > BASE64_LEN(OUTBOX_SECRET_MAX))
		return false;

	n = outbox_b64_decode(secret, (int) len, bytes, sizeof(bytes));
	if (n < OUTBOX_SECRET_MIN || n > OUTBOX_SECRET_MAX)
		return false;

	/*
	 * The decoder ignores white space.  The receiver's decoder may not, and would then
	 * compute signatures with another key.
	 */
	if (outbox_b64_encode(bytes, n, again, sizeof(again)) != (int) len ||
		memcmp(again, secret, len) != 0)
		return false;

	memset(key, 0, sizeof(*key));
	key->len = n;
	memcpy(key->bytes, bytes, n);
	return true;
}

char *
outbox_secret_generate(void)
{
	uint8 bytes[32];
	char *secret = palloc(PREFIX_LEN + BASE64_LEN(sizeof(bytes)) + 1);
	int	  n;

	if (!pg_strong_random(bytes, sizeof(bytes)))
		ereport(
			ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not generate a secret"),
			 errhint(
				 "The operating system's source of random numbers failed. Try again, or pass a secret.")));
	memcpy(secret, OUTBOX_SECRET_PREFIX, PREFIX_LEN);
	n = outbox_b64_encode(bytes, sizeof(bytes), secret + PREFIX_LEN,
						  BASE64_LEN(sizeof(bytes)));
	secret[PREFIX_LEN + n] = '\0';
	return secret;
}

static void
signing_failed(void)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not compute a signature"),
		 errhint(
			 "HMAC-SHA256 failed. The machine is out of memory, or its cryptographic library forbids SHA-256.")));
}

#ifdef USE_OPENSSL

#define BLOCK 64 /* of SHA-256, in bytes; no key is longer */

StaticAssertDecl(OUTBOX_SECRET_MAX <= BLOCK, "longer keys would have to be hashed");

/* A key, and the hash states after its two pads. */
typedef struct PreparedKey
{
	OutboxKey	key; /* len 0: free */
	EVP_MD_CTX *inner;
	EVP_MD_CTX *outer;
} PreparedKey;

/*
 * Found by the first bytes of the key, which are random.  A later key replaces an
 * earlier one.
 */
#define PREPARED_KEYS 4096

static PreparedKey *
prepare_key(const OutboxKey *key)
{
	static PreparedKey *prepared = NULL;
	PreparedKey		   *p;
	uint8				pad[BLOCK] = {0};
	uint32				hash;

	if (prepared == NULL)
		prepared = MemoryContextAllocZero(TopMemoryContext,
										  PREPARED_KEYS * sizeof(PreparedKey));

	memcpy(&hash, key->bytes, sizeof(hash));
	p = &prepared[hash % PREPARED_KEYS];
	if (p->key.len == key->len && memcmp(p->key.bytes, key->bytes, key->len) == 0)
		return p;

	p->key.len = 0;
	if (p->inner == NULL)
		p->inner = EVP_MD_CTX_new();
	if (p->outer == NULL)
		p->outer = EVP_MD_CTX_new();
	if (p->inner == NULL || p->outer == NULL)
		signing_failed();

	memcpy(pad, key->bytes, key->len);
	for (int i = 0; i < BLOCK; i++)
		pad[i] ^= 0x36;
	if (!EVP_DigestInit_ex(p->inner, EVP_sha256(), NULL) ||
		!EVP_DigestUpdate(p->inner, pad, BLOCK))
		signing_failed();
	for (int i = 0; i < BLOCK; i++)
		pad[i] ^= 0x36 ^ 0x5c;
	if (!EVP_DigestInit_ex(p->outer, EVP_sha256(), NULL) ||
		!EVP_DigestUpdate(p->outer, pad, BLOCK))
		signing_failed();

	p->key = *key;
	return p;
}

static void
hmac(const OutboxKey *key, const char *head, size_t head_len, const char *body,
	 size_t body_len, uint8 *digest)
{
	static EVP_MD_CTX *work = NULL;
	PreparedKey		  *p = prepare_key(key);

	if (work == NULL)
		work = EVP_MD_CTX_new();
	if (work == NULL || !EVP_MD_CTX_copy_ex(work, p->inner) ||
		!EVP_DigestUpdate(work, head, head_len) ||
		!EVP_DigestUpdate(work, body, body_len) ||
		!EVP_DigestFinal_ex(work, digest, NULL) || !EVP_MD_CTX_copy_ex(work, p->outer) ||
		!EVP_DigestUpdate(work, digest, PG_SHA256_DIGEST_LENGTH) ||
		!EVP_DigestFinal_ex(work, digest, NULL))
		signing_failed();
}

void
outbox_sha256(const void *data, size_t len, uint8 *digest)
{
	if (!EVP_Digest(data, len, digest, NULL, EVP_sha256(), NULL))
		signing_failed();
}

#else

static void
hmac(const OutboxKey *key, const char *head, size_t head_len, const char *body,
	 size_t body_len, uint8 *digest)
{
	static pg_hmac_ctx *work = NULL;

	if (work == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		work = pg_hmac_create(PG_SHA256);
		MemoryContextSwitchTo(old);
	}
	if (work == NULL || pg_hmac_init(work, key->bytes, key->len) < 0 ||
		pg_hmac_update(work, (const uint8 *) head, head_len) < 0 ||
		pg_hmac_update(work, (const uint8 *) body, body_len) < 0 ||
		pg_hmac_final(work, digest, PG_SHA256_DIGEST_LENGTH) < 0)
		signing_failed();
}

void
outbox_sha256(const void *data, size_t len, uint8 *digest)
{
	pg_cryptohash_ctx *ctx = pg_cryptohash_create(PG_SHA256);

	if (ctx == NULL || pg_cryptohash_init(ctx) < 0 ||
		pg_cryptohash_update(ctx, data, len) < 0 ||
		pg_cryptohash_final(ctx, digest, PG_SHA256_DIGEST_LENGTH) < 0)
		signing_failed();
	pg_cryptohash_free(ctx);
}

#endif /* USE_OPENSSL */

void
outbox_sign(const OutboxKey *key, const char *id, size_t id_len, int64 timestamp,
			const char *body, size_t body_len, char *out)
{
	char   head[128];
	size_t len;
	uint8  digest[PG_SHA256_DIGEST_LENGTH];

	Assert(id_len <= sizeof(head) - MAXINT8LEN - 3);
	memcpy(head, id, id_len);
	len = id_len;
	head[len++] = '.';
	len += pg_lltoa(timestamp, head + len);
	head[len++] = '.';

	hmac(key, head, len, body, body_len, digest);

	memcpy(out, "v1,", 3);
	(void) outbox_b64_encode(digest, sizeof(digest), out + 3, OUTBOX_SIGNATURE_LEN - 3);
}
