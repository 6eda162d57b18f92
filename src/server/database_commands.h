#ifndef OUTBOX_DATABASE_COMMANDS_H
#define OUTBOX_DATABASE_COMMANDS_H

extern void outbox_database_commands_init(void); /* called from _PG_init */

#endif /* OUTBOX_DATABASE_COMMANDS_H */
