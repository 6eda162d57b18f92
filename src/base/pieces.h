#ifndef OUTBOX_PIECES_H
#define OUTBOX_PIECES_H

#include "utils/palloc.h"

#define OUTBOX_PIECE_CLASS 16
#define OUTBOX_PIECE_CLASSES 64

/* One kind of pieces.  Begins with its name only. */
typedef struct OutboxPieces
{
	const char *name;
	MemoryContext
		cxt; /* parent of the others, and of larger pieces (NULL: not made yet) */
	MemoryContext of_class[OUTBOX_PIECE_CLASSES];
} OutboxPieces;

/* _context makes the context.  _alloc returns zeroes, which pfree() frees. */
extern MemoryContext outbox_pieces_context(OutboxPieces *p);
extern void			*outbox_piece_alloc(OutboxPieces *p, size_t size);

#endif /* OUTBOX_PIECES_H */
