<?php
$id = $_SERVER['HTTP_WEBHOOK_ID'] ?? '';
$sentAt = $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
$signatures = explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? '');
$body = file_get_contents('php://input');

$secret = base64_decode(substr(getenv('WEBHOOK_SECRET'), strlen('whsec_')));
$good = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$sentAt.$body", $secret, true));
$fitting = array_filter($signatures, fn($one) => hash_equals($good, $one));
if (!preg_match('/^\d{1,10}$/D', $sentAt) || abs(time() - (int) $sentAt) > 300 || !$fitting) {
    http_response_code(401);
    exit;
}

// The work. When it throws, the event comes again.
function handle(string $id, string $key, object $event): void
{
    $what = isset($event->data_base64)
        ? strlen(base64_decode($event->data_base64)) . ' bytes'
        : json_encode($event->data, JSON_THROW_ON_ERROR);
    if (!file_put_contents('events.txt', "$id\t$event->type\t$key\t$what\n", FILE_APPEND)) {
        throw new RuntimeException('events.txt cannot be written');
    }
}

try {
    $db = new PDO('sqlite:done.db');
    $db->exec('CREATE TABLE IF NOT EXISTS done (id text PRIMARY KEY)');
    $db->beginTransaction(); // when the work throws, the end of the script rolls it back
    $insert = $db->prepare('INSERT INTO done VALUES (?) ON CONFLICT DO NOTHING');
    $insert->execute([$id]);
    if ($insert->rowCount() > 0) {
        $key = rawurldecode($_SERVER['HTTP_OUTBOX_KEY'] ?? '');
        handle($id, $key, json_decode($body, flags: JSON_THROW_ON_ERROR));
    }
    $db->commit();
    http_response_code(204);
} catch (Throwable $e) {
    error_log($e);
    http_response_code(500);
}
