# A payload, and the headers in a batch, are sent as the text that PostgreSQL makes of them.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $seed = $ENV{SEED} // int(rand(1e9));
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# Strings are written as JSON source, so that what has to be escaped comes in all its forms.
my @parts = ('a', 'plain text of some length, longer than a vector', '\"', '\\\\', '\n\t\r\b\f', '\u0001', '\u001f',
	'\u007f', '\u00e9', '\u20ac', '\ud83d\ude00', '/', '</script>', "'", ' ', '{[:,]}');
my @numbers = qw(0 -1 1.50 12345678901234567890 1e30 -0.000001 1E-7 100000.0);

sub string
{
	return '"' . join('', map { $parts[ rand @parts ] } 1 .. int(rand 5)) . '"';
}

sub value
{
	my ($depth) = @_;
	my $kind = int(rand($depth > 4 ? 5 : 7));

	return string() if $kind < 2;
	return $numbers[ rand @numbers ] if $kind == 2;
	return (qw(true false))[ rand 2 ] if $kind == 3;
	return 'null' if $kind == 4;
	return '[' . join(',', map { value($depth + 1) } 1 .. int(rand 4)) . ']' if $kind == 5;
	return '{' . join(',', map { string() . ':' . value($depth + 1) } 1 .. int(rand 4)) . '}';
}

note("SEED=$seed");
srand($seed);
my @payloads = (
	(map { $_, "[$_]", "[[$_],{}]", "{\"k\":$_}", "{\"a\":{\"b\":$_},\"c\":[]}" }
		'""', '"x"', '0', 'null', 'true', 'false', '[]', '{}'),
	(map { '"' . 'x' x $_ . '"', '"' . 'x' x $_ . '\n"', '"' . 'x' x $_ . '\u00e9' . 'x' x 20 . '"' } 1 .. 40),
	'1e100000',
	'"' . 'long \u00e9 ' x 20000 . '"',
	'"' . 'long \n ' x 20000 . '"',
	(map { value(0) } 1 .. 2000));

endpoint($node, $receiver, 'all', '/ok/all', "topics => '{text}', format => 'raw'");
endpoint($node, $receiver, 'batches', '/ok/batches', "topics => '{headers}', batch_size => 10");
$node->safe_psql('postgres', join "\n", 'BEGIN;', (map { "SELECT outbox.emit('text', \$json\$$_\$json\$);" } @payloads), 'COMMIT');
ok(wait_sql($node, 'SELECT delivered = ' . @payloads . " FROM outbox.stats WHERE endpoint = 'all'"), scalar(@payloads) . ' payloads are delivered');

my %sent = map { $_->{id} => $_->{sha256} } $receiver->requests(path => '/ok/all');
my @lost = grep { my ($id, $sha) = split /\|/; ($sent{$id} // '') ne $sha } split /\n/, $node->safe_psql('postgres',
	"SELECT id, encode(sha256(convert_to(payload::text, 'UTF8')), 'hex'), left(payload::text, 200) FROM outbox.events WHERE topic = 'text'");
is_deeply(\@lost, [], 'each as PostgreSQL writes it');

my $headers = '{"x-one": "\"quoted\"", "x-two": "back\\\\slash", "x-three": ""}';
emit($node, 'headers', '{}', "headers => '$headers'");
my ($batch) = $receiver->wait_for(1, path => '/ok/batches');
my $text = $node->safe_psql('postgres', "SELECT headers FROM outbox.events WHERE topic = 'headers'");
isnt(index($batch->{body}, qq("headers":$text,)), -1, 'the headers of an event in a batch, too') or diag($batch->{body});
done_testing();
