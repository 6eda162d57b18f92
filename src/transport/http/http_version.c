/*
 * http_version.c
 *	  Owns which version of HTTP a request over TLS speaks.
 *
 * With libcurl, HTTP/1.1 delivers more requests per second than HTTP/2.  So it is asked
 * for unless the endpoint's config says something else.  A receiver that speaks only
 * HTTP/2 refuses the handshake.  The same delivery is then tried with HTTP/2, and later
 * ones begin with it.
 */
#include "transport/http/http_internal.h"

#define OPTION "http_version"

/*
 * Hosts that have refused HTTP/1.1, by their hash.  A host that falls out of the table
 * costs one more handshake.
 */
#define HOSTS_KEPT 1024
static uint64 refused_by[HOSTS_KEPT];

const char *const outbox_http_config_names[] = {OPTION, NULL};

/* Returns false if the text is no version. */
static bool
parse(const char *text, OutboxHttpVersion *version)
{
	if (strcmp(text, "auto") == 0)
		*version = OUTBOX_HTTP_AUTO;
	else if (strcmp(text, "1.1") == 0)
		*version = OUTBOX_HTTP_1_1;
	else if (strcmp(text, "2") == 0)
		*version = OUTBOX_HTTP_2;
	else
		return false;
	return true;
}

/* The config of a URL that was sealed when it was checked may have any text. */
OutboxHttpVersion
outbox_http_version_wanted(const OutboxTarget *target)
{
	OutboxHttpVersion version = OUTBOX_HTTP_AUTO;

	for (int i = 0; i < target->nconfig; i++)
		if (strcmp(target->config[i].name, OPTION) == 0)
			(void) parse(target->config[i].value, &version);
	return version;
}

const char *
outbox_http_check_target(const OutboxTarget *target, const char **hint,
						 const char **notice)
{
	(void) notice;
	for (int i = 0; i < target->nconfig; i++)
	{
		OutboxHttpVersion version;

		if (strcmp(target->config[i].name, OPTION) != 0)
			continue;
		if (!parse(target->config[i].value, &version))
		{
			*hint = "Use auto, 1.1 or 2.";
			return OPTION " is no version of HTTP that can be chosen";
		}
		if (version == OUTBOX_HTTP_2 && strncasecmp(target->url, "https:", 6) != 0)
		{
			*hint = "Use https, or leave " OPTION " out.";
			return "HTTP/2 is spoken over https only";
		}
	}
	return NULL;
}

/*
 * True if libcurl's text says that the receiver has sent the TLS alert
 * no_application_protocol (120).  The TLS library may not have a name for it.
 */
bool
outbox_http_refuses_version(const char *text)
{
	return strstr(text, "no application protocol") != NULL ||
		strstr(text, "reason(1120)") != NULL ||
		strstr(text, "No supported application protocol") != NULL;
}

void
outbox_http_note_refusal(uint64 host)
{
	refused_by[host % HOSTS_KEPT] = host;
}

bool
outbox_http_has_refused(uint64 host)
{
	return refused_by[host % HOSTS_KEPT] == host;
}
