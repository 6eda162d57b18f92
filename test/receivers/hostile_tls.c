/*
 * hostile_tls.c
 *	  A TLS receiver that makes its client work, in the way that its first argument names.
 *
 * hostile_tls BEHAVIOUR CERT KEY READY JOURNAL: READY gets the port, and JOURNAL a line for
 * each connection whose handshake has begun.  It ends with its parent.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/dh.h>
#include <openssl/param_build.h>
#include <openssl/core_names.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MODULUS_BITS 10000
#define REQUESTS 250
#define AUTHORITIES 6000
#define TICKET_BYTES 40000

static const char *behaviour;
static SSL_CTX	  *ctx;
static int		   journal;

static int
is(const char *name)
{
	return strcmp(behaviour, name) == 0;
}

static void
die(const char *what)
{
	fprintf(stderr, "hostile_tls: %s\n", what);
	exit(1);
}

/* Finite-field parameters with a modulus that nobody has chosen well. */
static EVP_PKEY *
large_group(void)
{
	EVP_PKEY	   *key = NULL;
	BIGNUM		   *p = BN_new(), *g = BN_new();
	OSSL_PARAM_BLD *build = OSSL_PARAM_BLD_new();
	EVP_PKEY_CTX   *from = EVP_PKEY_CTX_new_from_name(NULL, "DH", NULL);

	BN_rand(p, MODULUS_BITS, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ODD);
	BN_set_word(g, 2);
	OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_FFC_P, p);
	OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_FFC_G, g);
	OSSL_PARAM_BLD_push_int(build, OSSL_PKEY_PARAM_DH_PRIV_LEN, 512);
	EVP_PKEY_fromdata_init(from);
	if (EVP_PKEY_fromdata(from, &key, EVP_PKEY_KEY_PARAMETERS,
						  OSSL_PARAM_BLD_to_param(build)) != 1)
		die("no DH parameters");
	return key;
}

/* Chooses HTTP/2, whatever is offered. */
static int
choose_two(SSL *ssl, const unsigned char **out, unsigned char *outlen,
		   const unsigned char *in, unsigned inlen, void *arg)
{
	(void) ssl, (void) in, (void) inlen, (void) arg;
	*out = (const unsigned char *) "h2";
	*outlen = 2;
	return SSL_TLSEXT_ERR_OK;
}

/* OpenSSL tells all secrets of a connection.  Records are sealed with this one. */
static __thread unsigned char secret[32];

static void
note_secret(const SSL *ssl, const char *line)
{
	const char *value = strrchr(line, ' ');

	(void) ssl;
	if (strncmp(line, "SERVER_TRAFFIC_SECRET_0 ", 24) == 0)
		for (int i = 0; i < 32; i++)
			sscanf(value + 1 + 2 * i, "%2hhx", &secret[i]);
}

/* RFC 8446, HKDF-Expand-Label */
static void
expand(const char *label, unsigned char *out, int len)
{
	unsigned char info[32] = {0, (unsigned char) len,
							  (unsigned char) (6 + strlen(label))};
	unsigned char block[32];

	memcpy(info + 3, "tls13 ", 6);
	memcpy(info + 9, label, strlen(label));
	info[9 + strlen(label) + 1] = 1;
	HMAC(EVP_sha256(), secret, 32, info, 9 + strlen(label) + 2, block, NULL);
	memcpy(out, block, len);
}

/*
 * In one record, many requests for the client's certificate.  Each costs it a signature.
 * OpenSSL would wait for the answer to each.
 */
static void
ask_for_certificates(SSL *ssl)
{
	static const unsigned char ask[] = {13, 0, 0, 15, 2, 0, 0, 0, 10, 0,
										13, 0, 6, 0,  4, 8, 4, 4, 3};
	unsigned char			   text[REQUESTS * sizeof(ask) + 1];
	int						   len = sizeof(text) + 16;
	unsigned char	record[5 + sizeof(text) + 16] = {23, 3, 3, len >> 8, len & 0xff};
	unsigned char	key[16];
	unsigned char	nonce[12]; /* that of the first record, whose number is 0 */
	EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
	char			answer[4096];
	int				taken = 0;
	int				n;

	for (int i = 0; i < REQUESTS; i++)
	{
		memcpy(text + i * sizeof(ask), ask, sizeof(ask));
		text[i * sizeof(ask) + 5] = 1;
		text[i * sizeof(ask) + 6] = i;
	}
	text[sizeof(text) - 1] = 22;
	expand("key", key, sizeof(key));
	expand("iv", nonce, sizeof(nonce));
	EVP_EncryptInit_ex(cipher, EVP_aes_128_gcm(), NULL, key, nonce);
	EVP_EncryptUpdate(cipher, NULL, &n, record, 5);
	EVP_EncryptUpdate(cipher, record + 5, &n, text, sizeof(text));
	EVP_EncryptFinal_ex(cipher, record + 5 + n, &n);
	EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, 16, record + 5 + sizeof(text));
	EVP_CIPHER_CTX_free(cipher);
	if (SSL_read(ssl, answer, sizeof(answer)) <= 0 ||
		write(SSL_get_fd(ssl), record, sizeof(record)) != sizeof(record))
		return;
	while ((n = read(SSL_get_fd(ssl), answer, sizeof(answer))) > 0)
		taken += n;
	dprintf(journal, "%s\ttook %d\n", behaviour, taken);
}

