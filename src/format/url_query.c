/*
 * url_query.c
 *	  Owns the query that the URL of a request gets of its event.
 */
#include "base/outbox.h"

#include "base/encoding.h"
#include "format/url_query.h"

bool
outbox_url_query_add(OutboxHeaders *out, const OutboxProfile *profile, const char *id,
					 OutboxEvent *event, bool *added)
{
	const char		*type = event ? event->type : NULL;
	OutboxQueryValue values[] = {
		{.name = "{id}", .value = id},
		{.name = "{topic}", .value = event ? event->topic : NULL},
		{.name = "{type}",
		 .value = type ? type :
			 event	   ? event->topic :
						 NULL},
		{.name = "{key}", .value = event ? event->key : NULL},
		{.name = "{tenant}", .value = event ? event->tenant : NULL},
	};
	char *query;

	for (size_t i = 0; i < lengthof(values); i++)
	{
		if (values[i].value == NULL)
			continue;
		values[i].len = strlen(values[i].value);
		values[i].value = outbox_to_utf8(unconstify(char *, values[i].value),
										 &values[i].len);
		if (values[i].value == NULL)
			return false;
	}
	query = outbox_headers_query(out,
								 outbox_profile_query_size(profile, values,
														   lengthof(values)) +
									 1);
	*added &= query != NULL;
	if (query)
		query[outbox_profile_query(profile, values, lengthof(values), query)] = '\0';
	return true;
}
