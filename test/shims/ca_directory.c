/*
 * ca_directory.c
 *	  A libcurl that was built with a directory of authorities, $OUTBOX_CA_DIRECTORY, and with
 *	  no file of them.
 */
#define _GNU_SOURCE
#include <curl/curl.h>
#include <dlfcn.h>
#include <stdlib.h>

CURL *
curl_easy_init(void)
{
	CURL *(*real)(void) = (CURL * (*) (void) ) dlsym(RTLD_NEXT, "curl_easy_init");
	CURLcode (*set)(CURL *, CURLoption,
					...) = (CURLcode(*)(CURL *, CURLoption,
										...)) dlsym(RTLD_NEXT, "curl_easy_setopt");
	CURL *easy = real();

	if (easy &&
		(set(easy, CURLOPT_CAINFO, NULL) != CURLE_OK ||
		 set(easy, CURLOPT_CAPATH, getenv("OUTBOX_CA_DIRECTORY")) != CURLE_OK))
		abort();
	return easy;
}

curl_version_info_data *
curl_version_info(CURLversion age)
{
	curl_version_info_data *(*real)(CURLversion) = (curl_version_info_data *
													(*) (CURLversion))
		dlsym(RTLD_NEXT, "curl_version_info");
	static curl_version_info_data built;

	built = *real(age);
	built.cainfo = NULL;
	built.capath = getenv("OUTBOX_CA_DIRECTORY");
	return &built;
}
