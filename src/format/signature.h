/*
 * signature.h
 *	  Signatures of Standard Webhooks 1.0.
 */
#ifndef OUTBOX_SIGNATURE_H
#define OUTBOX_SIGNATURE_H

#include "base/outbox.h"

#define OUTBOX_SECRET_PREFIX "whsec_"
#define OUTBOX_SECRET_MIN 24 /* both in bytes */
#define OUTBOX_SECRET_MAX 64

/* "v1," and 44 characters of base64 */
#define OUTBOX_SIGNATURE_LEN 47

typedef struct OutboxKey
{
	int	  len;
	uint8 bytes[OUTBOX_SECRET_MAX];
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

/*
 * Writes "v1,<base64 of HMAC-SHA256(key, id.timestamp.body)>" into 'out'
 * (OUTBOX_SIGNATURE_LEN bytes, not terminated).  'timestamp' is in unix seconds.
 * Throws if the hash fails.
 */
extern void outbox_sign(const OutboxKey *key, const char *id, size_t id_len,
						int64 timestamp, const char *body, size_t body_len, char *out);

/* Writes the SHA-256 of 'data' into 'digest', 32 bytes.  Throws if it fails. */
extern void outbox_sha256(const void *data, size_t len, uint8 *digest);

#endif /* OUTBOX_SIGNATURE_H */
