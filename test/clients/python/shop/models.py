from django.db import models


class Order(models.Model):
    id = models.BigAutoField(primary_key=True)
    customer = models.TextField()

    class Meta:
        managed = False
        db_table = "orders"


class OutgoingEvent(models.Model):
    id = models.UUIDField(primary_key=True, db_default=models.Func(function="outbox.new_event_id"), editable=False)
    topic = models.TextField()
    type = models.TextField(null=True)
    key = models.TextField(null=True)
    expires_at = models.DateTimeField(null=True)
    headers = models.JSONField(null=True)
    payload = models.JSONField(null=True)
    body = models.BinaryField(null=True)
    content_type = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = 'outbox"."outgoing'
