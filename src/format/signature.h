/*
 * signature.h
 *	  Signatures of requests, and the secrets that they are made with.
 */
#ifndef OUTBOX_SIGNATURE_H
#define OUTBOX_SIGNATURE_H

#include "base/outbox.h"

#define OUTBOX_SECRET_PREFIX "whsec_"
#define OUTBOX_SECRET_MIN 24 /* both in bytes */
#define OUTBOX_SECRET_MAX 64

typedef enum OutboxHash
{
	OUTBOX_HASH_SHA256,
	OUTBOX_HASH_SHA512,
	OUTBOX_HASH_SHA1
} OutboxHash;

/* The hex of a SHA-512 is the longest signature. */
#define OUTBOX_SIGNATURE_MAX 128
#define OUTBOX_SIGNED_ID_MAX 40

/* A key is the bytes of a secret, or its text of at most "whsec_" and 88 characters. */
#define OUTBOX_KEY_MAX 96

typedef struct OutboxKey
{
	int	  len;
	uint8 bytes[OUTBOX_KEY_MAX];
} OutboxKey;

/*
 * Reads a secret.  Returns false if it is not "whsec_" and the base64 of 24 to 64
 * bytes.  Does not throw.
 */
extern bool outbox_secret_decode(const char *secret, OutboxKey *key);

/*
 * Makes a new secret of 32 random bytes, as text, palloc'd.  Throws if there are no
 * random numbers.
 */
extern char *outbox_secret_generate(void);

/* The key that is the text itself. */
extern void outbox_secret_as_text(const char *secret, OutboxKey *key);

/*
 * Writes the HMAC of head and body, in hex or base64, into 'out' (OUTBOX_SIGNATURE_MAX
 * bytes, not terminated).  Returns its length.  Throws if the hash fails.
 */
extern size_t outbox_sign(const OutboxKey *key, OutboxHash hash, bool hex,
						  const char *head, size_t head_len, const char *body,
						  size_t body_len, char *out);

/* Writes the SHA-256 of 'data' into 'digest', 32 bytes.  Throws if it fails. */
extern void outbox_sha256(const void *data, size_t len, uint8 *digest);

#endif /* OUTBOX_SIGNATURE_H */
