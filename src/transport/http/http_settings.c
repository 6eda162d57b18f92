/*
 * http_settings.c
 *	  Owns the settings of the worker that requests use: the proxy, and when they were read.
 */
#include "base/settings.h"
#include "transport/http/http_internal.h"

#include <time.h>

OutboxHttpConfig outbox_http_config;

static struct timespec reloaded_at;

long
outbox_http_since_reload(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return now.tv_sec - reloaded_at.tv_sec - (now.tv_nsec < reloaded_at.tv_nsec);
}

/* Sets the proxy's name and port, as libcurl looks it up. */
static void
take_proxy(void)
{
	OutboxHttpConfig *s = &outbox_http_config;
	CURLU			 *parsed;
	bool			  ok;

	if (!s->use_proxy)
		return;
	parsed = curl_url();
	ok = parsed != NULL &&
		curl_url_set(parsed, CURLUPART_URL, outbox_proxy, 0) == CURLUE_OK &&
		outbox_http_split_url(parsed,
							  strncasecmp(outbox_proxy, "https:", 6) == 0 ? 443 : 1080,
							  s->proxy_host, sizeof(s->proxy_host),
							  &s->proxy_port) == NULL;
	if (!ok)
		strlcpy(s->proxy_host, "invalid", sizeof(s->proxy_host)); /* has no address */
	curl_url_cleanup(parsed);
}

void
outbox_http_first_settings(void)
{
	outbox_http_config.generation++;
	outbox_http_config.use_proxy = outbox_proxy && outbox_proxy[0];
	take_proxy();
}

void
outbox_http_reload_settings(void)
{
	clock_gettime(CLOCK_MONOTONIC_COARSE, &reloaded_at);
	outbox_http_first_settings();
}
