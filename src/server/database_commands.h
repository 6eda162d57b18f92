/*
 * database_commands.h
 *	  Sends workers away from databases that a command wants for itself.
 */
#ifndef OUTBOX_DATABASE_COMMANDS_H
#define OUTBOX_DATABASE_COMMANDS_H

extern void outbox_database_commands_init(void); /* from _PG_init */

#endif /* OUTBOX_DATABASE_COMMANDS_H */
