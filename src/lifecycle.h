/*
 * lifecycle.h
 *	  Sends workers away from databases that a command wants for itself.
 */
#ifndef OUTBOX_LIFECYCLE_H
#define OUTBOX_LIFECYCLE_H

extern void outbox_lifecycle_init(void);	/* from _PG_init */

#endif							/* OUTBOX_LIFECYCLE_H */
