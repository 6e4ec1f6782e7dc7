-- The tables of Lockkeeper in MySQL and MariaDB. Read them at any time:
--
--     SELECT label, mode, host, pid, note, token, since_at, until_at FROM {names}
--         WHERE until_us > 0;
--     SELECT label, state, mode, host, pid, note, since_at, until_at FROM {claims};
--
-- Numbers that end in _us are microseconds: instants since 1970 by the clock
-- of the database, or lengths of time. The columns that end in _at show
-- instants to people, in UTC, and label shows the name: the bytes of its
-- UTF-8, so that names that differ in case or in spaces differ.
-- Nothing here may be changed by hand; {meta} tells that the rest is there.

-- What is known of a name, whoever holds it: kept after the grant has ended.
-- Who holds it alone (exclusive, write) stands here, too, and stays when it
-- has ended, with an until_us of 0: the last one who did.
CREATE TABLE IF NOT EXISTS {names} (
    name             VARBINARY(512) NOT NULL PRIMARY KEY,
    kind             VARCHAR(16),          -- mutex, read_write, semaphore, latch, fence
    capacity         BIGINT NOT NULL,      -- of a semaphore
    counter          BIGINT NOT NULL,      -- the last token
    floor            BIGINT NOT NULL,      -- tokens are above it
    last_ticket      BIGINT NOT NULL,
    crowd            SMALLINT NOT NULL,    -- rows in {claims}: 0 none, 1 some, 2 many
    closed_until_us  BIGINT NOT NULL,
    used_us          BIGINT NOT NULL,
    fence            BIGINT,               -- the highest token shown
    latch_remaining  BIGINT,
    latch_set        VARBINARY(512),
    latch_keep_us    BIGINT,
    latch_until_us   BIGINT,
    claim            VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin,  -- who holds it alone, or did last
    mode             VARCHAR(16),          -- exclusive, write
    token            BIGINT,
    until_us         BIGINT NOT NULL,      -- 0: nobody holds it alone
    since_us         BIGINT,
    lock_delay_us    BIGINT,
    who              TEXT,
    host             TEXT,
    pid              BIGINT,
    note             TEXT,
    cause            VARCHAR(16),          -- why it may not be renewed
    reason           TEXT,
    label            VARCHAR(512) GENERATED ALWAYS AS (CONVERT(name USING utf8mb4)) VIRTUAL,
    since_at         DATETIME(6) GENERATED ALWAYS AS
                     (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL since_us MICROSECOND) VIRTUAL,
    until_at         DATETIME(6) GENERATED ALWAYS AS
                     (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL NULLIF(until_us, 0) MICROSECOND) VIRTUAL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Who else holds (held: read, permits), waits (queued, in the order of place),
-- wants to be told that asking again is worth it (watching) or is over for
-- good (finished).
CREATE TABLE IF NOT EXISTS {claims} (
    name           VARBINARY(512) NOT NULL,
    state          VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    place          BIGINT NOT NULL,
    permits        BIGINT NOT NULL,        -- how many, in mode permits
    capacity       BIGINT NOT NULL,        -- of how many
    claim          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mode           VARCHAR(16),            -- exclusive, write, read, permits
    token          BIGINT,
    until_us       BIGINT NOT NULL,
    since_us       BIGINT NOT NULL,
    lock_delay_us  BIGINT NOT NULL,
    who            TEXT NOT NULL,
    host           TEXT NOT NULL,
    pid            BIGINT NOT NULL,
    note           TEXT NOT NULL,
    cause          VARCHAR(16),            -- why it is over, or may not be renewed
    reason         TEXT,
    label          VARCHAR(512) GENERATED ALWAYS AS (CONVERT(name USING utf8mb4)) VIRTUAL,
    since_at       DATETIME(6) GENERATED ALWAYS AS
                   (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL since_us MICROSECOND) VIRTUAL,
    until_at       DATETIME(6) GENERATED ALWAYS AS
                   (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL until_us MICROSECOND) VIRTUAL,
    PRIMARY KEY (name, state, place, claim)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Who has counted a latch down.
CREATE TABLE IF NOT EXISTS {counted} (
    name  VARBINARY(512) NOT NULL,
    id    VARBINARY(512) NOT NULL,
    PRIMARY KEY (name, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Which keepers want to hear of the next change of a latch or capacity.
CREATE TABLE IF NOT EXISTS {listeners} (
    name    VARBINARY(512) NOT NULL,
    keeper  VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (name, keeper)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- What keepers are told; each looks for its own lines and takes them.
CREATE TABLE IF NOT EXISTS {mail} (
    keeper    VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    id        BIGINT NOT NULL AUTO_INCREMENT,
    line      TEXT NOT NULL,
    until_us  BIGINT NOT NULL,
    PRIMARY KEY (keeper, id),
    KEY by_id (id),
    KEY by_until (until_us)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- One row. Tokens of names that are new, or were forgotten, are above the floor.
CREATE TABLE IF NOT EXISTS {meta} (
    one      SMALLINT NOT NULL PRIMARY KEY,
    version  BIGINT NOT NULL,
    floor    BIGINT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Were all tables dropped, counting from one would repeat tokens; no name is
-- granted more often than once in a microsecond.
INSERT INTO {meta} (one, version, floor)
    VALUES (1, 1, CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED))
    ON DUPLICATE KEY UPDATE one = 1;
