/*
 * emit_topics.h
 *	  Which topics a role may emit.
 */
#ifndef OUTBOX_EMIT_TOPICS_H
#define OUTBOX_EMIT_TOPICS_H

/*
 * True if the role may emit this topic: no role whose rights it has is bound to patterns, or
 * one of these patterns matches.
 */
extern bool outbox_emit_topics_allow(Oid role, const char *topic, size_t len);

#endif /* OUTBOX_EMIT_TOPICS_H */
