/*
 * test_seq_set.c
 *	  A packed set of numbers is read as it was written, is small, and other bytes are
 *	  refused (TAP).
 *
 * links: src/base/seq_set.c
 */
#include "base/seq_set.h"
#include "tap.h"
#include "no_server.h"

#define MOST 10000

static int64 seqs[MOST];
static uint8 bytes[OUTBOX_SEQ_SET_BYTES(MOST)];

/* Returns the size. */
static size_t
packs(const char *what, int n)
{
	size_t			size = outbox_seq_set_pack(seqs, n, bytes);
	OutboxSeqReader r = outbox_seq_set_open(bytes, size);
	int64			seq;
	int				found = 0;
	bool			same = true;

	while (outbox_seq_set_next(&r, &seq))
	{
		same = same && found < n && seq == seqs[found];
		found++;
	}
	ok(same && found == n && !r.broken, "is read as it was written", what, "");
	ok(size <= OUTBOX_SEQ_SET_BYTES(n), "has its room", what, "");
	return size;
}

/* 'n' numbers, each one of the next 'every'. */
static size_t
every(const char *what, int64 first, int n, int every)
{
	int64 next = first;

	for (int i = 0; i < n; i++)
	{
		seqs[i] = next + random() % every;
		next += every;
	}
	return packs(what, n);
}

/* So many numbers come before what is wrong. */
static void
refuses(const char *what, int before, const char *broken, size_t size)
{
	OutboxSeqReader r = outbox_seq_set_open(broken, size);
	int64			seq;
	int				found = 0;

	while (outbox_seq_set_next(&r, &seq))
		found++;
	ok(r.broken && !outbox_seq_set_next(&r, &seq), "is no set", what, "");
	ok(found == before, "is read up to there", what, "");
}

int
main(void)
{
	size_t size;
	char   cut[64];

	srandom(1);
	ok(every("none", 1, 0, 1) == 0, "takes nothing", "none", "");
	ok(every("neighbours", 4711, MOST, 1) <= MOST / 4 + 12, "is small", "neighbours", "");
	ok(every("one of two", INT64CONST(1) << 40, MOST, 2) <= MOST / 2 + 12, "is small",
	   "one of two", "");
	ok(every("one of a hundred", 1, MOST, 100) <= MOST * 2 + 12, "is small",
	   "one of a hundred", "");
	ok(every("one of ten thousand", 1, MOST, 10000) <= MOST * 3 + 12, "is small",
	   "one of ten thousand", "");
	for (int n = 1; n < 40; n++)
		(void) every("few", -8 * n, n, 1 + n % 5);
	for (int i = 0; i < 64; i++)
	{
		seqs[0] = PG_INT64_MIN;
		seqs[1] = PG_INT64_MIN + (INT64CONST(1) << Min(i, 62));
		seqs[2] = PG_INT64_MAX - i;
		(void) packs("far apart", 3);
		(void) packs("far apart", 2);
		(void) packs("far apart", 1);
	}

	seqs[0] = PG_INT64_MIN;
	seqs[1] = PG_INT64_MAX;
	size = outbox_seq_set_pack(seqs, 2, bytes);
	for (size_t n = 3; n < size; n++)
		refuses("the beginning of a set", 1, (char *) bytes, n);
	refuses("the beginning of a set", 0, (char *) bytes, 1);
	memcpy(cut, bytes, size);
	memcpy(cut + size, "\001\001", 2);
	refuses("a group above all others", 2, cut, size + 2);
	refuses("a group without numbers", 0, "\001\000", 2);
	refuses("a group twice", 1, "\001\001\000\001", 4);
	refuses("a distance that does not end", 0,
			"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x01", 12);
	refuses("a distance that is too large", 0, "\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01",
			10);
	return done_testing();
}
