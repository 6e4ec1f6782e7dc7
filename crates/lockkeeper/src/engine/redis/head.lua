-- Part of every script: the server's time, and the record of the name.
--
-- KEYS[1]  the record, PREFIX{NAME}; the other keys of the name start with it
--          (see body.lua) and share its hash tag, so they share its slot
--
-- A script runs alone on the server, so whatever it reads stays true until it
-- ends: that is all the atomicity there is, and all that is needed.
--
-- Numbers: microseconds of this century fit a double exactly, but `..` and
-- tostring() would print them as 1.76e+15. Only %.0f, command arguments and
-- integer replies are exact.
--
-- `insist`, set by the script: whether the record is written though the server
-- is out of memory.

local K = KEYS[1]
local RETENTION = 86400000 -- ms that an idle name is remembered: its tokens, kind and capacity
local TICKET = 2000000 -- µs that a place in the queue lives unrefreshed
local REMEMBER = 60000000 -- µs that a finished claim is remembered
local LARGEST = 9007199254740991 -- the largest token that a double can count to

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- The record. `ends` is the end of the exclusive holder's lease, 0 for none.
local r
local raw = redis.call('GET', K)
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
