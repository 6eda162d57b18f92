/*
 * seq_set.h
 *	  A set of numbers of the log, packed: two bytes for eight neighbours, a few more for a
 *	  number that is far from all others.
 */
#ifndef OUTBOX_SEQ_SET_H
#define OUTBOX_SEQ_SET_H

#include "base/outbox.h"

/* Bytes that n numbers take at most. */
#define OUTBOX_SEQ_SET_BYTES(n) ((size_t) (n) *10)

/*
 * Writes the set to 'out', and returns its size in bytes.  The numbers are in ascending
 * order.
 */
extern size_t outbox_seq_set_pack(const int64 *seqs, int n, uint8 *out);

/*
 * Reads a set in ascending order.  outbox_seq_set_next() is false at its end, and at
 * bytes that are no set: then 'broken' is true.
 */
typedef struct OutboxSeqReader
{
	const uint8 *next;
	const uint8 *end;
	uint64		 group; /* one more than the current one's number (0: there was none) */
	uint8		 mask;	/* the bits not read of it */
	bool		 broken;
} OutboxSeqReader;

extern OutboxSeqReader outbox_seq_set_open(const void *bytes, size_t size);
extern bool			   outbox_seq_set_next(OutboxSeqReader *r, int64 *seq);

#endif /* OUTBOX_SEQ_SET_H */
