
------------------------------------------------------------------------
-- Only for the extension: a dump holds the ids, the offsets and the phase.
------------------------------------------------------------------------

SELECT pg_extension_config_dump('inbox.ids_0', '');
SELECT pg_extension_config_dump('inbox.ids_1', '');
SELECT pg_extension_config_dump('inbox.ids_2', '');
SELECT pg_extension_config_dump('inbox.rotation', '');
SELECT pg_extension_config_dump('inbox.partition_offsets', '');
