/*
 * signature.c
 *	  Signs requests with HMAC or ed25519, and reads and makes secrets.
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

/* Characters of base64 for n bytes. */
#define BASE64_LEN(n) (((n) + 2) / 3 * 4)

static bool
text_key(const char *secret, OutboxKey *key)
{
	size_t len = strlen(secret);

	/* The text of a private key is no key that a receiver could verify with. */
	if (len < OUTBOX_SECRET_MIN || len > OUTBOX_KEY_MAX ||
		strncmp(secret, OUTBOX_PRIVATE_PREFIX, strlen(OUTBOX_PRIVATE_PREFIX)) == 0)
		return false;
	for (size_t i = 0; i < len; i++)
		if (secret[i] < ' ' || secret[i] > '~')
			return false;
	key->len = (int) len;
	memcpy(key->bytes, secret, len);
	return true;
}

#ifdef USE_OPENSSL

/* A private key, with its public one in 'public' (32 bytes), or NULL: there is no ed25519. */
static EVP_PKEY *
private_key(const uint8 *private, uint8 *public)
{
	EVP_PKEY *pkey = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, private,
												  OUTBOX_ED25519_LEN);
	size_t	  len = OUTBOX_ED25519_LEN;

	if (pkey && !EVP_PKEY_get_raw_public_key(pkey, public, &len))
	{
		EVP_PKEY_free(pkey);
		pkey = NULL;
	}
	return pkey;
}

static bool
public_key(const uint8 *private, uint8 *public)
{
	EVP_PKEY *pkey = private_key(private, public);

	EVP_PKEY_free(pkey);
	return pkey != NULL;
}

#else

static bool
public_key(const uint8 *private, uint8 *public)
{
	return false;
}

#endif

bool
outbox_secret_decode(const char *secret, OutboxSecretForm form, OutboxKey *key)
{
	const char *prefix = form == OUTBOX_SECRET_PRIVATE ? OUTBOX_PRIVATE_PREFIX :
														 OUTBOX_SECRET_PREFIX;
	char		padded[BASE64_LEN(OUTBOX_SECRET_MAX) + 1];
	char		again[sizeof(padded)];
	uint8		bytes[OUTBOX_SECRET_MAX + 2];
	uint8 public[OUTBOX_ED25519_LEN];
	size_t len;
	int	   n;

	memset(key, 0, sizeof(*key));
	if (form == OUTBOX_SECRET_TEXT)
		return text_key(secret, key);
	if (strncmp(secret, prefix, strlen(prefix)) != 0)
		return false;
	secret += strlen(prefix);
	len = strlen(secret);
	if (len >= sizeof(padded))
		return false;

	/* The padding may be left out. */
	memcpy(padded, secret, len);
	while (len % 4 != 0)
		padded[len++] = '=';
	n = outbox_b64_decode(padded, (int) len, bytes, sizeof(bytes));
	if (n < OUTBOX_SECRET_MIN || n > OUTBOX_SECRET_MAX)
		return false;

	/*
	 * The decoder ignores white space.  The receiver's decoder may not, and would then
	 * compute signatures with another key.
	 */
	if (outbox_b64_encode(bytes, n, again, sizeof(again)) != (int) len ||
		memcmp(again, padded, len) != 0)
		return false;

	if (form == OUTBOX_SECRET_PRIVATE &&
		(n != 2 * OUTBOX_ED25519_LEN || !public_key(bytes, public) ||
		 memcmp(public, bytes + OUTBOX_ED25519_LEN, OUTBOX_ED25519_LEN) != 0))
		return false;

	key->len = n;
	memcpy(key->bytes, bytes, n);
	return true;
}

