-- The database of the consumers: what they have done, and what they have read.

CREATE EXTENSION inbox;

-- The work itself.  An order that is billed twice would be here twice.
CREATE TABLE effects (
    event_id    text NOT NULL,
    body        text NOT NULL
);

-- Only for the proof at the end: each record that was read and whether it was new.
CREATE TABLE readings (
    event_id    text NOT NULL,
    consumer    text NOT NULL,
    partition   int NOT NULL,
    "offset"    bigint NOT NULL,
    new         boolean NOT NULL
);
