/*
 * pattern_trie.c
 *	  Owns the topic patterns of endpoints without a tenant, as a trie over their
 *	  segments.
 *
 * A node stands for the beginning of patterns, up to the end of a segment.  All nodes
 * are in one hash table by that text.  So a step to a child is one look-up, however many
 * children there are.
 */
#include "base/outbox.h"

#include "common/hashfn.h"

#include "base/names.h"
#include "endpoint/pattern_trie.h"

typedef struct OutboxPatternNode
{
	struct OutboxPatternNode *parent; /* NULL: it is the root */
	char					 *name;	  /* the text; of the root it is empty */
	int						  nchildren;
	dlist_head				  links; /* patterns that end here */
} OutboxPatternNode;

typedef struct NodeEntry
{
	const char		  *name;
	uint32			   hash;
	char			   status;
	OutboxPatternNode *node;
} NodeEntry;

#define SH_PREFIX nodes
#define SH_ELEMENT_TYPE NodeEntry
#define SH_KEY name
#include "base/string_hash.h"

struct OutboxPatternTrie
{
	MemoryContext	  cxt;
	nodes_hash		 *by_name; /* all nodes except the root */
	OutboxPatternNode root;
};

OutboxPatternTrie *
outbox_pattern_trie_make(MemoryContext cxt)
{
	OutboxPatternTrie *trie = MemoryContextAllocZero(cxt, sizeof(*trie));

	trie->cxt = cxt;
	trie->by_name = nodes_create(cxt, 64, NULL);
	dlist_init(&trie->root.links);
	return trie;
}

/* The child of 'parent' with this name, which is made if there is none. */
static OutboxPatternNode *
child_for(OutboxPatternTrie *trie, OutboxPatternNode *parent, const char *name)
{
	NodeEntry		  *entry = nodes_lookup(trie->by_name, name);
	OutboxPatternNode *node;
	bool			   found;

	if (entry)
		return entry->node;
	node = MemoryContextAllocZero(trie->cxt, sizeof(*node));
	node->parent = parent;
	node->name = MemoryContextStrdup(trie->cxt, name);
	dlist_init(&node->links);
	nodes_insert(trie->by_name, node->name, &found)->node = node;
	parent->nchildren++;
	return node;
}

void
outbox_pattern_trie_add(OutboxPatternTrie *trie, const char *pattern,
						OutboxPatternLink *link, void *item)
{
	OutboxPatternNode *node = &trie->root;
	char			   name[OUTBOX_MAX_TOPIC + 1];
	size_t			   len = strlen(pattern);

	link->item = item;
	link->at = NULL;
	if (len > OUTBOX_MAX_TOPIC)
		return;
	memcpy(name, pattern, len + 1);
	for (size_t i = 0; i <= len; i++)
		if (i == len || name[i] == '.')
		{
			name[i] = '\0';
			node = child_for(trie, node, name);
			name[i] = '.';
		}
	link->at = node;
	dlist_push_tail(&node->links, &link->node);
}

void
outbox_pattern_trie_remove(OutboxPatternTrie *trie, OutboxPatternLink *link)
{
	OutboxPatternNode *node = link->at;

	if (node == NULL)
		return;
	dlist_delete(&link->node);
	link->at = NULL;
	while (node->parent && node->nchildren == 0 && dlist_is_empty(&node->links))
	{
		OutboxPatternNode *parent = node->parent;

		(void) nodes_delete(trie->by_name, node->name);
		pfree(node->name);
		pfree(node);
		parent->nchildren--;
		node = parent;
	}
}

typedef struct Walk
{
	const OutboxPatternTrie *trie;
	const char				*topic;
	size_t					 len;
	OutboxPatternMatched	 matched;
	void					*arg;
	char					 name[OUTBOX_MAX_TOPIC + 1]; /* of the node */
} Walk;

static void
report(Walk *w, OutboxPatternNode *node)
{
	dlist_iter iter;

	dlist_foreach(iter, &node->links)
		w->matched(w->arg, dlist_container(OutboxPatternLink, node, iter.cur)->item);
}

/* The child of a node whose name has 'named' bytes. */
static OutboxPatternNode *
find_child(Walk *w, const OutboxPatternNode *node, size_t named, const char *segment,
		   size_t len, size_t *child_named)
{
	const NodeEntry *entry;
	size_t			 at = named + (node->parent ? 1 : 0);

	if (at + len > OUTBOX_MAX_TOPIC)
		return NULL;
	if (node->parent)
		w->name[named] = '.';
	memcpy(w->name + at, segment, len);
	w->name[at + len] = '\0';
	*child_named = at + len;
	entry = nodes_lookup(w->trie->by_name, w->name);
	return entry ? entry->node : NULL;
}

/*
 * Goes on from a node that matches the topic before 'at'.  A node whose last segment is
 * "*" matches the rest of the topic too, if a pattern ends there.
 */
static void
walk(Walk *w, OutboxPatternNode *node, size_t named, size_t at)
{
	const char		  *segment = w->topic + at;
	const char		  *dot = memchr(segment, '.', w->len - at);
	size_t			   end = dot ? (size_t) (dot - w->topic) : w->len;
	OutboxPatternNode *child;
	size_t			   child_named;

	if (node->nchildren == 0)
		return;
	if (at < w->len && (node->parent || !outbox_topic_reserved(w->topic, w->len)))
	{
		child = find_child(w, node, named, "*", 1, &child_named);
		if (child)
		{
			report(w, child);
			if (dot)
				walk(w, child, child_named, end + 1);
		}
	}
	if (end - at == 1 && *segment == '*')
		return; /* that was the same child */
	child = find_child(w, node, named, segment, end - at, &child_named);
	if (child == NULL)
		return;
	if (dot)
		walk(w, child, child_named, end + 1);
	else
		report(w, child);
}

void
outbox_pattern_trie_match(const OutboxPatternTrie *trie, const char *topic, size_t len,
						  OutboxPatternMatched matched, void *arg)
{
	Walk w = {.trie = trie, .topic = topic, .len = len, .matched = matched, .arg = arg};

	Assert(len <= OUTBOX_MAX_TOPIC);
	walk(&w, unconstify(OutboxPatternNode *, &trie->root), 0, 0);
}
