/*
 * http_url.c
 *	  Owns the texts around requests: URLs and Retry-After.
 *
 * Nothing here needs a worker or the network, so any backend can check an endpoint.
 */
#include "transport/http/http.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <strings.h>

#include "base/names.h"
#include "transport/host.h"
#include "transport/libcurl.h"

/*
 * A name with letters outside ASCII is looked up in another form.  That form may be an
 * address.
 */
#if LIBCURL_VERSION_NUM >= 0x075800
#define AS_LOOKED_UP CURLU_PUNYCODE
#else
#define AS_LOOKED_UP 0
#endif

#define PORT_COMPLAINT "the URL's port is not a number from 1 to 65535"
#define PORT_HINT "Write the port as a number from 1 to 65535, or leave it out."

/* No receiver means a longer time.  In microseconds, it fits into 64 bits. */
#define RETRY_AFTER_MAX PG_INT32_MAX

/*
 * RFC 9110, 10.2.3: seconds, or one of the three forms of a date.  curl_getdate()
 * reads all of them, but also "20260101" or "Mon", so the value is checked before.  A
 * date in the past gives 0.
 */
int64
outbox_http_retry_after(const char *value, size_t len, int64 now)
{
	char   text[64];
	time_t date;
	size_t digits = 0;
	int64  seconds = 0;

	value = outbox_header_trimmed(value, len, &len);
	if (len == 0)
		return -1;

	while (digits < len && value[digits] >= '0' && value[digits] <= '9')
	{
		if (seconds < RETRY_AFTER_MAX)
			seconds = seconds * 10 + (value[digits] - '0');
		digits++;
	}
	if (digits == len)
		return Min(seconds, RETRY_AFTER_MAX);

	if (len >= sizeof(text) || memchr(value, '\0', len) ||
		memchr(value, ':', len) == NULL || memchr(value, ' ', len) == NULL ||
		!((value[0] | 0x20) >= 'a' && (value[0] | 0x20) <= 'z'))
		return -1;
	memcpy(text, value, len);
	text[len] = '\0';
	date = curl_getdate(text, NULL);
	if (date == (time_t) -1)
		return -1;
	if ((int64) date <= now)
		return 0;
	return Min((int64) date - now, RETRY_AFTER_MAX);
}

/* True if the text has a space or a control character.  A URL must not have them. */
static bool
has_odd_byte(const char *text)
{
	return strchr(text, ' ') || outbox_header_value_problem(text, strlen(text));
}

/* A fragment is not sent. */
static bool
has_foreign_query(const char *url)
{
	for (const char *p = url + strcspn(url, "?#"); *p && *p != '#'; p++)
		if ((unsigned char) *p >= 0x80)
			return true;
	return false;
}

/* False of http and https with one slash or three, which libcurl takes for two. */
static bool
has_two_slashes(const char *url)
{
	const char *slashes = url + strcspn(url, ":");

	return (strncasecmp(url, "http:", 5) != 0 && strncasecmp(url, "https:", 6) != 0) ||
		(strncmp(slashes, "://", 3) == 0 && slashes[3] != '/');
}

/* True if the URL has a port, and it is 0. */
static bool
has_port_zero(CURLU *url)
{
	char *port = NULL;
	bool  zero = curl_url_get(url, CURLUPART_PORT, &port, 0) == CURLUE_OK &&
		atoi(port) == 0;

	curl_free(port);
	return zero;
}

/* Checks a URL that could be parsed. */
static const char *
check_parsed(CURLU *url, const char **hint)
{
	const char *complaint = NULL;
	char	   *scheme = NULL;
	char	   *host = NULL;
	char	   *user = NULL;
	bool		plain = false;

	if (curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
		(!(plain = strcmp(scheme, "http") == 0) && strcmp(scheme, "https") != 0))
	{
		*hint = "Use https, or http to an address in outbox.allowed_networks.";
		complaint = "the URL's scheme is neither https nor http";
	}
	else if (curl_url_get(url, CURLUPART_HOST, &host, AS_LOOKED_UP) != CURLUE_OK)
	{
		*hint =
			"Write the URL as https://host/path, and letters outside ASCII in the ASCII form of the name (xn--...).";
		complaint = "the URL has no host, or none that can be looked up";
	}
	else if (curl_url_get(url, CURLUPART_USER, &user, 0) == CURLUE_OK ||
			 curl_url_get(url, CURLUPART_PASSWORD, &user, 0) == CURLUE_OK)
	{
		*hint = "Put credentials into the endpoint's headers, for example Authorization.";
		complaint = "the URL contains a user name or a password";
	}
	else if (has_port_zero(url))
	{
		*hint = PORT_HINT;
		complaint = PORT_COMPLAINT;
	}
	else
		complaint = outbox_host_judge(host, plain ? "http" : NULL, hint);

	curl_free(scheme);
	curl_free(host);
	curl_free(user);
	return complaint;
}

