/*
 * http_pem.c
 *	  Owns the reading of an endpoint's own certificates and key.
 *
 * A customer may give them, and libcurl reads them inside the worker, for each connection.
 * OpenSSL does whatever such a text says: billions of rounds of a password's hash, or the
 * public key of a DSA key with a modulus of any size.  So they are read here, once, if that
 * costs little, and libcurl gets a copy that is written here.
 */
#include "transport/http/http_internal.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdlib.h>

#define SIGNING_BITS_MAX 4096 /* of RSA: a signature for each handshake, of a few ms */

static const char no_certificate[] = "a certificate in credentials is not in PEM";
static const char no_key[] =
	"client_key is not in PEM, or neither for RSA nor for elliptic curves";
static const char locked_key[] = "client_key needs a password";
static const char slow_key[] = "client_key costs too much to sign with";

/* Without it, OpenSSL asks on the terminal, and waits. */
static int
no_password(char *buffer, int size, int writes, void *arg)
{
	(void) buffer, (void) size, (void) writes, (void) arg;
	return -1;
}

static const char *
copy_written(BIO *out, struct curl_blob *blob)
{
	char *text;
	long  len = BIO_get_mem_data(out, &text);

	blob->data = malloc(Max(len, 1));
	if (blob->data == NULL)
		return OUTBOX_LACKS_MEMORY;
	memcpy(blob->data, text, len);
	blob->len = len;
	blob->flags = CURL_BLOB_NOCOPY;
	return NULL;
}

/* Copies the text that was written, unless there is a problem, and frees both. */
static const char *
finish(const char *problem, BIO *in, BIO *out, struct curl_blob *blob)
{
	if (problem == NULL)
		problem = copy_written(out, blob);
	ERR_clear_error();
	BIO_free(in);
	BIO_free(out); /* overwrites it */
	return problem;
}

/*
 * Text outside of the marks of PEM does not count, but libcurl compares all of it.  'number'
 * is such a text.
 */
const char *
outbox_http_read_certificates(const char *text, uint64 number, struct curl_blob *blob)
{
	BIO		   *in = BIO_new_mem_buf(text, -1);
	BIO		   *out = BIO_new(BIO_s_mem());
	const char *problem = in && out ? NULL : OUTBOX_LACKS_MEMORY;
	X509	   *one;
	int			n = 0;

	while (problem == NULL && (one = PEM_read_bio_X509(in, NULL, no_password, NULL)))
	{
		if (!outbox_http_key_is_cheap(X509_get0_pubkey(one)))
			problem = outbox_http_large_key;
		else if (!PEM_write_bio_X509(out, one))
			problem = OUTBOX_LACKS_MEMORY;
		X509_free(one);
		n++;
	}
	if (problem == NULL &&
		(n == 0 || ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE))
		problem = no_certificate;
	if (problem == NULL && BIO_printf(out, UINT64_FORMAT "\n", number) <= 0)
		problem = OUTBOX_LACKS_MEMORY;
	return finish(problem, in, out, blob);
}

/* Returns NULL if this is none that can be read at once. */
static EVP_PKEY *
read_key(const char *label, const unsigned char *data, long len)
{
	const unsigned char *p = data;
	PKCS8_PRIV_KEY_INFO *of_any_kind = d2i_PKCS8_PRIV_KEY_INFO(NULL, &p, len);
	const ASN1_OBJECT	*kind = NULL;
	EVP_PKEY			*key = NULL;

	if (of_any_kind)
	{
		(void) PKCS8_pkey_get0(&kind, NULL, NULL, NULL, of_any_kind);
		switch (OBJ_obj2nid(kind))
		{
			case EVP_PKEY_RSA:
			case EVP_PKEY_RSA_PSS:
			case EVP_PKEY_EC:
			case EVP_PKEY_ED25519:
			case EVP_PKEY_ED448:
				key = EVP_PKCS82PKEY(of_any_kind);
		}
		PKCS8_PRIV_KEY_INFO_free(of_any_kind);
		return key;
	}
	p = data;
	if (strcmp(label, PEM_STRING_RSA) == 0)
		return d2i_PrivateKey(EVP_PKEY_RSA, NULL, &p, len);
	if (strcmp(label, PEM_STRING_ECPRIVATEKEY) == 0)
		return d2i_PrivateKey(EVP_PKEY_EC, NULL, &p, len);
	return NULL;
}

static bool
signs_fast(EVP_PKEY *key)
{
	int kind = EVP_PKEY_base_id(key);

	return outbox_http_key_is_cheap(key) &&
		((kind != EVP_PKEY_RSA && kind != EVP_PKEY_RSA_PSS) ||
		 EVP_PKEY_bits(key) <= SIGNING_BITS_MAX);
}

const char *
outbox_http_read_key(const char *text, struct curl_blob *blob)
{
	BIO			  *in = BIO_new_mem_buf(text, -1);
	BIO			  *out = BIO_new(BIO_s_mem());
	const char	  *problem = in && out ? NULL : OUTBOX_LACKS_MEMORY;
	EVP_PKEY	  *key = NULL;
	char		  *label;
	char		  *header;
	unsigned char *data;
	long		   len;

	/* Parameters of a curve may stand before the key. */
	while (problem == NULL && key == NULL &&
		   PEM_read_bio(in, &label, &header, &data, &len))
	{
		if (header[0] || strcmp(label, PEM_STRING_PKCS8) == 0)
			problem = locked_key;
		else
			key = read_key(label, data, len);
		OPENSSL_free(label);
		OPENSSL_free(header);
		OPENSSL_clear_free(data, len);
	}
	if (problem == NULL && key == NULL)
		problem = no_key;
	else if (problem == NULL && !signs_fast(key))
		problem = slow_key;
	else if (problem == NULL &&
			 !PEM_write_bio_PKCS8PrivateKey(out, key, NULL, NULL, 0, NULL, NULL))
		problem = OUTBOX_LACKS_MEMORY;
	EVP_PKEY_free(key);
	return finish(problem, in, out, blob);
}
