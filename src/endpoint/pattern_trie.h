#ifndef OUTBOX_PATTERN_TRIE_H
#define OUTBOX_PATTERN_TRIE_H

#include "lib/ilist.h"

struct OutboxPatternNode;

typedef struct OutboxPatternTrie OutboxPatternTrie;

/* A pattern in the trie.  It is the caller's memory. */
typedef struct OutboxPatternLink
{
	dlist_node				  node; /* on its trie node's list */
	struct OutboxPatternNode *at;	/* NULL: it matches no topic */
	void					 *item;
} OutboxPatternLink;

typedef void (*OutboxPatternMatched)(void *arg, void *item);

/* In a memory context, with which it goes. */
extern OutboxPatternTrie *outbox_pattern_trie_make(MemoryContext cxt);

/* The trie needs 'pattern' no longer than for the call. */
extern void outbox_pattern_trie_add(OutboxPatternTrie *trie, const char *pattern,
									OutboxPatternLink *link, void *item);
extern void outbox_pattern_trie_remove(OutboxPatternTrie *trie, OutboxPatternLink *link);

/*
 * Calls back with the item of each pattern that matches the topic, as
 * outbox_topic_matches() does.  Its cost grows with the topic's segments and the trie's
 * matches, and with nothing else in the trie.  The topic has at most OUTBOX_MAX_TOPIC
 * bytes.
 */
extern void outbox_pattern_trie_match(const OutboxPatternTrie *trie, const char *topic,
									  size_t len, OutboxPatternMatched matched,
									  void *arg);

#endif /* OUTBOX_PATTERN_TRIE_H */
