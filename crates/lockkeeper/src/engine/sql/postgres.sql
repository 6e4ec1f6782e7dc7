-- The tables of Lockkeeper in PostgreSQL. Read them at any time:
--
--     SELECT name, mode, host, pid, note, token, since_at, until_at FROM {names}
--         WHERE until_us > 0;
--     SELECT name, state, mode, host, pid, note, since_at, until_at FROM {claims};
--
-- Numbers that end in _us are microseconds: instants since 1970 by the clock
-- of the database, or lengths of time. The columns that end in _at show
-- instants to people. In texts \ is written \\ and the character NUL \0.
-- Nothing here may be changed by hand; {meta} tells that the rest is there.

-- What is known of a name, whoever holds it: kept after the grant has ended.
-- Who holds it alone (exclusive, write) stands here, too, and stays when it
-- has ended, with an until_us of 0: the last one who did.
CREATE TABLE IF NOT EXISTS {names} (
    name             text COLLATE "C" PRIMARY KEY,
    kind             text,                 -- mutex, read_write, semaphore, latch, fence
    capacity         bigint NOT NULL,      -- of a semaphore
    counter          bigint NOT NULL,      -- the last token
    floor            bigint NOT NULL,      -- tokens are above it
    last_ticket      bigint NOT NULL,
    crowd            smallint NOT NULL,    -- rows in {claims}: 0 none, 1 some, 2 many
    closed_until_us  bigint NOT NULL,
    used_us          bigint NOT NULL,
    fence            bigint,               -- the highest token shown
    latch_remaining  bigint,
    latch_set        text,
    latch_keep_us    bigint,
    latch_until_us   bigint,
    claim            text,                 -- who holds it alone, or did last
    mode             text,                 -- exclusive, write
    token            bigint,
    until_us         bigint NOT NULL,      -- 0: nobody holds it alone
    since_us         bigint,
    lock_delay_us    bigint,
    who              text,
    host             text,
    pid              bigint,
    note             text,
    cause            text,                 -- why it may not be renewed
    reason           text,
    since_at         timestamptz GENERATED ALWAYS AS (to_timestamp(since_us / 1000000.0)) STORED,
    until_at         timestamptz GENERATED ALWAYS AS
                     (to_timestamp(NULLIF(until_us, 0) / 1000000.0)) STORED
) WITH (fillfactor = 50);

-- Who else holds (held: read, permits), waits (queued, in the order of place),
-- wants to be told that asking again is worth it (watching) or is over for
-- good (finished).
CREATE TABLE IF NOT EXISTS {claims} (
    name           text COLLATE "C" NOT NULL,
    state          text COLLATE "C" NOT NULL,
    place          bigint NOT NULL,
    permits        bigint NOT NULL,        -- how many, in mode permits
    capacity       bigint NOT NULL,        -- of how many
    claim          text COLLATE "C" NOT NULL,
    mode           text,                   -- exclusive, write, read, permits
    token          bigint,
    until_us       bigint NOT NULL,
    since_us       bigint NOT NULL,
    lock_delay_us  bigint NOT NULL,
    who            text NOT NULL,
    host           text NOT NULL,
    pid            bigint NOT NULL,
    note           text NOT NULL,
    cause          text,                   -- why it is over, or may not be renewed
    reason         text,
    since_at       timestamptz GENERATED ALWAYS AS (to_timestamp(since_us / 1000000.0)) STORED,
    until_at       timestamptz GENERATED ALWAYS AS (to_timestamp(until_us / 1000000.0)) STORED,
    PRIMARY KEY (name, state, place, claim)
) WITH (fillfactor = 50);

-- Who has counted a latch down.
CREATE TABLE IF NOT EXISTS {counted} (
    name  text COLLATE "C" NOT NULL,
    id    text COLLATE "C" NOT NULL,
    PRIMARY KEY (name, id)
);

-- Which keepers want to hear of the next change of a latch or capacity.
CREATE TABLE IF NOT EXISTS {listeners} (
    name    text COLLATE "C" NOT NULL,
    keeper  text COLLATE "C" NOT NULL,
    PRIMARY KEY (name, keeper)
);

-- One row. Tokens of names that are new, or were forgotten, are above the floor.
CREATE TABLE IF NOT EXISTS {meta} (
    one      smallint PRIMARY KEY CHECK (one = 1),
    version  bigint NOT NULL,
    floor    bigint NOT NULL
);

-- Were all tables dropped, counting from one would repeat tokens; no name is
-- granted more often than once in a microsecond.
INSERT INTO {meta} (one, version, floor)
    SELECT 1, 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    ON CONFLICT DO NOTHING;
