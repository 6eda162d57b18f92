#ifndef OUTBOX_EMIT_TOPICS_H
#define OUTBOX_EMIT_TOPICS_H

#include "utils/array.h"

/* True if it is known that no role is bound.  It is asked first, because it costs nothing. */
extern bool outbox_emit_topics_none;

/*
 * has_privs_of_role(): the roles whose rights it has; is_member_of_role(): that it is a member
 * of, as of all that it can become.
 */
typedef bool (*OutboxRoleTest)(Oid member, Oid role);

/*
 * True if the role may emit this topic: none of its roles is bound to patterns, or one of
 * these patterns matches.  NULL: true if it may emit all topics.
 */
extern bool outbox_emit_topics_allow(Oid role, OutboxRoleTest test, const char *topic,
									 size_t len);

/* True if one of the patterns, which are text[], matches.  NULLs match nothing. */
extern bool outbox_topic_in_array(const char *topic, size_t len, ArrayType *patterns);

#endif /* OUTBOX_EMIT_TOPICS_H */
