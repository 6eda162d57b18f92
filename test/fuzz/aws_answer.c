/*
 * aws_answer.c
 *	  Fuzz target: the answers of AWS, in JSON and in XML.
 *
 * The first byte chooses the service and the number of entries.
 *
 * links: sinks/aws/aws_answer.c src/base/json_read.c sinks/aws/aws_target.c sinks/aws/aws_xml.c
 */
#include "../../sinks/aws/aws_answer.h"
#include "fuzz.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const arns[] =
		{"arn:aws:sqs:eu-central-1:123456789012:a",
		 "arn:aws:sns:eu-central-1:123456789012:a",
		 "arn:aws:events:eu-central-1:123456789012:event-bus/a",
		 "arn:aws:kinesis:eu-central-1:123456789012:stream/a"};
	AwsTarget  target;
	AwsAnswer *answer;
	char	  *body;
	int		   n;

	if (size == 0)
		return 0;
	n = 1 + data[0] / 4 % 10;
	MUST(aws_target_parse(arns[data[0] % 4], NULL, &target) == NULL);
	body = fuzz_copy(data + 1, size - 1);
	answer = malloc(sizeof(*answer));
	aws_answer_read(&target, 200, body, size - 1, n, answer);
	MUST(memchr(answer->code, '\0', sizeof(answer->code)) != NULL);
	MUST(memchr(answer->words, '\0', sizeof(answer->words)) != NULL);
	for (int i = 0; i < n; i++)
	{
		const AwsEntryAnswer *e = &answer->entries[i];
		AwsMeaning			  meaning = aws_entry_meaning(&target, e);

		MUST(e->seen || !e->stored);
		/* What is told by its place is told of each. */
		MUST(e->seen || !answer->ok || target.service == AWS_SQS ||
			 target.service == AWS_SNS);
		MUST((meaning == AWS_STORED) == e->stored);
		MUST(memchr(e->code, '\0', sizeof(e->code)) != NULL);
		MUST(memchr(e->words, '\0', sizeof(e->words)) != NULL);
		for (const char *p = e->words; *p; p++)
			MUST(*p >= 0x20 && *p < 0x7f);
	}

	/* Whatever it says: without a good status nothing is stored. */
	aws_answer_read(&target, 400, body, size - 1, n, answer);
	MUST(!answer->ok);
	free(answer);
	free(body);
	return 0;
}
