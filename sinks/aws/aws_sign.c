/*
 * aws_sign.c
 *	  Owns copies of keys, and signatures that are no part of a request.
 *
 * libcurl signs requests, and does not give a signature away.  This is Signature Version 4
 * as AWS describes it for parameters of a URL.
 */
#include "aws_sign.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

#include "../sink.h"

#define SHA256_LEN 32
#define HEX_LEN (2 * SHA256_LEN)

/* That of a request without a body */
#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

void
aws_keys_wipe(AwsKeys *keys)
{
	outbox_wipe(&keys->access_key_id);
	outbox_wipe(&keys->secret_access_key);
	outbox_wipe(&keys->session_token);
}

/* Text that does not grow, so that growing leaves no part of it in memory. */
static AwsText
text_of(size_t size)
{
	AwsText t = {.data = malloc(size), .size = size};

	t.failed = t.data == NULL;
	return t;
}

static void
wipe_text(AwsText *t)
{
	if (t->data)
		explicit_bzero(t->data, t->size);
	aws_text_free(t);
}

static void
to_hex(const unsigned char *bytes, char *hex)
{
	for (int i = 0; i < SHA256_LEN; i++)
		snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
}

static bool
mac(const void *key, size_t len, const char *data, size_t data_len, unsigned char *out)
{
	unsigned n = 0;

	return HMAC(EVP_sha256(), key, (int) len, (const unsigned char *) data, data_len, out,
				&n) != NULL &&
		n == SHA256_LEN;
}

/* The signature of a text, with the key that is for this day, region and service. */
static bool
sign(const AwsKeys *keys, const char *day, const char *region, const char *service,
	 const char *text, char *hex)
{
	const char	 *parts[] = {day, region, service, "aws4_request", text};
	size_t		  len = strlen(keys->secret_access_key) + 4;
	char		 *first = malloc(len + 1);
	unsigned char key[SHA256_LEN];
	bool		  ok = first != NULL;

	if (first == NULL)
		return false;
	snprintf(first, len + 1, "AWS4%s", keys->secret_access_key);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		ok = ok &&
			mac(i == 0 ? (const void *) first : key, i == 0 ? len : sizeof(key), parts[i],
				strlen(parts[i]), key);
	outbox_wipe(&first);
	if (ok)
		to_hex(key, hex);
	explicit_bzero(key, sizeof(key));
	return ok;
}

static void
add_parameter(AwsText *url, const char *name, const char *value)
{
	aws_add_text(url, name);
	aws_add_percent(url, value, strlen(value));
}

/* As base64, with the other two digits that URLs have, and without '=' at the end. */
static char *
to_base64url(const AwsText *url)
{
	AwsText out = text_of((url->len + 2) / 3 * 4 + 1);
	size_t	len;

	aws_add_base64(&out, url->data, url->len);
	aws_add(&out, "", 1);
	if (out.failed || url->failed)
	{
		wipe_text(&out);
		return NULL;
	}
	for (len = out.len - 1; len > 0 && out.data[len - 1] == '='; len--)
		out.data[len - 1] = '\0';
	for (size_t i = 0; i < len; i++)
		out.data[i] = out.data[i] == '+' ? '-' : out.data[i] == '/' ? '_' : out.data[i];
	return out.data;
}

char *
aws_sign_msk(const AwsKeys *keys, const char *region, time_t now)
{
	static const char *const service = "kafka-cluster";
	const char				*session = keys->session_token;
	size_t					 size = 1024 + 3 * strlen(keys->access_key_id) +
		(session ? 3 * strlen(session) : 0);
	AwsText		  url = text_of(size);
	AwsText		  request = text_of(size);
	struct tm	  utc;
	char		  date[20];
	char		  day[10];
	char		  scope[100];
	char		  text[300];
	char		  hex[HEX_LEN + 1] = "";
	unsigned char digest[SHA256_LEN];
	unsigned	  n;
	size_t		  query;
	char		 *token;

	if (gmtime_r(&now, &utc) == NULL ||
		strftime(date, sizeof(date), "%Y%m%dT%H%M%SZ", &utc) == 0 ||
		strftime(day, sizeof(day), "%Y%m%d", &utc) == 0)
		url.failed = true;
	snprintf(scope, sizeof(scope), "%s/%s/%s/aws4_request", day, region, service);

	/* The parameters are in the order of their names, as they are signed. */
	aws_add_text(&url, "https://kafka.");
	aws_add_text(&url, region);
	aws_add_text(&url, ".amazonaws.com/?");
	query = url.len;
	add_parameter(&url, "Action=", "kafka-cluster:Connect");
	add_parameter(&url, "&X-Amz-Algorithm=", "AWS4-HMAC-SHA256");
	add_parameter(&url, "&X-Amz-Credential=", keys->access_key_id);
	add_parameter(&url, "%2F", scope);
	add_parameter(&url, "&X-Amz-Date=", date);
	aws_add_text(&url, "&X-Amz-Expires=");
	aws_add_number(&url, AWS_MSK_LIFETIME);
	if (session)
		add_parameter(&url, "&X-Amz-Security-Token=", session);
	add_parameter(&url, "&X-Amz-SignedHeaders=", "host");

	aws_add_text(&request, "GET\n/\n");
	aws_add(&request, url.data + query, url.len - query);
	aws_add_text(&request, "\nhost:kafka.");
	aws_add_text(&request, region);
	aws_add_text(&request, ".amazonaws.com\n\nhost\n" EMPTY_SHA256);
	if (!url.failed && !request.failed &&
		EVP_Digest(request.data, request.len, digest, &n, EVP_sha256(), NULL) == 1)
	{
		to_hex(digest, hex);
		snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s\n%s", date, scope, hex);
		url.failed = !sign(keys, day, region, service, text, hex);
	}
	else
		url.failed = true;
	add_parameter(&url, "&X-Amz-Signature=", hex);
	aws_add_text(&url, "&User-Agent=outbox");
	token = to_base64url(&url);
	wipe_text(&url);
	wipe_text(&request);
	return token;
}
