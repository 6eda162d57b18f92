/*
 * url.c
 *	  Fuzz target: URLs as create_endpoint gets them, addresses in any spelling.
 *	  The first byte says what outbox.allowed_networks is.
 *
 * links: src/transport/http/http_url.c src/base/names.c src/transport/host.c src/transport/address.c
 */
#include "transport/http/http.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>

#include "transport/address.h"
#include "fuzz.h"

static OutboxNetworks networks;

/* Checks again, with other code, what was accepted. */
static void
accepted(const char *url)
{
	CURLU	   *parsed = curl_url();
	char	   *scheme = NULL;
	char	   *host = NULL;
	char	   *user = NULL;
	char	   *whole = NULL;
	const char *hint;
	const char *why;
	union
	{
		struct sockaddr		sa;
		struct sockaddr_in	v4;
		struct sockaddr_in6 v6;
	} address;

	for (const unsigned char *p = (const unsigned char *) url; *p; p++)
		MUST(*p > 0x20 && *p != 0x7f);
	MUST(curl_url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK);
	MUST(curl_url_get(parsed, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK);
	MUST(curl_url_get(parsed, CURLUPART_HOST, &host, 0) == CURLUE_OK);
	MUST(host[0] != '\0');
	MUST(curl_url_get(parsed, CURLUPART_USER, &user, 0) != CURLUE_OK);
	MUST(strcmp(scheme, "https") == 0 || strcmp(scheme, "http") == 0);

	memset(&address, 0, sizeof(address));
	if (inet_aton(host, &address.v4.sin_addr))
		address.sa.sa_family = AF_INET;
	else if (host[0] == '[' && strchr(host, '%') == NULL)
	{
		host[strlen(host) - 1] = '\0';
		MUST(inet_pton(AF_INET6, host + 1, &address.v6.sin6_addr) == 1);
		address.sa.sa_family = AF_INET6;
	}
	if (address.sa.sa_family != 0)
	{
		OutboxAddressClass verdict = outbox_address_judge(&address.sa, &networks, &why);

		MUST(verdict == OUTBOX_ADDRESS_ALLOWED ||
			 (verdict == OUTBOX_ADDRESS_PUBLIC && strcmp(scheme, "https") == 0));
	}

	/* The URL as libcurl writes it is accepted, too. */
	if (curl_url_get(parsed, CURLUPART_URL, &whole, 0) == CURLUE_OK)
		MUST(outbox_http_check_url(whole, &hint) == NULL);

	curl_free(scheme);
	curl_free(host);
	curl_free(user);
	curl_free(whole);
	curl_url_cleanup(parsed);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *hint;
	const char *complaint;
	char	   *url;
	char		bad[64];

	if (size == 0)
		return 0;
	MUST(outbox_networks_parse(data[0] & 1 ?
								   "127.0.0.0/8, fd00::/8, ::ffff:10.0.0.0/104" :
								   "",
							   &networks, bad, sizeof(bad)));
	outbox_networks = &networks;
	url = fuzz_string(data + 1, size - 1);
	complaint = outbox_http_check_url(url, &hint);
	if (complaint == NULL)
		accepted(url);
	else
		MUST(complaint[0] && hint && hint[0]);
	free(url);
	return 0;
}
