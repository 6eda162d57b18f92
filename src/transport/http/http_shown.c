/*
 * http_shown.c
 *	  Owns the parts of a request that libcurl adds, for a request that is shown.
 */
#include "base/names.h"
#include "transport/http/http_internal.h"

#include <stdlib.h>

/*
 * Adds "Host" as libcurl writes it, and returns the path, encoded as libcurl encodes it,
 * with its query, malloc'd.
 */
static char *
take_url(CURLU *url, OutboxHeaders *out, bool *added)
{
	char  host[256];
	char *literal = NULL;
	char *given = NULL;
	char *path = NULL;
	char *query = NULL;
	char *target = NULL;
	int	  port;
	char  value[300];

	if (outbox_http_split_url(url, 0, host, sizeof(host), &port) == NULL &&
		(host[0] || curl_url_get(url, CURLUPART_HOST, &literal, 0) == CURLUE_OK) &&
		curl_url_get(url, CURLUPART_PATH, &path, CURLU_URLENCODE) == CURLUE_OK)
	{
		(void) curl_url_get(url, CURLUPART_PORT, &given, CURLU_NO_DEFAULT_PORT);
		(void) curl_url_get(url, CURLUPART_QUERY, &query, 0);
		snprintf(value, sizeof(value), "%s%s%s", literal ? literal : host,
				 given ? ":" : "", given ? given : "");
		*added &= outbox_headers_add(out, "Host", value, strlen(value));
		target = malloc(strlen(path) + (query ? strlen(query) : 0) + 2);
		if (target)
			sprintf(target, "%s%s%s", path, query ? "?" : "", query ? query : "");
	}
	curl_free(literal);
	curl_free(given);
	curl_free(path);
	curl_free(query);
	return target;
}

static bool
has_credential(const OutboxTarget *target, const char *name)
{
	return outbox_option_find(target->credentials, target->ncredentials, name) != NULL;
}

/* Then libcurl adds none. */
static bool
has_accept(const OutboxHeaders *h)
{
	for (int i = 0; i < h->nlines; i++)
		if (outbox_header_name_is(h->buf + h->lines[i].start, h->lines[i].name_len,
								  "Accept"))
			return true;
	return false;
}

char *
outbox_http_shown(const OutboxTarget *target, OutboxHeaders *out, size_t body_len)
{
	const char *method = outbox_http_method(target);
	const char *query = out->query ? out->buf + out->query : NULL;
	char	   *text = query ? outbox_http_url_with_query(target->url, query) :
							   strdup(target->url);
	CURLU	   *url = curl_url();
	char	   *path = NULL;
	char	   *line = NULL;
	char		length[32];
	bool		added = true;

	if (text && url && curl_url_set(url, CURLUPART_URL, text, 0) == CURLUE_OK)
		path = take_url(url, out, &added);
	if (has_credential(target, "username"))
		added &= outbox_headers_add(out, "Authorization", "Basic " OUTBOX_LEFT_OUT,
									strlen("Basic " OUTBOX_LEFT_OUT));
	else if (has_credential(target, "token") || has_credential(target, "client_secret"))
		added &= outbox_headers_add(out, "Authorization", "Bearer " OUTBOX_LEFT_OUT,
									strlen("Bearer " OUTBOX_LEFT_OUT));
	if (!has_accept(out))
		added &= outbox_headers_add(out, "Accept", "*/*", 3);
	added &= outbox_headers_add(out, "Content-Length", length,
								snprintf(length, sizeof(length), "%zu", body_len));
	if (path && added)
		line = psprintf("%s %s HTTP/%s", method ? method : "POST", path,
						outbox_http_wants_2(target) ? "2" : "1.1");
	free(path);
	free(text);
	curl_url_cleanup(url);
	return line;
}
