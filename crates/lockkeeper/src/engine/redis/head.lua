-- Part of every script, after its short cut: the record, read and written.
--
-- `insist`, set by the script: whether the record is written though the server
-- is out of memory.

-- The record. `ends` is the end of the exclusive holder's lease, 0 for none.
local r
if raw then
  local kind, flags, counter, ticket, cap, used, closed, ends, since, delay, token, claim, revoked, about =
    string.match(raw, '^1 (%l) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
  if not kind then
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
  local keep = math.max(r.ends, r.closed, last or 0) - now
  if keep < 0 then keep = 0 end
  local text = string.format('1 %s %s %.0f %.0f %d %d %.0f %.0f %.0f %.0f %.0f %s %s %s',
    r.kind, r.flags, r.counter, r.ticket, r.cap, r.used, r.closed, r.ends, r.since, r.delay,
    r.token, r.claim, r.revoked, r.about)
  if r.kind == 'f' then
    redis.call('SET', K, text) -- a fence that forgets protects nothing
    return
  end
  local ms = string.format('%.0f', RETENTION + keep / 1000)
  if insist then
    local done = redis.pcall('SET', K, text, 'PX', ms)
    if not done.err then return end
    -- Out of memory: the server refuses a script's first write if it could
    -- need more, but not one after another write. What is held already must
    -- not be lost for that.
    redis.call('PEXPIRE', K, ms)
  end
  redis.call('SET', K, text, 'PX', ms)
end
