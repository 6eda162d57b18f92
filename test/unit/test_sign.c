/*
 * test_sign.c
 *	  Signatures and secrets are those of the test vectors in doc/receiving.md (TAP).
 *
 * links: src/format/profile.c src/format/signature.c src/base/names.c
 */
#include "base/outbox.h"

#include "base/encoding.h"
#include "format/profile.h"
#include "tap.h"

#include "no_signing.h"
#include "no_server.h"

static void
vector(const char *secret, const char *id, int64 timestamp, const char *body, size_t len,
	   const char *signature)
{
	OutboxKey key;
	char	  out[OUTBOX_SIGNATURES_MAX];
	size_t	  n;

	ok(outbox_secret_decode(secret, OUTBOX_SECRET_BYTES, &key), "the secret of a vector",
	   secret, "");

	/* Signs twice, because the key is prepared already the second time. */
	for (int i = 0; i < 2; i++)
	{
		memset(out, '!', sizeof(out));
		n = outbox_profile_sign(&outbox_profile_standard, &key, 1, id, strlen(id),
								timestamp, body, len, out);
		ok(n == strlen(signature) && memcmp(out, signature, n) == 0, "signature",
		   signature, "");
		ok(out[n] == '!', "no byte more", "", "");
	}
}

static void
secret(const char *text, bool valid)
{
	OutboxKey key;

	ok(outbox_secret_decode(text, OUTBOX_SECRET_BYTES, &key) == valid,
	   valid ? "secret" : "no secret", text, "");
}

/* Keys with the same first bytes share a place among the prepared keys. */
static void
colliding_keys(void)
{
	OutboxKey		 a = {.len = 32};
	OutboxKey		 b = {.len = 33};
	OutboxKey		 c = {.len = 32};
	char			 first[3][OUTBOX_SIGNATURE_MAX] = {""};
	char			 again[OUTBOX_SIGNATURE_MAX] = "";
	const OutboxKey *keys[] = {&a, &b, &c};
	bool			 same = true;

	c.bytes[31] = 1;
	for (int i = 0; i < 3; i++)
		(void) outbox_sign(keys[i], OUTBOX_HASH_SHA256, false, "id", 2, "x", 1, first[i]);
	for (int i = 0; i < 6; i++)
	{
		(void) outbox_sign(keys[i % 3], OUTBOX_HASH_SHA256, false, "id", 2, "x", 1,
						   again);
		same = same && memcmp(again, first[i % 3], sizeof(again)) == 0;
	}
	ok(same, "keys that collide do not mix", "", "");
	ok(memcmp(first[0], first[2], sizeof(again)) != 0,
	   "keys that differ in the last byte", "", "");
}

/* RFC 4231 and RFC 2202: a key that is longer than a block, and the other hashes. */
static void
digest(OutboxHash hash, const char *key_byte, int key_len, const char *text,
	   const char *expected)
{
	OutboxKey key = {.len = key_len};
	char	  out[OUTBOX_SIGNATURE_MAX + 1] = "";

	memset(key.bytes, *key_byte, key_len);
	out[outbox_sign(&key, hash, true, text, 3, text + 3, strlen(text) - 3, out)] = '\0';
	ok(strcmp(out, expected) == 0, "digest", out, expected);
}

static void
signs(const char *name, int nkeys, const char *expected)
{
	OutboxKey keys[2];
	char	  out[OUTBOX_SIGNATURES_MAX + 1];
	size_t	  len;

	(void) outbox_secret_decode("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
								OUTBOX_SECRET_TEXT, &keys[0]);
	keys[1] = (OutboxKey){.len = 5, .bytes = "other"};
	len = outbox_profile_sign(outbox_profile_find(name), keys, nkeys, "id", 2, 1614265330,
							  "{}", 2, out);
	out[len] = '\0';
	ok(strcmp(out, expected) == 0, name, out, expected);
}

/* Whether config may have the entry. */
static void
entry(const char *name, const char *value, bool valid)
{
	OutboxProfile p = outbox_profile_standard;
	const char	 *hint = NULL;
	const char	 *problem = outbox_profile_set(&p, name, value, &hint);

	ok((problem == NULL) == valid && (valid || hint), name, value,
	   problem ? problem : "");
}