char *
outbox_secret_generate(bool private_key)
{
	const char *prefix = private_key ? OUTBOX_PRIVATE_PREFIX : OUTBOX_SECRET_PREFIX;
	uint8		bytes[2 * OUTBOX_ED25519_LEN];
	int			len = private_key ? sizeof(bytes) : 32;
	char	   *secret = palloc(strlen(prefix) + BASE64_LEN(sizeof(bytes)) + 1);
	int			n;

	if (!pg_strong_random(bytes, 32))
		ereport(
			ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not generate a secret"),
			 errhint(
				 "The operating system's source of random numbers failed. Try again, or pass a secret.")));
	if (private_key && !public_key(bytes, bytes + OUTBOX_ED25519_LEN))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("could not make a key for ed25519"),
				 errhint("It needs a PostgreSQL with OpenSSL, and an OpenSSL that allows "
						 "ed25519.")));
	strcpy(secret, prefix);
	n = outbox_b64_encode(bytes, len, secret + strlen(prefix), BASE64_LEN(len));
	secret[strlen(prefix) + n] = '\0';
	explicit_bzero(bytes, sizeof(bytes));
	return secret;
}

static void
signing_failed(void)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not compute a signature"),
		 errhint(
			 "The hash failed. The machine is out of memory, or its cryptographic library forbids the hash.")));
}

#ifdef USE_OPENSSL

#define BLOCK_MAX 128 /* of SHA-512, in bytes */

/* A key, and the hash states after its two pads. */
typedef struct PreparedKey
{
	OutboxKey	key; /* len 0: free */
	OutboxHash	hash;
	EVP_MD_CTX *inner;
	EVP_MD_CTX *outer;
} PreparedKey;

/*
 * Found by the last bytes of the key, which are random.  A later key replaces an
 * earlier one.
 */
#define PREPARED_KEYS 4096

static const EVP_MD *
md_of(OutboxHash hash)
{
	return hash == OUTBOX_HASH_SHA512 ? EVP_sha512() :
		hash == OUTBOX_HASH_SHA1	  ? EVP_sha1() :
										EVP_sha256();
}

static void
begin_pad(EVP_MD_CTX *ctx, const EVP_MD *md, const uint8 *key, uint8 byte)
{
	uint8 pad[BLOCK_MAX];
	int	  block = EVP_MD_block_size(md);

	for (int i = 0; i < block; i++)
		pad[i] = key[i] ^ byte;
	if (!EVP_DigestInit_ex(ctx, md, NULL) || !EVP_DigestUpdate(ctx, pad, block))
		signing_failed();
}

static PreparedKey *
prepare_key(const OutboxKey *key, OutboxHash hash)
{
	static PreparedKey *prepared = NULL;
	const EVP_MD	   *md = md_of(hash);
	PreparedKey		   *p;
	uint8				block[BLOCK_MAX] = {0};
	uint32				place = 0;

	if (prepared == NULL)
		prepared = MemoryContextAllocZero(TopMemoryContext,
										  PREPARED_KEYS * sizeof(PreparedKey));

	/* Those of a text may be "whsec_", and a padding. */
	if (key->len >= 12)
		memcpy(&place, key->bytes + key->len - 8, sizeof(place));
	p = &prepared[place % PREPARED_KEYS];
	if (p->key.len == key->len && p->hash == hash &&
		memcmp(p->key.bytes, key->bytes, key->len) == 0)
		return p;

	p->key.len = 0;
	if (p->inner == NULL)
		p->inner = EVP_MD_CTX_new();
	if (p->outer == NULL)
		p->outer = EVP_MD_CTX_new();
	if (p->inner == NULL || p->outer == NULL)
		signing_failed();

	if (key->len <= EVP_MD_block_size(md))
		memcpy(block, key->bytes, key->len);
	else if (!EVP_Digest(key->bytes, key->len, block, NULL, md, NULL))
		signing_failed();
	begin_pad(p->inner, md, block, 0x36);
	begin_pad(p->outer, md, block, 0x5c);
	p->key.len = key->len;
	memcpy(p->key.bytes, key->bytes, key->len);
	p->hash = hash;
	return p;
}

