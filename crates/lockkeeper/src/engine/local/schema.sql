-- The tables of `lk.db`. Operators may read them at any time:
--
--     sqlite3 -readonly lk.db 'SELECT * FROM holders'
--
-- Instants (until, since, used, …) are microseconds on CLOCK_MONOTONIC, which
-- starts anew with every boot; durations are microseconds. A session is the id
-- of a keeper and the name of its liveness file; session, number and turn
-- together are a claim. Nothing here may be written by hand.

-- One row: which boot the instants belong to, and two bounds of all tokens.
-- No token above the ceiling is ever granted, and the ceiling is on the disk
-- before it counts; so it is above everything a power cut can make us forget.
-- Tokens granted from now on are above the floor.
CREATE TABLE meta (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    boot    TEXT    NOT NULL,
    floor   INTEGER NOT NULL,
    ceiling INTEGER NOT NULL
);

-- What is known of a name, whoever holds it.
CREATE TABLE names (
    name            TEXT    NOT NULL PRIMARY KEY,
    kind            TEXT,
    capacity        INTEGER NOT NULL,
    counter         INTEGER NOT NULL,  -- the last token
    last_ticket     INTEGER NOT NULL,
    closed_until    INTEGER NOT NULL,
    used            INTEGER NOT NULL,
    latch_remaining INTEGER,
    latch_set       TEXT,
    latch_keep      INTEGER,
    latch_until     INTEGER,
    fence           INTEGER
) WITHOUT ROWID;

CREATE TABLE holders (
    name       TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    turn       INTEGER NOT NULL,
    mode       TEXT    NOT NULL,      -- exclusive, write, read or permits
    permits    INTEGER NOT NULL,      -- how many, in mode permits
    capacity   INTEGER NOT NULL,      -- of how many
    token      INTEGER,
    until      INTEGER NOT NULL,
    since      INTEGER NOT NULL,
    lock_delay INTEGER NOT NULL,
    who        TEXT    NOT NULL,
    host       TEXT    NOT NULL,
    pid        INTEGER NOT NULL,
    note       TEXT    NOT NULL,
    revoked    TEXT,
    PRIMARY KEY (name, session, number, turn)
) WITHOUT ROWID;

-- Who waits, served in the order of tickets.
CREATE TABLE tickets (
    name       TEXT    NOT NULL,
    ticket     INTEGER NOT NULL,
    session    TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    turn       INTEGER NOT NULL,
    mode       TEXT    NOT NULL,
    permits    INTEGER NOT NULL,
    capacity   INTEGER NOT NULL,
    until      INTEGER NOT NULL,
    since      INTEGER NOT NULL,
    lock_delay INTEGER NOT NULL,
    who        TEXT    NOT NULL,
    host       TEXT    NOT NULL,
    pid        INTEGER NOT NULL,
    note       TEXT    NOT NULL,
    PRIMARY KEY (name, ticket)
) WITHOUT ROWID;
CREATE UNIQUE INDEX tickets_by_claim ON tickets (name, session, number, turn);

-- Who wants to be told that asking again is worth it, without a place.
CREATE TABLE watchers (
    name    TEXT    NOT NULL,
    session TEXT    NOT NULL,
    number  INTEGER NOT NULL,
    turn    INTEGER NOT NULL,
    place   INTEGER NOT NULL,
    until   INTEGER NOT NULL,
    PRIMARY KEY (name, session, number, turn)
) WITHOUT ROWID;

-- Claims that are over and are never granted again.
CREATE TABLE finished (
    name    TEXT    NOT NULL,
    session TEXT    NOT NULL,
    number  INTEGER NOT NULL,
    turn    INTEGER NOT NULL,
    until   INTEGER NOT NULL,
    cause   TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    PRIMARY KEY (name, session, number, turn)
) WITHOUT ROWID;

-- Who has counted a latch down, in order.
CREATE TABLE counted (
    name  TEXT    NOT NULL,
    place INTEGER NOT NULL,
    id    TEXT    NOT NULL,
    PRIMARY KEY (name, place)
) WITHOUT ROWID;

-- Which sessions want to hear of the next change of a latch or capacity.
CREATE TABLE listeners (
    name    TEXT NOT NULL,
    session TEXT NOT NULL,
    PRIMARY KEY (name, session)
) WITHOUT ROWID;
