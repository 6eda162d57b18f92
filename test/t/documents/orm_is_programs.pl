# The examples of doc/orm.md are the text of the programs in test/clients, and its SQL works.
# clients/orms_emit and clients/through_pgbouncer run the programs.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Clients;
use PostgreSQL::Test::Utils;
use Test::More;

my $doc = slurp_file("$top/doc/orm.md");
my %programs = %OutboxTest::Clients::programs;
my %described;

# Without the indentation, which differs.
sub flush_left
{
	return $_[0] =~ s/^[ \t]+//gmr;
}

foreach my $section (split /^(?=## )/m, $doc)
{
	my ($title) = $section =~ /^## (.*)/ or next;
	my @sources = $section =~ m{\]\(\.\./(test/clients/[^)]+)\)}g;
	my $text = flush_left(join "\n", map { slurp_file("$top/$_") } @sources);

	$described{$_} = $title foreach @sources;
	while ($section =~ /^```(\w+)\n(.*?)^```$/msg)
	{
		my ($language, $code) = ($1, flush_left($2));
		next if $language =~ /^(?:sql|text|ini)$/;

		# An example may leave out lines between statements, with an empty line.
		my $at = 0;
		my @absent = grep {
			my $found = index($text, $_, $at);
			$at = $found if $found >= 0;
			$found < 0;
		} split /\n\n+/, $code =~ s/\n\z//r;
		is(join("\n", @absent), '', "$title: the example is in its program");
	}
}

my $tried = 0;
foreach my $name (sort keys %programs)
{
	my $program = $programs{$name};
	my $source = "test/clients/$program->{language}/$program->{source}";

	ok(exists $described{$source}, "$name is described");
	like($doc, qr/^\| \Q$name\E \| [\d.]+ \|/m, "$name: which version");
	$tried++ while $doc =~ /^\| \Q$name\E \| [\d.]+ \|/mg;
}
is($tried, scalar(() = $doc =~ /^\| [^|]+ \| \d[\d.]+ \|/mg), 'all others are not tried');

# The versions that are fetched
my $manifests = join "\n", map { slurp_file($_) } map { glob "$top/test/clients/$_" }
  qw(python/requirements.txt node/package.json go/go.mod rust/Cargo.toml java/pom.xml);
foreach my $name (grep { $programs{$_}{language} ne 'ruby' } sort keys %programs)
{
	my ($version) = $doc =~ /^\| \Q$name\E \| ([\d.]+) \|/m;
	like($manifests, qr/(?<![\d.])\Q$version\E(?!\.?\d)/, "$name: version $version is what is fetched");
}

my $node = outbox_node('main');
foreach my $code ($doc =~ /^```sql\n(.*?)^```$/msg)
{
	my ($rc, undef, $err) = $node->psql('postgres', $code, on_error_stop => 1);
	is($rc, 0, (split /\n/, $code)[0]) or diag($err);
}

# What the table of "The view" says, as the role of the document
my $insert = "INSERT INTO outbox.outgoing (topic, payload) VALUES ('order.paid', '1')";
foreach (
	[ "$insert RETURNING id IS NOT NULL AND topic = 'order.paid'", 't' ],
	[ "INSERT INTO outbox.outgoing (id, topic, payload) VALUES (NULL, 'a', '1') RETURNING id IS NOT NULL", 't' ],
	[ "INSERT INTO outbox.outgoing (id, topic, payload) VALUES ('00000000-0000-0000-0000-00000000000a', 'a', '1') RETURNING id",
		'00000000-0000-0000-0000-00000000000a' ],
	[ "BEGIN; $insert; $insert; SELECT count(*) FROM outbox.outgoing; COMMIT; SELECT count(*) FROM outbox.outgoing", "2\n0" ],
	[ "UPDATE outbox.outgoing SET topic = 'a'", '42501' ],
	[ 'DELETE FROM outbox.outgoing', '42501' ],
	[ "$insert ON CONFLICT (id) DO NOTHING", '42P10' ],
	[ "INSERT INTO outbox.outgoing (topic, payload, headers) VALUES ('a', '1', 'null')"
		  . " RETURNING headers IS NULL OR headers = 'null'", 't' ],
	[ "$insert ON CONFLICT DO NOTHING RETURNING topic", 'order.paid' ],
	[ "INSERT INTO outbox.outgoing (id, topic, payload) VALUES ('00000000-0000-0000-0000-00000000000a', 'a', '1') ON CONFLICT DO NOTHING", '23505' ],
	[ "COPY outbox.outgoing (topic, payload) FROM STDIN;\na\t1\n\\.\nSELECT 'done'", 'done' ],
	[ "COPY outbox.events (topic, payload) FROM STDIN;\na\t1\n\\.\nSELECT 'done'", 'done' ])
{
	my ($sql, $expected) = @$_;
	my (undef, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\n$sql;\n",
		extra_params => [ '-q', '-U', 'app' ]);
	is($out . ($err =~ /ERROR:  (\w+)/ ? $1 : ''), $expected, "app: $sql") or diag($err);
}
$node->stop;
done_testing();
