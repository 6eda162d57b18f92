# Functions do the same where standard_conforming_strings is off.
# Their bodies are read with the setting of the session that calls them, so no literal of them has a backslash
# unless it begins with E.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main');
plan skip_all => 'this PostgreSQL has no such setting any more' if $node->psql('postgres', 'SET standard_conforming_strings = off') != 0;
$node->safe_psql('postgres', 'CREATE EXTENSION inbox; CREATE DATABASE source');
$node->safe_psql('source', "\\i $top/sql/source.sql");

# What the statement says, or why it is refused
sub answer
{
	my ($database, $setting, $sql) = @_;
	my (undef, $out, $error) = $node->psql($database, "SET client_min_messages = error; SET standard_conforming_strings = $setting; BEGIN; $sql; ROLLBACK");
	return $out . ($error =~ s/^psql:\S+ //mgr =~ s/^\w*LINE.*//mgr);
}

sub same
{
	my ($database, $name, $sql) = @_;
	my $on = answer($database, 'on', $sql);

	return is(answer($database, 'off', $sql), $on, "$name: " . ($on =~ /^(.{0,60})/m)[0]);
}
same('postgres', 'cursor', "SELECT outbox.deliveries_page(tenant => 't', before => '104:1:0')");
same('postgres', 'no cursor', "SELECT outbox.deliveries_page(tenant => 't', before => 'd:d:d')");
same('postgres', 'ids of the inbox', "SELECT inbox.accept('s', i) FROM unnest(ARRAY['1', '2', '1', 'ab', '0198c5e2-0000-7000-8000-000000000001']) i");
same('postgres', 'their bytes', "SELECT inbox.accept('s', '1'); SELECT source, encode(id, 'hex') FROM inbox.ids_0 UNION SELECT source, encode(id, 'hex') FROM inbox.ids_1 UNION SELECT source, encode(id, 'hex') FROM inbox.ids_2");
same('postgres', 'batch with a place', "SELECT outbox.create_endpoint('b', 'https://a.example/', batch_size => 2, config => '{\"query\": \"a={topic}\"}')");
same('postgres', 'password of a source', "SELECT outbox.follow('s', 'host=127.0.0.1 password = x')");
same('source', "topic $_", "SELECT outbox.emit('$_', '{}') IS NOT NULL") foreach 'a.b', 'a/b', 'a..b', 'a.', '.a';
same('source', 'header', "SELECT outbox.emit('a', '{}', headers => jsonb_build_object('x-a', 'b' || chr(1)))");
same('source', 'columns', "SELECT outbox.carried('s, t,ss', jsonb_build_object('s', 1, 't', 2, 'ss', 3, 'x', 4))");

foreach ([ 'postgres', 'outbox' ], [ 'postgres', 'inbox' ], [ 'source', 'outbox' ])
{
	my ($database, $schema) = @$_;
	my @with;

	foreach (split /\x1e/, $node->safe_psql($database, "SELECT string_agg(proname || ' ' || prosrc, chr(30)) FROM pg_proc p JOIN pg_language l ON l.oid = prolang"
		  . " WHERE pronamespace = '$schema'::regnamespace AND lanname IN ('sql', 'plpgsql')"))
	{
		my ($name) = /^(\w+)/;
		s/--.*//mg;
		s/\bE'(?:[^'\\]|\\.|'')*'//sg;
		push @with, $name if /\\/;
	}
	is("@with", '', "$database, $schema: no function has a literal with a backslash");
}
$node->stop;
done_testing();
