/*
 * pieces.c
 *	  Owns memory for many pieces that stay, of sizes that come often.
 *
 * A memory context of the usual kind doubles its pieces, and would waste a third.  So
 * there is one for each multiple of OUTBOX_PIECE_CLASS bytes.
 */
#include "base/outbox.h"

#include "base/pieces.h"

MemoryContext
outbox_pieces_context(OutboxPieces *p)
{
	if (p->cxt != NULL)
		return p->cxt;
	/* Blocks so small that a larger piece has one of its own, which is freed with it. */
	p->cxt = AllocSetContextCreate(TopMemoryContext, "outbox pieces", 0, 1024, 1024);
	MemoryContextSetIdentifier(p->cxt, p->name);
	return p->cxt;
}

/* A slab gives out pieces of its own size only. */
void *
outbox_piece_alloc(OutboxPieces *p, size_t size)
{
	size_t class = (size - 1) / OUTBOX_PIECE_CLASS;
	MemoryContext cxt = outbox_pieces_context(p);

	if (class >= OUTBOX_PIECE_CLASSES)
		return MemoryContextAllocZero(cxt, size);
	size = (class + 1) * OUTBOX_PIECE_CLASS;
	if (p->of_class[class] == NULL)
		p->of_class[class] = SlabContextCreate(cxt, "outbox pieces of a size",
											   SLAB_DEFAULT_BLOCK_SIZE, size);
	return MemoryContextAllocZero(p->of_class[class], size);
}
