/*
 * test_pattern_trie.c
 *	  The trie of patterns finds what comparing each pattern with the topic finds, while
 *	  patterns come and go (TAP).  SEED repeats a run.
 *
 * links: src/endpoint/pattern_trie.c src/base/names.c
 */
#include "base/outbox.h"

#include <stdlib.h>
#include <time.h>

#include "base/names.h"
#include "endpoint/pattern_trie.h"
#include "tap.h"
#include "no_server.h"

#define ITEMS 3000
#define ROUNDS 20000

static size_t pieces; /* of memory in use */

void *
MemoryContextAlloc(MemoryContext cxt, Size size)
{
	(void) cxt;
	pieces++;
	return malloc(size);
}

void *
MemoryContextAllocZero(MemoryContext cxt, Size size)
{
	return memset(MemoryContextAlloc(cxt, size), 0, size);
}

void *
MemoryContextAllocExtended(MemoryContext cxt, Size size, int flags)
{
	(void) flags;
	return MemoryContextAllocZero(cxt, size);
}

char *
MemoryContextStrdup(MemoryContext cxt, const char *string)
{
	return strcpy(MemoryContextAlloc(cxt, strlen(string) + 1), string);
}

void
pfree(void *p)
{
	pieces--;
	free(p);
}

typedef struct Item
{
	OutboxPatternLink link;
	char			  pattern[64];
	bool			  added;
	int				  found;
} Item;

static Item items[ITEMS];

/* Few words, so that many patterns match. */
static void
make_text(char *text, bool pattern)
{
	static const char *const words[] = {"a", "b", "ab", "outbox", "c-1", "a"};
	static const char *const strange[] = {"", "*", "outbox", "a*"};
	int						 n = 1 + rand() % 5;

	*text = '\0';
	for (int i = 0; i < n; i++)
	{
		if (i > 0)
			strcat(text, ".");
		if (pattern && rand() % 3 == 0)
			strcat(text, "*");
		else if (!pattern && rand() % 20 == 0)
			strcat(text, strange[rand() % lengthof(strange)]);
		else
			strcat(text, words[rand() % lengthof(words)]);
	}
}

static void
found_item(void *arg, void *item)
{
	(void) arg;
	((Item *) item)->found++;
}

/* True if exactly those items are found, each once, whose pattern matches. */
static bool
finds(const OutboxPatternTrie *trie, const char *topic, int *nfound)
{
	bool same = true;

	for (int i = 0; i < ITEMS; i++)
		items[i].found = 0;
	outbox_pattern_trie_match(trie, topic, strlen(topic), found_item, NULL);
	for (int i = 0; i < ITEMS; i++)
	{
		char *pattern = items[i].pattern;
		bool  matches = items[i].added &&
			outbox_topic_in_list(topic, strlen(topic), &pattern, 1);

		if (items[i].found != matches)
		{
			printf("# %s is found %d times by %s\n", pattern, items[i].found, topic);
			same = false;
		}
		*nfound += items[i].found;
	}
	return same;
}

static void
change(OutboxPatternTrie *trie)
{
	Item *item = &items[rand() % ITEMS];

	if (item->added)
		outbox_pattern_trie_remove(trie, &item->link);
	else
	{
		make_text(item->pattern, true);
		outbox_pattern_trie_add(trie, item->pattern, &item->link, item);
	}
	item->added = !item->added;
}

int
main(void)
{
	const char		  *given = getenv("SEED");
	unsigned		   seed = given ? (unsigned) atoi(given) : (unsigned) time(NULL);
	OutboxPatternTrie *trie = outbox_pattern_trie_make(NULL);
	char			   topic[OUTBOX_MAX_TOPIC + 1];
	bool			   same = true;
	int				   nfound = 0;
	size_t			   before = pieces;

	printf("# SEED=%u\n", seed);
	srand(seed);
	for (int i = 0; i < ROUNDS && same; i++)
	{
		change(trie);
		if (i % 4 == 0)
		{
			make_text(topic, false);
			same = finds(trie, topic, &nfound);
		}
	}
	ok(same, "finds what a look at each pattern finds", "random", "");
	ok(nfound > ROUNDS, "and that is much", "random", "");

	memset(topic, '.', sizeof(topic) - 1);
	topic[sizeof(topic) - 1] = '\0';
	ok(finds(trie, topic, &nfound), "a topic of dots", "", "");
	ok(finds(trie, "", &nfound), "an empty topic", "", "");
	for (int i = 0; i < ITEMS; i++)
		if (items[i].added)
		{
			outbox_pattern_trie_remove(trie, &items[i].link);
			items[i].added = false;
		}
	ok(pieces == before, "nothing is left of patterns that are gone", "", "");

	memset(topic, 'a', sizeof(topic) - 1);
	strcpy(items[0].pattern, "a.*");
	outbox_pattern_trie_add(trie, topic, &items[0].link, &items[0]);
	nfound = 0;
	outbox_pattern_trie_match(trie, topic, strlen(topic), found_item, NULL);
	ok(items[0].found == 1, "the longest pattern", "", "");
	return done_testing();
}