static int
hmac(const OutboxKey *key, OutboxHash hash, const char *head, size_t head_len,
	 const char *body, size_t body_len, uint8 *digest)
{
	static EVP_MD_CTX *work = NULL;
	PreparedKey		  *p = prepare_key(key, hash);
	int				   len = EVP_MD_size(md_of(hash));

	if (work == NULL)
		work = EVP_MD_CTX_new();
	if (work == NULL || !EVP_MD_CTX_copy_ex(work, p->inner) ||
		!EVP_DigestUpdate(work, head, head_len) ||
		!EVP_DigestUpdate(work, body, body_len) ||
		!EVP_DigestFinal_ex(work, digest, NULL) || !EVP_MD_CTX_copy_ex(work, p->outer) ||
		!EVP_DigestUpdate(work, digest, len) || !EVP_DigestFinal_ex(work, digest, NULL))
		signing_failed();
	return len;
}

#define ED25519_SIGNATURE_LEN 64

/* The text is signed as a whole. */
static int
sign_with_private(const OutboxKey *key, const char *head, size_t head_len,
				  const char *body, size_t body_len, uint8 *signature)
{
	uint8 public[OUTBOX_ED25519_LEN];
	EVP_PKEY   *pkey = private_key(key->bytes, public);
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	uint8	   *text = palloc(head_len + body_len);
	size_t		len = ED25519_SIGNATURE_LEN;
	bool		done;

	memcpy(text, head, head_len);
	memcpy(text + head_len, body, body_len);
	done = pkey && ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, pkey) == 1 &&
		EVP_DigestSign(ctx, signature, &len, text, head_len + body_len) == 1;
	EVP_MD_CTX_free(ctx);
	EVP_PKEY_free(pkey);
	pfree(text);
	if (!done)
		signing_failed();
	return (int) len;
}

void
outbox_sha256(const void *data, size_t len, uint8 *digest)
{
	if (!EVP_Digest(data, len, digest, NULL, EVP_sha256(), NULL))
		signing_failed();
}

#else

static int
hmac(const OutboxKey *key, OutboxHash hash, const char *head, size_t head_len,
	 const char *body, size_t body_len, uint8 *digest)
{
	static const struct
	{
		pg_cryptohash_type type;
		int				   len;
	} hashes[] = {[OUTBOX_HASH_SHA256] = {PG_SHA256, PG_SHA256_DIGEST_LENGTH},
				  [OUTBOX_HASH_SHA512] = {PG_SHA512, PG_SHA512_DIGEST_LENGTH},
				  [OUTBOX_HASH_SHA1] = {PG_SHA1, 20}};
	static pg_hmac_ctx *work[lengthof(hashes)];

	if (work[hash] == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		work[hash] = pg_hmac_create(hashes[hash].type);
		MemoryContextSwitchTo(old);
	}
	if (work[hash] == NULL || pg_hmac_init(work[hash], key->bytes, key->len) < 0 ||
		pg_hmac_update(work[hash], (const uint8 *) head, head_len) < 0 ||
		pg_hmac_update(work[hash], (const uint8 *) body, body_len) < 0 ||
		pg_hmac_final(work[hash], digest, hashes[hash].len) < 0)
		signing_failed();
	return hashes[hash].len;
}

static int
sign_with_private(const OutboxKey *key, const char *head, size_t head_len,
				  const char *body, size_t body_len, uint8 *signature)
{
	(void) key, (void) head, (void) head_len, (void) body, (void) body_len,
		signing_failed(); /* no such secret can be decoded */
	return 0;
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

size_t
outbox_sign(const OutboxKey *key, OutboxHash hash, bool hex, const char *head,
			size_t head_len, const char *body, size_t body_len, char *out)
{
	uint8 digest[PG_SHA512_DIGEST_LENGTH];
	int	  len;

	if (key->len == OUTBOX_KEY_HIDDEN)
		return strlen(strcpy(out, OUTBOX_LEFT_OUT));
	len = hash == OUTBOX_HASH_ED25519 ?
		sign_with_private(key, head, head_len, body, body_len, digest) :
		hmac(key, hash, head, head_len, body, body_len, digest);

	if (hex)
		return hex_encode((const char *) digest, len, out);
	return (size_t) outbox_b64_encode(digest, len, out, OUTBOX_SIGNATURE_MAX);
}
