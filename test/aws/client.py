#!/usr/bin/env python3
"""Makes and reads queues, topics, a bus and a stream of moto or fauxqs, as a receiver would, by boto3.

Usage: client.py PORT [ACCOUNT].  Each line of stdin is a command: "make" (queues and topics), "make_more" (a
bus and a stream), "queue NAME", "read QUEUE", "read stream", "away" (takes all but the bus and its rule away),
or "send QUEUE" and a JSON object with body, and for FIFO id and group.  It prints a line of JSON for each.
"""
import json
import sys

import boto3
import botocore.exceptions

REGION = "eu-central-1"
ACCOUNT = sys.argv[2] if len(sys.argv) > 2 else "123456789012"


def client(name):
    return boto3.client(name, region_name=REGION, endpoint_url="http://127.0.0.1:" + sys.argv[1],
                        aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="secret")


sqs, sns, events, kinesis = map(client, ("sqs", "sns", "events", "kinesis"))


def arn(service, name):
    return "arn:aws:%s:%s:%s:%s" % (service, REGION, ACCOUNT, name)


def queue(name):
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    sqs.create_queue(QueueName=name, Attributes=attributes)
    return arn("sqs", name)


def make():
    queue("orders")
    queue("orders.fifo")
    for suffix, more in (("", {}), (".fifo", {"FifoTopic": "true"})):
        topic = sns.create_topic(Name="news" + suffix, Attributes=more)["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue("news" + suffix), Attributes={"RawMessageDelivery": "true"})
    return True


def make_more():
    if "bus" not in [b["Name"] for b in events.list_event_buses()["EventBuses"]]:
        events.create_event_bus(Name="bus")
    events.put_rule(Name="all", EventBusName="bus", EventPattern=json.dumps({"source": ["shop"]}))
    events.put_targets(Rule="all", EventBusName="bus", Targets=[{"Id": "1", "Arn": queue("bus")}])
    kinesis.create_stream(StreamName="stream", ShardCount=2)
    return True


def away():
    for topic in sns.list_topics()["Topics"]:
        sns.delete_topic(TopicArn=topic["TopicArn"])
    for url in sqs.list_queues()["QueueUrls"]:
        sqs.delete_queue(QueueUrl=url)
    kinesis.delete_stream(StreamName="stream")
    return True


def read_queue(name):
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    messages = []
    while True:
        got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]).get("Messages", [])
        if not got:
            return messages
        for m in got:
            messages.append({
                "body": m["Body"], "message": m["MessageId"], "sequence": m["Attributes"].get("SequenceNumber"), "group": m["Attributes"].get("MessageGroupId"), "deduplication": m["Attributes"].get("MessageDeduplicationId"),
                "attributes": {k: v["StringValue"] for k, v in m.get("MessageAttributes", {}).items()}})
            sqs.delete_message(QueueUrl=url, ReceiptHandle=m["ReceiptHandle"])


def send(name, said):
    """What the queue says of a message: its id and number, or the code of the error."""
    said = json.loads(said)
    fifo = {"MessageDeduplicationId": said["id"], "MessageGroupId": said["group"]} if "id" in said else {}
    try:
        sent = sqs.send_message(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"], MessageBody=said["body"], **fifo)
    except botocore.exceptions.ClientError as error:
        return {"error": error.response["Error"]["Code"]}
    return {"message": sent["MessageId"], "sequence": sent.get("SequenceNumber")}


def read_stream(name):
    records = []
    for shard in kinesis.describe_stream(StreamName=name)["StreamDescription"]["Shards"]:
        place = kinesis.get_shard_iterator(StreamName=name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")["ShardIterator"]
        while True:
            got = kinesis.get_records(ShardIterator=place, Limit=1000)
            records += [{"body": r["Data"].decode(), "group": r["PartitionKey"], "shard": shard["ShardId"]} for r in got["Records"]]
            if not got["Records"]:
                break
            place = got["NextShardIterator"]
    return records


for line in sys.stdin:
    command, _, name = line.strip().partition(" ")
    done = {"make": lambda: make(), "make_more": lambda: make_more(), "queue": lambda: queue(name),
            "away": lambda: away(),
            "send": lambda: send(*name.split(" ", 1)),
            "read": lambda: read_stream(name) if name == "stream" else read_queue(name)}[command]()
    print(json.dumps(done), flush=True)
