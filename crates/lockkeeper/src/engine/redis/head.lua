-- Part of every script, after its short cut: the record of K, read and written.
--
-- Set by the script:
--   `raw`      the record as text; false if there is none; an error's table
--   `now`      the server's clock
--   `insist`   whether the record is written though the server is out of memory

if type(raw) == 'table' then return raw end
local call, format, match = redis.call, string.format, string.match

-- The record is one line, its first columns of fixed width, so that short cuts
-- can pick what they need by position:
--   1 version, 2 kind, 3-6 flags, 8-23 counter, 25-40 ticket, then from 41 on
--   capacity, used, closed; and if there is an exclusive holder
--   ends (16), claim, token (16), revoked, since (16), delay, about
-- A mutex or read/write lock that is not closed has ' 0 0 0' in 41-46; its
-- holder's `ends` is in 48-63, and its claim from 65 on.
--
-- Below, `ends` is the end of the exclusive holder's lease, 0 for none.
local r
if raw then
  local kind, flags, counter, ticket, cap, used, closed, holder =
    match(raw, '^2(%l)([%-qswx]+) (%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
  local ends, claim, token, revoked, since, delay, about = 0, '-', 0, '-', 0, 0, ''
  if kind and holder ~= '' then
    ends, claim, token, revoked, since, delay, about =
      match(holder, '^ (%d+) (%S+) (%d+) (%S+) (%d+) (%d+) (.*)$')
  end
  if not kind or not ends then
    return redis.error_reply('FOREIGN the key holds something else')
  end
  r = {
    kind = kind, flags = flags, counter = tonumber(counter), ticket = tonumber(ticket),
    cap = tonumber(cap), used = tonumber(used), closed = tonumber(closed), ends = tonumber(ends),
    since = tonumber(since), delay = tonumber(delay), token = tonumber(token),
    claim = claim, revoked = revoked, about = about,
  }
end

-- Writes the record with its flags as they are. `last` is an instant up to
-- which something beside it matters.
local function write(last)
  -- A closed time that is over is none: the short cuts know only 0.
  if r.closed <= now then r.closed = 0 end
  local text = format('2%s%s %016.0f %016.0f %d %d %.0f',
    r.kind, r.flags, r.counter, r.ticket, r.cap, r.used, r.closed)
  if r.ends > 0 then
    text = text .. format(' %016.0f %s %016.0f %s %016.0f %.0f %s',
      r.ends, r.claim, r.token, r.revoked, r.since, r.delay, r.about)
  end
  if r.kind == 'f' then
    call('SET', K, text) -- a fence that forgets protects nothing
    return
  end
  local keep = math.max(r.ends, r.closed, last or 0) - now
  local ms = keep <= $HOUR and '$LIFE' or format('%.0f', $RETENTION + keep / 1000)
  if insist then
    local done = redis.pcall('SET', K, text, 'PX', ms)
    if not done.err then return end
    -- Out of memory: the server refuses a script's first write if it could
    -- need more, but not one after another write. What is held already must
    -- not be lost for that.
    call('PEXPIRE', K, ms)
  end
  call('SET', K, text, 'PX', ms)
end
