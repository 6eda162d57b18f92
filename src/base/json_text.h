#ifndef OUTBOX_JSON_TEXT_H
#define OUTBOX_JSON_TEXT_H

#include "base/outbox.h"

#include "lib/stringinfo.h"
#include "utils/jsonb.h"

/*
 * Appends the same text as a cast of 'jb' to text.  Leaves the text of each numeric
 * in the current memory context.
 */
extern void outbox_json_text(StringInfo text, Jsonb *jb);

#endif /* OUTBOX_JSON_TEXT_H */
