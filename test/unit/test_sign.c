/*
 * test_sign.c
 *	  Signatures and secrets are those of the test vectors in doc/receiving.md (TAP).
 *
 * links: src/format/signature.c
 */
#include "base/outbox.h"

#include "utils/memutils.h"

#include "format/signature.h"
#include "tap.h"

/*
 * What signature.c needs of a server.  Nothing here throws an error: it ends the
 * test.
 */
MemoryContext TopMemoryContext = NULL;
MemoryContext CurrentMemoryContext = NULL;

extern int pg_lltoa(int64 value, char *a);

void *
MemoryContextAllocZero(MemoryContext context, Size size)
{
	(void) context;
	return calloc(1, size);
}

int
pg_lltoa(int64 value, char *a)
{
	return sprintf(a, "%lld", (long long) value);
}

#include "no_server.h"

static void
vector(const char *secret, const char *id, int64 timestamp, const char *body, size_t len,
	   const char *signature)
{
	OutboxKey key;
	char	  out[OUTBOX_SIGNATURE_LEN + 1];

	ok(outbox_secret_decode(secret, &key), "the secret of a vector", secret, "");

	/* Signs twice, because the key is prepared already the second time. */
	for (int i = 0; i < 2; i++)
	{
		memset(out, '!', sizeof(out));
		outbox_sign(&key, id, strlen(id), timestamp, body, len, out);
		ok(memcmp(out, signature, OUTBOX_SIGNATURE_LEN) == 0 &&
			   strlen(signature) == OUTBOX_SIGNATURE_LEN,
		   "signature", signature, "");
		ok(out[OUTBOX_SIGNATURE_LEN] == '!', "no byte more", "", "");
	}
}

static void
secret(const char *text, bool valid)
{
	OutboxKey key;

	ok(outbox_secret_decode(text, &key) == valid, valid ? "secret" : "no secret", text,
	   "");
}

/* Keys with the same first bytes share a place among the prepared keys. */
static void
colliding_keys(void)
{
	OutboxKey		 a = {.len = 32};
	OutboxKey		 b = {.len = 33};
	OutboxKey		 c = {.len = 32};
	char			 first[3][OUTBOX_SIGNATURE_LEN];
	char			 again[OUTBOX_SIGNATURE_LEN];
	const OutboxKey *keys[] = {&a, &b, &c};
	bool			 same = true;

	c.bytes[31] = 1;
	for (int i = 0; i < 3; i++)
		outbox_sign(keys[i], "id", 2, 1, "x", 1, first[i]);
	for (int i = 0; i < 6; i++)
	{
		outbox_sign(keys[i % 3], "id", 2, 1, "x", 1, again);
		same = same && memcmp(again, first[i % 3], sizeof(again)) == 0;
	}
	ok(same, "keys that collide do not mix", "", "");
	ok(memcmp(first[0], first[2], sizeof(again)) != 0,
	   "keys that differ in the last byte", "", "");
}

int
main(void)
{
	char *made = outbox_secret_generate();
	char *other = outbox_secret_generate();

	vector("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek",
		   1614265330, "{\"test\": 2432232314}", 20,
		   "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
	vector("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX",
		   "01980a5c-7d2e-7c3a-9f41-5b6c7d8e9f01", 1700000000, "", 0,
		   "v1,vEjucOszgS5ZtW/qFRdX8FILy3cnXbitENojisTIuXI=");
	vector(
		"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
		"01980a5c-7d2e-7c3a-9f41-5b6c7d8e9f01", 1760000000,
		"{\"type\":\"order.created\",\"timestamp\":\"2026-01-02T03:04:05.678901Z\",\"data\":{\"name\":\"Zo\xc3\xab\"}}",
		89, "v1,58cNt55ix2Zr9H6cw275si3QGqKY1KqlVPgJTHY/G3k=");
	vector(
		"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==",
		"01980a5c-7d2e-7c3a-9f41-5b6c7d8e9f01", 1760000001, "\0\xff\0", 3,
		"v1,4W2fgXzAN5nMxM51pBRjcSdtJCNGgvwUSclr/F0GUf0=");
	colliding_keys();

	secret(made, true);
	ok(strlen(made) == strlen(OUTBOX_SECRET_PREFIX) + 44, "32 random bytes", made, "");
	ok(strcmp(made, other) != 0, "another one each time", made, other);

	secret("", false);
	secret("whsec_", false);
	secret("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", false);
	secret("WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw=", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZ Io2LaLaSwAA", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa-_", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!", false);

	/* 23 and 65 bytes, and bits behind the end that a decoder drops */
	secret("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRY=", false);
	secret(
		"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0A=",
		false);
	secret("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9=", false);

	return done_testing();
}
