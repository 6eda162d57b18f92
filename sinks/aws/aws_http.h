#ifndef OUTBOX_AWS_HTTP_H
#define OUTBOX_AWS_HTTP_H

#include <curl/curl.h>

#include "aws_sign.h"
#include "aws_target.h"
#include "aws_text.h"
#include "transport/transport.h"

/* One request.  It is used again for others. */
typedef struct AwsRequest AwsRequest;
struct AwsRequest
{
	AwsRequest		  *next; /* for its user */
	void			  *owner;
	AwsText			   body;
	CURL			  *easy;
	unsigned		   generation; /* of the settings that 'easy' has */
	struct curl_slist *headers;
	OutboxRest		   rest; /* its endpoint, too */
	bool			   encrypted;
	bool			   plain;	 /* it is not signed */
	bool			   metadata; /* it is for a metadata service, and goes to no other */
	bool			   looks_up; /* it waits for the addresses of a name */
	bool			   lacks;	 /* too many others do */
	bool			   connected;
	int64_t			   ends_at[2]; /* ms: its timeout, before it is connected and after */
	int				   sent;	   /* so often, by libcurl */
	AwsText			   answer;
	bool			   too_long;
	bool			   coded;	 /* with a transfer coding other than chunked */
	const char		  *exceeded; /* the limit that the peer exceeded in its handshake */
	size_t			   header_bytes;
	const char		  *refused;		/* why its address may not be connected to */
	char			   address[64]; /* that address */
	char			   errbuf[CURL_ERROR_SIZE];
};

/* How a request ended. */
typedef struct AwsEnd
{
	int			  status; /* 0: there is no answer */
	int			  sent;	  /* so often: libcurl sends it again if a connection ends */
	OutboxFailure failure;
	const char	 *lacks; /* the missing resource, static text */
	const char	 *lost;	 /* why it does not count though it was sent, static text */
	char		  words[200];
} AwsEnd;

extern bool aws_http_init(const OutboxServices *services);
extern void aws_http_shutdown(void);

/* The file of CAs.  NULL: the system's.  Handles that exist are made again. */
extern void aws_http_set_tls(const char *file, bool only_1_3);

extern int	aws_http_fd(void);
extern long aws_http_timeout(void);

/* NULL: out of memory.  The body is empty. */
extern AwsRequest *aws_http_acquire(void);
extern void		   aws_http_release(AwsRequest *r);

/* Sends r->body.  Returns the problem.  NULL: none. */
extern const char *aws_http_start(AwsRequest *r, const AwsTarget *t, const AwsKeys *keys,
								  int connect_timeout, int timeout);

/* A request that is not signed. */
typedef struct AwsPlain
{
	const char *method; /* GET, PUT, or POST of r->body */
	const char *url;
	const char *header; /* its name (NULL: none) */
	const char *value;
	bool		metadata; /* it may go to metadata services only */
	int			connect_timeout;
	int			timeout;
} AwsPlain;

extern const char *aws_http_start_plain(AwsRequest *r, const AwsPlain *plain);

/*
 * Goes on with all requests.  False: out of memory, and they may never end.  'next' then
 * returns each that has ended.  NULL: no more.
 */
extern bool		   aws_http_step(void);
extern AwsRequest *aws_http_next(AwsEnd *end);

#endif /* OUTBOX_AWS_HTTP_H */
