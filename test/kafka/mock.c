/*
 * mock.c
 *	  librdkafka's mock cluster as a process of its own, for the tests.
 *
 * It prints the address of its broker, and then "ok" for each line that it was given:
 *
 *	  topic NAME PARTITIONS		   makes a topic
 *	  missing NAME | there NAME	   says that a topic does not exist; takes that back
 *	  leaderless NAME | led NAME   its partition 0 has no leader; takes that back
 *	  down | up					   the broker goes, and comes back
 *	  rtt MS					   it answers so much later
 *	  error API CODE [CODE ...]	   the next answers to requests of this kind
 *	  clear API					   these answers are good again
 */
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int
main(void)
{
	char		words[256];
	char		line[1024];
	rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), words,
								  sizeof(words));
	rd_kafka_mock_cluster_t *mock = rk ? rd_kafka_mock_cluster_new(rk, 1) : NULL;

	if (mock == NULL)
	{
		fprintf(stderr, "no mock cluster\n");
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%s\n", rd_kafka_mock_cluster_bootstraps(mock));
	while (fgets(line, sizeof(line), stdin))
	{
		char *what = strtok(line, " \n");
		char *name = strtok(NULL, " \n");
		char *next;

		if (what == NULL)
			continue;
		if (strcmp(what, "topic") == 0)
			rd_kafka_mock_topic_create(mock, name, atoi(strtok(NULL, " \n")), 1);
		else if (strcmp(what, "missing") == 0)
			rd_kafka_mock_topic_set_error(mock, name,
										  RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
		else if (strcmp(what, "there") == 0)
			rd_kafka_mock_topic_set_error(mock, name, RD_KAFKA_RESP_ERR_NO_ERROR);
		else if (strcmp(what, "leaderless") == 0)
			rd_kafka_mock_partition_set_leader(mock, name, 0, -1);
		else if (strcmp(what, "led") == 0)
			rd_kafka_mock_partition_set_leader(mock, name, 0, 1);
		else if (strcmp(what, "down") == 0)
			rd_kafka_mock_broker_set_down(mock, 1);
		else if (strcmp(what, "up") == 0)
			rd_kafka_mock_broker_set_up(mock, 1);
		else if (strcmp(what, "rtt") == 0)
			rd_kafka_mock_broker_set_rtt(mock, 1, atoi(name));
		else if (strcmp(what, "error") == 0)
			while ((next = strtok(NULL, " \n")) != NULL)
				rd_kafka_mock_push_request_errors(mock, (int16_t) atoi(name), 1,
												  (rd_kafka_resp_err_t) atoi(next));
		else if (strcmp(what, "clear") == 0)
			rd_kafka_mock_clear_request_errors(mock, (int16_t) atoi(name));
		printf("ok\n");
	}
	rd_kafka_mock_cluster_destroy(mock);
	rd_kafka_destroy(rk);
	return 0;
}
