#ifndef OUTBOX_AWS_LINK_H
#define OUTBOX_AWS_LINK_H

#include "postgres.h"

#include "aws_answer.h"
#include "../sink.h"
#include "aws_http.h"
#include "aws_text.h"
#include "lib/ilist.h"

/* One endpoint's way to its queue, topic, bus or stream. */
struct OutboxLink
{
	dlist_node down_node; /* while retry_at is set */
	dlist_node due_node;  /* of aws_due: a request may begin */
	AwsTarget  target;
	AwsKeys	   keys;
	bool	   of_role;	 /* it has the keys of the role instead */
	char	  *source;	 /* of EventBridge */
	int32	   endpoint; /* its number */
	int		   connect_timeout;
	int		   timeout;
	dlist_head alone;	/* transfers, each for a request of its own */
	dlist_head waiting; /* the others */
	int		   nwaiting;
	int		   requests; /* in flight */
	int		   transfers;
	bool	   closed;	 /* it is freed with its last transfer and request */
	int64	   retry_at; /* ms (0: it is up) */
	int		   backoff;
	char	   reason[256];
};

struct OutboxTransfer
{
	dlist_node	node; /* of its link, its request, or aws_ended */
	OutboxLink *link;
	void	   *delivery; /* NULL: it was cancelled while its request is in flight */
	bool		sent;	  /* it is in a request */
	bool		alone;
	AwsText		entry;
	size_t		entry_bytes;
	const char *problem;	 /* why it can never be sent */
	bool		unavailable; /* it ends without having been sent */
	int			requests;	 /* with it that the service may have seen */
	int64		started_ms;
};

/* Links that may be able to begin a request, and transfers that end unsent. */
extern dlist_head aws_due;
extern dlist_head aws_ended;

/* Functions of the contract */
extern const char *aws_link_check(const OutboxTarget *target, OutboxAdvice *advice);
extern bool aws_link_keeps_credentials(const OutboxTarget *from, const OutboxTarget *to);
extern OutboxLink *aws_link_open(const OutboxTarget *target, char *reason, size_t size);
extern OutboxLinkState aws_link_state(OutboxLink *link, char *reason, size_t size);
extern void			   aws_link_close(OutboxLink *link);

/* Frees it if it is closed and nothing of it is in flight. */
extern void aws_link_free_unused(OutboxLink *link);

extern void aws_link_up(OutboxLink *link);

/* The keys with which requests are signed.  NULL: none now. */
extern const AwsKeys *aws_link_keys(const OutboxLink *link);

/*
 * Nothing is sent for a while, and waiting deliveries end.  The first reason of one try
 * stays.
 */
extern void aws_link_down(OutboxLink *link, const char *words);

/* Returns the words, or others if these have the session token in them. */
extern const char *aws_link_words(const OutboxLink *link, const char *words);

/* To be called when a request may be able to begin. */
extern void aws_link_make_due(OutboxLink *link);

/* Links that are down are tried at once. */
extern void aws_links_retry(void);

#endif /* OUTBOX_AWS_LINK_H */
