#ifndef OUTBOX_SIGNATURE_H
#define OUTBOX_SIGNATURE_H

#include "base/outbox.h"

#define OUTBOX_SECRET_PREFIX "whsec_"
#define OUTBOX_PRIVATE_PREFIX "whsk_"
#define OUTBOX_ED25519_LEN 32 /* bytes of a private key, and of a public one */
#define OUTBOX_SECRET_MIN 24  /* both in bytes */
#define OUTBOX_SECRET_MAX 75

typedef enum OutboxHash
{
	OUTBOX_HASH_SHA256,
	OUTBOX_HASH_SHA512,
	OUTBOX_HASH_SHA1,
	OUTBOX_HASH_ED25519 /* no HMAC, but a signature with a private key */
} OutboxHash;

/* The forms of a secret. */
typedef enum OutboxSecretForm
{
	OUTBOX_SECRET_BYTES,  /* "whsec_" and the base64 of 24 to 75 bytes */
	OUTBOX_SECRET_TEXT,	  /* printable ASCII, 24 or more, not "whsk_": the key as it is */
	OUTBOX_SECRET_PRIVATE /* "whsk_" and the base64 of a private and its public key */
} OutboxSecretForm;

/* The hex of a SHA-512 is the longest signature. */
#define OUTBOX_SIGNATURE_MAX 128
#define OUTBOX_LEFT_OUT "(left out)" /* in place of a secret, where a request is shown */
#define OUTBOX_SIGNED_ID_MAX 40

/* A key is the bytes of a secret, or its text, which may be "whsec_" and 100 characters. */
#define OUTBOX_KEY_MAX 106

#define OUTBOX_KEY_HIDDEN \
	(-1) /* length of a key in place of whose signatures a word stands */

typedef struct OutboxKey
{
	int	  len;
	uint8 bytes[OUTBOX_KEY_MAX];
} OutboxKey;

/* Reads a secret of this form.  Returns false if it is none.  Does not throw. */
extern bool outbox_secret_decode(const char *secret, OutboxSecretForm form,
								 OutboxKey *key);

/*
 * Makes a new secret of 32 random bytes, or a new private key, as text, palloc'd.  Throws
 * if there are no random numbers, or no ed25519.
 */
extern char *outbox_secret_generate(bool private_key);

/*
 * Writes the HMAC or signature of head and body, in hex or base64, into 'out'
 * (OUTBOX_SIGNATURE_MAX bytes, not terminated).  Returns its length.  Throws if the hash
 * fails.
 */
extern size_t outbox_sign(const OutboxKey *key, OutboxHash hash, bool hex,
						  const char *head, size_t head_len, const char *body,
						  size_t body_len, char *out);

/* Writes the SHA-256 of 'data' into 'digest', 32 bytes.  Throws if it fails. */
extern void outbox_sha256(const void *data, size_t len, uint8 *digest);

#endif /* OUTBOX_SIGNATURE_H */
