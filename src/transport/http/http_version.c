/*
 * http_version.c
 *	  Owns which version of HTTP a request over TLS speaks.
 *
 * With libcurl, HTTP/1.1 delivers more requests per second than HTTP/2.  HTTP/2 also
 * gives a receiver many more ways to keep the worker busy.  So HTTP/2 is spoken only if
 * the endpoint's config asks for it.
 */
#include "transport/http/http_internal.h"

#define OPTION "http_version"

/* Returns false if the text is no version. */
static bool
parse(const char *text, bool *two)
{
	*two = strcmp(text, "2") == 0;
	return *two || strcmp(text, "auto") == 0 || strcmp(text, "1.1") == 0;
}

/* The config of a URL that was sealed when it was checked may have any text. */
bool
outbox_http_wants_2(const OutboxTarget *target)
{
	const char *value = outbox_http_option(target, OPTION);
	bool		two = false;

	return value && parse(value, &two) && two;
}

const char *
outbox_http_version_problem(const OutboxTarget *target, const char **hint)
{
	const char *value = outbox_http_option(target, OPTION);
	bool		two;

	if (value == NULL)
		return NULL;
	if (!parse(value, &two))
	{
		*hint = "Use auto, 1.1 or 2.";
		return OPTION " is no version of HTTP that can be chosen";
	}
	if (two && strncasecmp(target->url, "https:", 6) != 0)
	{
		*hint = "Use https, or leave " OPTION " out.";
		return "HTTP/2 is spoken over https only";
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
