/*
 * json_members.h
 *	  The members of a jsonb that is an object, one after the other.
 */
#ifndef OUTBOX_JSON_MEMBERS_H
#define OUTBOX_JSON_MEMBERS_H

#include "base/outbox.h"

#include "utils/jsonb.h"

typedef struct OutboxMembers
{
	JsonbIterator *it;
	JsonbValue	   name;
	JsonbValue	   value;
} OutboxMembers;

static inline OutboxMembers
outbox_members(Jsonb *object)
{
	return (OutboxMembers){.it = JsonbIteratorInit(&object->root)};
}

/* False: there is no other member, and the iterator is freed. */
static inline bool
outbox_members_next(OutboxMembers *m)
{
	JsonbIteratorToken token;

	while ((token = JsonbIteratorNext(&m->it, &m->value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			m->name = m->value;
		else if (token == WJB_VALUE)
			return true;
	}
	return false;
}

#endif /* OUTBOX_JSON_MEMBERS_H */
