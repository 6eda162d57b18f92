/*
 * seq_set.c
 *	  Owns the packed form of a set of numbers of the log.
 *
 * Eight numbers that differ in their last three bits only are a group.  For each group
 * that has any there is its distance from the group before, and a byte with a bit for
 * each of its numbers.  The distance is written in bytes of seven bits, the lowest first,
 * all but the last with the eighth bit set.  The distance of the first group is one more
 * than the number of groups below it.
 */
#include "base/seq_set.h"

#include "port/pg_bitutils.h"

#define GROUPS (UINT64CONST(1) << 61)

/* Keeps the order: the lowest number becomes 0. */
#define ORDERED(seq) ((uint64) (seq) ^ (UINT64CONST(1) << 63))

size_t
outbox_seq_set_pack(const int64 *seqs, int n, uint8 *out)
{
	uint8 *p = out;
	uint64 before = 0;

	for (int i = 0; i < n;)
	{
		uint64 group = ORDERED(seqs[i]) / 8 + 1;
		uint64 distance = group - before;
		uint8  mask = 0;

		for (; i < n && ORDERED(seqs[i]) / 8 + 1 == group; i++)
			mask |= 1 << ORDERED(seqs[i]) % 8;
		for (; distance >= 0x80; distance >>= 7)
			*p++ = (uint8) (0x80 | (distance & 0x7f));
		*p++ = (uint8) distance;
		*p++ = mask;
		before = group;
	}
	return p - out;
}

OutboxSeqReader
outbox_seq_set_open(const void *bytes, size_t size)
{
	return (OutboxSeqReader){.next = bytes, .end = (const uint8 *) bytes + size};
}

static bool
next_group(OutboxSeqReader *r)
{
	uint64 distance = 0;
	int	   shift = 0;

	if (r->next == r->end)
		return false;
	r->broken = true;
	do
	{
		if (r->next == r->end || shift > 56)
			return false;
		distance |= (uint64) (*r->next & 0x7f) << shift;
		shift += 7;
	} while (*r->next++ & 0x80);
	if (r->next == r->end || *r->next == 0 || distance == 0 ||
		distance > GROUPS - r->group)
		return false;
	r->group += distance;
	r->mask = *r->next++;
	r->broken = false;
	return true;
}

bool
outbox_seq_set_next(OutboxSeqReader *r, int64 *seq)
{
	if (r->broken || (r->mask == 0 && !next_group(r)))
		return false;
	*seq = (int64) ORDERED((r->group - 1) * 8 + pg_rightmost_one_pos32(r->mask));
	r->mask &= r->mask - 1;
	return true;
}