static void
entries(void)
{
	char long_text[200];

	memset(long_text, 'x', sizeof(long_text));
	long_text[sizeof(long_text) - 1] = '\0';
	entry("http_version", "anything", true);
	entry("signature_header", "X-Signature", true);
	entry("signature_header", "", true);
	entry("signature_header", "webhook-signature", true);
	entry("signature_header", "X Signature", false);
	entry("signature_header", "X:", false);
	entry("signature_header", "a\r\nb", false);
	entry("id_header", "Host", false);
	entry("id_header", "content-length", false);
	entry("id_header", "Transfer_Encoding", false);
	entry("id_header", "outbox-topic", false);
	entry("id_header", "ce-id", false);
	entry("id_header", "Authorization", false);
	entry("type_header", "Content-Type", false);
	entry("timestamp_header", long_text, false);
	entry("signed", "{body}", true);
	entry("signed", "{timestamp}.{id}.{body}", true);
	entry("signed", "{body}.{id}", false);
	entry("signed", "{id}", false);
	entry("signed", "", false);
	entry("signed", "{id}{id}{body}", false);
	entry("signed", "{body}{body}", false);
	entry("signed", "{signature}{body}", false);
	entry("signed", "{x}{body}", false);
	entry("signed", "{{body}", false);
	entry("signature_value", "sha512={signature}", true);
	entry("signature_value", "t={timestamp},id={id},v1={signature}", true);
	entry("signature_value", "v1", false);
	entry("signature_value", "{signature}{signature}", false);
	entry("signature_value", "{signature}{body}", false);
	entry("signature_value", "{signature}\n", false);
	entry("signature_value", "\xc3\xbc{signature}", false);
	entry("signature_value", long_text, false);
	entry("signature_next", "", true);
	entry("signature_next", ",v2={signature}", true);
	entry("signature_hash", "sha1", true);
	entry("signature_hash", "md5", false);
	entry("signature_encoding", "hex", true);
	entry("signature_encoding", "base32", false);
	entry("signature_key", "text", true);
	entry("signature_key", "", false);
	entry("outbox_headers", "all", true);
	entry("outbox_headers", "none", true);
	entry("outbox_headers", "topic,idempotency-key", true);
	entry("outbox_headers", "all,sequence", true);
	entry("outbox_headers", "topic, type", false);
	entry("outbox_headers", "id", false);
	entry("user_agent", "Shop/2 (+https://shop.example/webhooks)", true);
	entry("user_agent", "", false);
	entry("user_agent", "a\tb", false);
	entry("user_agent", long_text, false);
	entry("query", "t={topic}&k={key}&a=b%20c", true);
	entry("query", "", false);
	entry("query", "t={topic}&t={topic}", false);
	entry("query", "t={payload}", false);
	entry("query", "a b", false);
	entry("query", "a#b", false);
	entry("query", "a%2", false);
	entry("query", "a\"b", false);
	entry("query", "t={to%ic}", false);
}

static void
names_of_headers(void)
{
	OutboxProfile p = outbox_profile_standard;
	const char	 *hint = NULL;

	ok(outbox_profile_check(&p, &hint) == NULL, "the standard", "", "");
	(void) outbox_profile_set(&p, "id_header", "WEBHOOK-SIGNATURE", &hint);
	ok(outbox_profile_check(&p, &hint) != NULL && hint, "the same name twice", "", "");
	ok(outbox_profile_has_header(&p, "webhook-timestamp", 17), "its header", "", "");
	ok(!outbox_profile_has_header(&p, "webhook-id", 10), "no header of it", "", "");
	ok(outbox_profile_find("gitlab") == NULL, "no profile", "", "");
}

static void
queries(void)
{
	OutboxProfile	 p = outbox_profile_standard;
	OutboxQueryValue values[] = {{"{topic}", "a.b", 3}, {"{key}", NULL, 0}};
	const char		*hint = NULL;
	char			 out[100];
	size_t			 len;

	(void) outbox_profile_set(&p, "query", "k={key}&t={topic}&x=1", &hint);
	ok(outbox_profile_query_size(&p, values, 2) <= sizeof(out), "its size", "", "");
	len = outbox_profile_query(&p, values, 2, out);
	out[len] = '\0';
	ok(strcmp(out, "k=&t=a.b&x=1") == 0, "a query", out, "");
}

int
main(void)
{
	char *made = outbox_secret_generate(false);
	char *other = outbox_secret_generate(false);

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
	digest(OUTBOX_HASH_SHA512, "\x0b", 20, "Hi There",
		   "87aa7cdea5ef619d4ff0b4241a1d6cb02379f4e2ce4ec2787ad0b30545e17cde"
		   "daa833b7d6b8a702038b274eaea3f4e4be9d914eeb61f1702e696c203a126854");
	digest(OUTBOX_HASH_SHA1, "\x0b", 20, "Hi There",
		   "b617318655057264e28bc0b6fb378c8ef146be00");
	digest(OUTBOX_HASH_SHA256, "\xaa", 80,
		   "Test Using Larger Than Block-Size Key - Hash Key First",
		   "6953025ed96f0c09f80a96f78e6538dbe2e7b820e3dd970e7ddd39091b32352f");
	signs(
		"stripe", 1,
		"t=1614265330,v1=f0350121c22e0191dba7cbf90fa37bdb0dcf44bb6e9a1e1ef2e47d6191282643");
	signs(
		"stripe", 2,
		"t=1614265330,v1=f0350121c22e0191dba7cbf90fa37bdb0dcf44bb6e9a1e1ef2e47d6191282643,v1=4282da208b84382f1346b21167a3b5cc6151f77e380a925466f1d4392f957b64");
	signs("github", 2,
		  "sha256=6cbbcdf2c8016ca85b50543b19e8e121ef16137967bdfa3ce660972922bafaeb");
	signs("slack", 1,
		  "v0=ca8616d093895caed6dec6eb44556d6d4dfef0967292325ca7600a55a0e170c0");
	signs("shopify", 1, "bLvN8sgBbKhbUFQ7GejhIe8WE3lnvfo85mCXKSK6+us=");
	signs("svix", 1, "v1,uohNhnoEAMHOgM3XG+weoNhrc/tZ6UWa3kWUl2P0j1w=");
	entries();
	names_of_headers();
	queries();

	secret(made, true);
	ok(strlen(made) == strlen(OUTBOX_SECRET_PREFIX) + 44, "32 random bytes", made, "");
	ok(strcmp(made, other) != 0, "another one each time", made, other);

	secret("", false);
	secret("whsec_", false);
	secret("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", true);
	secret("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8", true);
	secret("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9", false);
	secret("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", false);
	secret("WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw=", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZ Io2LaLaSwAA", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa-_", false);
	secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!", false);

	/* 23, 75 and 76 bytes, and bits behind the end that a decoder drops */
	secret("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRY=", false);
	secret(
		"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0BBQkNERUZHSElK",
		true);
	secret(
		"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0BBQkNERUZHSElKSw==",
		false);
	secret("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9=", false);

	pfree(made);
	pfree(other);
	return done_testing();
}