/* A request for the client's certificate, with as many authorities as fit, none of which has a name. */
static STACK_OF(X509_NAME) * authorities(void)
{
	STACK_OF(X509_NAME) *names = sk_X509_NAME_new_null();

	for (int i = 0; i < AUTHORITIES; i++)
		sk_X509_NAME_push(names, X509_NAME_new());
	return names;
}

static int
make_ticket_large(SSL *ssl, void *arg)
{
	static const char data[TICKET_BYTES];

	(void) arg;
	return SSL_SESSION_set1_ticket_appdata(SSL_get_session(ssl), data, sizeof(data));
}

static void
flood(SSL *ssl)
{
	static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
	char			  request[4096];
	char			  pings[17 * 900];

	if (is("certificate requests"))
		ask_for_certificates(ssl);
	else if (is("tickets"))
		while (SSL_new_session_ticket(ssl) == 1 && SSL_do_handshake(ssl) == 1)
			;
	else if (is("key updates"))
		while (SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 &&
			   SSL_do_handshake(ssl) == 1)
			;
	else if (is("renegotiation"))
		while (SSL_renegotiate(ssl) == 1 && SSL_do_handshake(ssl) == 1 &&
			   SSL_read(ssl, request, 0) <= 0 && SSL_do_handshake(ssl) == 1)
			;
	else if (is("authorities") || is("large ticket"))
		while (SSL_read(ssl, request, sizeof(request)) > 0)
			SSL_write(ssl, answer, sizeof(answer) - 1);
	else if (SSL_read(ssl, request, sizeof(request)) > 0)
	{
		if (is("http/2 unasked") && memcmp(request, "PRI ", 4) == 0)
		{
			SSL_write(ssl, "\0\0\0\4\0\0\0\0\0", 9);
			for (int i = 0; i < 900; i++)
				memcpy(pings + 17 * i, "\0\0\10\6\1\0\0\0\0pingpong", 17);
			while (SSL_write(ssl, pings, sizeof(pings)) > 0)
				;
		}
		else
			SSL_write(ssl, answer, sizeof(answer) - 1);
		SSL_shutdown(ssl);
	}
}

static void *
serve(void *arg)
{
	int	 fd = (int) (long) arg;
	SSL *ssl = SSL_new(ctx);

	dprintf(journal, "%s\n", behaviour);
	SSL_set_fd(ssl, fd);
	if (SSL_accept(ssl) == 1)
		flood(ssl);
	SSL_free(ssl);
	close(fd);
	return NULL;
}

int
main(int argc, char **argv)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
								  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t		   len = sizeof(address);
	int				   listener = socket(AF_INET, SOCK_STREAM, 0);
	char			   ready[4096];
	FILE			  *file;

	if (argc != 6)
		die("BEHAVIOUR CERT KEY READY JOURNAL");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_IGN);
	behaviour = argv[1];
	journal = open(argv[5], O_WRONLY | O_CREAT | O_APPEND, 0644);
	ctx = SSL_CTX_new(TLS_server_method());
	if (SSL_CTX_use_certificate_chain_file(ctx, argv[2]) != 1 ||
		SSL_CTX_use_PrivateKey_file(ctx, argv[3], SSL_FILETYPE_PEM) != 1)
		die("certificate");
	if (is("large modulus"))
	{
		SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
		SSL_CTX_set_cipher_list(ctx, "kDHE");
		if (SSL_CTX_set0_tmp_dh_pkey(ctx, large_group()) != 1)
			die("DH");
	}
	if (is("ffdhe8192"))
		SSL_CTX_set1_groups_list(ctx, "ffdhe8192");
	if (is("certificate requests"))
	{
		SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256");
		SSL_CTX_set_num_tickets(ctx, 0);
		SSL_CTX_set_keylog_callback(ctx, note_secret);
	}
	if (is("renegotiation"))
		SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
	if (is("authorities"))
	{
		SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
		SSL_CTX_set_client_CA_list(ctx, authorities());
	}
	if (is("large ticket"))
		SSL_CTX_set_session_ticket_cb(ctx, make_ticket_large, NULL, NULL);
	if (is("http/2 unasked"))
		SSL_CTX_set_alpn_select_cb(ctx, choose_two, NULL);

	if (bind(listener, (struct sockaddr *) &address, len) != 0 ||
		listen(listener, 100) != 0 ||
		getsockname(listener, (struct sockaddr *) &address, &len) != 0)
		die("listen");
	snprintf(ready, sizeof(ready), "%s.new", argv[4]);
	file = fopen(ready, "w");
	fprintf(file, "%d\n", ntohs(address.sin_port));
	fclose(file);
	rename(ready, argv[4]);
	for (;;)
	{
		long	  fd = accept(listener, NULL, NULL);
		pthread_t thread;

		if (fd >= 0 && pthread_create(&thread, NULL, serve, (void *) fd) == 0)
			pthread_detach(thread);
	}
}
