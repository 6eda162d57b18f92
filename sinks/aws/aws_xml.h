/*
 * aws_xml.h
 *	  Reads the XML of SNS, as a pure function.
 */
#ifndef OUTBOX_AWS_XML_H
#define OUTBOX_AWS_XML_H

#include <stdbool.h>
#include <stddef.h>

#define AWS_XML_DEPTH 16
#define AWS_XML_NAME 64	  /* bytes of a name, with the zero behind */
#define AWS_XML_TEXT 8192 /* bytes of a text that are kept, with the zero behind */

/*
 * 'path' has the names of the elements that are open, this one last.  'begins' is false
 * at its end, where 'text' is its text behind its last child.
 */
typedef void (*AwsXmlElement)(void *arg, char path[][AWS_XML_NAME], int depth,
							  bool begins, const char *text);

/* Returns false if it is not well-formed, or has a construct that no answer has. */
extern bool aws_xml_read(const char *data, size_t len, AwsXmlElement element, void *arg);

#endif /* OUTBOX_AWS_XML_H */