const char *
outbox_http_check_url(const char *url, const char **hint)
{
	const char *complaint;
	CURLU	   *parsed;

	*hint = NULL;
	if (has_odd_byte(url))
	{
		*hint = "Percent-encode it, for example %20 for a space.";
		return "the URL contains a space or a control character";
	}

	/* RFC 3986 has no place for these, and each library reads "\\" in its own way. */
	if (url[strcspn(url, "<>\"\\`")] != '\0')
	{
		*hint =
			"Percent-encode it, for example %3C for <. A place that stands in < and > has to be filled in.";
		return "the URL contains a quote, a backslash, < or >";
	}

	/* libcurl encodes the path, but sends the query as it is. */
	if (has_foreign_query(url))
	{
		*hint = "Percent-encode it as UTF-8, for example %C3%A9 for an e with an acute.";
		return "the URL's query has a character outside ASCII";
	}

	if (!has_two_slashes(url))
	{
		*hint = "Write the URL as https://host/path.";
		return "the URL has no host";
	}

	parsed = curl_url();
	if (parsed == NULL)
	{
		*hint = "Try again.";
		return "out of memory while the URL was checked";
	}
	switch (curl_url_set(parsed, CURLUPART_URL, url, 0))
	{
		case CURLUE_OK:
			complaint = check_parsed(parsed, hint);
			break;
		case CURLUE_UNSUPPORTED_SCHEME:
			*hint = "Use https, or http to an address in outbox.allowed_networks.";
			complaint = "the URL's scheme is neither https nor http";
			break;
		case CURLUE_BAD_PORT_NUMBER:
			*hint = PORT_HINT;
			complaint = PORT_COMPLAINT;
			break;
		default:
			*hint = "Write the URL as https://host/path.";
			complaint = "this is not a URL with a scheme and a host";
			break;
	}
	curl_url_cleanup(parsed);
	return complaint;
}

const char *
outbox_http_split_url(struct Curl_URL *url, int default_port, char *host, size_t size,
					  int *port)
{
	char		  *part = NULL;
	struct in_addr v4;
	bool		   fits;

	if (curl_url_get(url, CURLUPART_PORT, &part, default_port ? 0 : CURLU_DEFAULT_PORT) ==
		CURLUE_OK)
		*port = atoi(part);
	else
		*port = default_port;
	curl_free(part);
	part = NULL;
	if (curl_url_get(url, CURLUPART_HOST, &part, AS_LOOKED_UP) != CURLUE_OK)
		return "the host's name cannot be looked up";
	if (part[0] == '[' || inet_pton(AF_INET, part, &v4) == 1)
		part[0] = '\0';
	else if (!outbox_host_is_name(part))
	{
		curl_free(part);
		return "the host's name cannot be looked up";
	}
	fits = strlcpy(host, part, size) < size;
	curl_free(part);
	return fits ? NULL : "the host's name is too long";
}

void
outbox_http_hide_host(char *text, const char *url)
{
	CURLU *parsed = curl_url();
	char  *host = NULL;

	if (parsed && curl_url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK &&
		curl_url_get(parsed, CURLUPART_HOST, &host, 0) == CURLUE_OK && host[0])
	{
		size_t len = strlen(host);

		for (char *p = text; (p = strcasestr(p, host)) != NULL; p++)
		{
			*p = '*';
			memmove(p + 1, p + len, strlen(p + len) + 1);
		}
	}
	curl_free(host);
	curl_url_cleanup(parsed);
}

/*
 * If libcurl cannot decode the proxy's user or password, it connects without the
 * proxy.
 */
const char *
outbox_http_check_proxy(const char *url)
{
	CURLU	   *parsed = curl_url();
	const char *complaint = NULL;
	const char *hint;
	char	   *part = NULL;
	char		bare[OUTBOX_HOST_SIZE];

	if (parsed == NULL || has_odd_byte(url) || !has_two_slashes(url) ||
		curl_url_set(parsed, CURLUPART_URL, url, 0) != CURLUE_OK ||
		curl_url_get(parsed, CURLUPART_SCHEME, &part, 0) != CURLUE_OK ||
		(strcmp(part, "http") != 0 && strcmp(part, "https") != 0) ||
		has_port_zero(parsed))
		complaint = "It is not a URL with the scheme http or https.";
	curl_free(part);
	part = NULL;
	if (complaint == NULL &&
		(curl_url_get(parsed, CURLUPART_HOST, &part, AS_LOOKED_UP) != CURLUE_OK ||
		 outbox_host_check(part, bare, &hint) != NULL))
		complaint = "Its host is neither a name that can be looked up nor an address.";
	curl_free(part);
	for (int i = 0; complaint == NULL && i < 2; i++)
	{
		CURLUcode code = curl_url_get(parsed,
									  i == 0 ? CURLUPART_USER : CURLUPART_PASSWORD, &part,
									  CURLU_URLDECODE);

		if (code == CURLUE_NO_USER || code == CURLUE_NO_PASSWORD)
			continue;
		if (code != CURLUE_OK)
			complaint = "Its user or password has a control character.";
		if (code == CURLUE_OK)
			curl_free(part);
	}
	curl_url_cleanup(parsed);
	return complaint;
}
