/*
 * database_commands.h
 *	  Ends the workers of a database before a command that needs it without
 *	  connections.
 */
#ifndef OUTBOX_DATABASE_COMMANDS_H
#define OUTBOX_DATABASE_COMMANDS_H

extern void outbox_database_commands_init(void); /* called from _PG_init */

#endif /* OUTBOX_DATABASE_COMMANDS_H */
