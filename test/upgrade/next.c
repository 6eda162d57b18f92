/*
 * next.c
 *	  What a version 1.1 could add to the library: a function whose contract has
 *	  changed, with a new symbol beside the old one.  It is part of a library that
 *	  only the test of upgrades builds.
 */
#include "base/outbox.h"

#include "fmgr.h"
#include "utils/builtins.h"

#include "emit/emit.h"
#include "base/version.h"

/* emit(text, jsonb, …): if there is no key, the topic is the key. */
OUTBOX_FUNCTION(outbox_emit_jsonb_1_1, 9)
{
	OutboxNewEvent e = {0};

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("topic and payload must not be null")));
	e.topic = PG_GETARG_TEXT_PP(0);
	e.payload = PG_GETARG_JSONB_P(1);
	e.key = PG_ARGISNULL(2) ? e.topic : PG_GETARG_TEXT_PP(2);
	PG_RETURN_UUID_P(outbox_emit(&e));
}

/* emit_note(topic, note): a new function. */
OUTBOX_FUNCTION(outbox_emit_note_1_1, 2)
{
	OutboxNewEvent e = {0};

	e.topic = PG_GETARG_TEXT_PP(0);
	e.body = (bytea *) PG_GETARG_TEXT_PP(1);
	e.content_type = cstring_to_text("text/plain");
	PG_RETURN_UUID_P(outbox_emit(&e));
}
