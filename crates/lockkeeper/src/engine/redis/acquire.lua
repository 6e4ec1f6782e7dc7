-- Asks once for a claim; never waits.
--
-- ARGV  1 channel prefix   2 claim        3 mode: x, w, r, p   4 permits   5 capacity
--       6 lease µs         7 lock delay µs   8 most waiters    9 claim it steps down from, or -
--       10 about           11 intent: t(ry), w(atch), q(ueue)  12 floor of the token
-- Reply held TOKEN|- MORE · queued TICKET AHEAD LOOK MORE · busy MORE · gone CAUSE [REASON]
--       refused WHY [NUMBER]
--
-- Sent again with the same claim it finds the grant or the ticket and renews it.

local insist = false
-- @include start.lua

local claim, mode, lease, delay = ARGV[2], ARGV[3], tonumber(ARGV[6]), tonumber(ARGV[7])
local kind = mode == 'x' and 'm' or mode == 'p' and 's' or 'r'
local under, about, intent, floor = ARGV[9], ARGV[10], ARGV[11], tonumber(ARGV[12])

-- The common case, without a look beside the record: of this kind, no flags,
-- nobody in it. What stays as it is is not even read as a number.
if raw and mode ~= 'r' and mode ~= 'p' and under == '-' then
  local counter, middle, closed = string.match(raw, '^1 ' .. kind .. ' %- (%d+) (%d+ %d+ %d+) (%d+) 0 ')
  local token = counter and math.max(tonumber(counter) + 1, now, floor)
  if token and token <= LARGEST and tonumber(closed) <= now then
    local text = string.format('%.0f', token)
    redis.call('SET', K, string.format('1 %s - %s %s %s %.0f %.0f %s %s %s - %s',
      kind, text, middle, closed, now + lease, now, ARGV[7], text, claim, about),
      'PX', math.floor(RETENTION + lease / 1000))
    return { 'held', text, 0 }
  end
end

-- @include head.lua
-- @include body.lua

local count, of = tonumber(ARGV[4]), tonumber(ARGV[5])

local function refused(why, number)
  save()
  return { 'refused', why, number }
end

-- Grants a read beside the write it steps down from, ahead of the queue: the
-- name was not free in between, so nobody is overtaken.
local function step_down()
  if r.claim ~= under or r.ends == 0 or r.kind ~= 'r' or r.revoked ~= '-' or mode ~= 'r' then
    return refused('not_held_above')
  end
  grant(claim, mode, 0, 0, r.token, now + lease, delay, about)
  save()
  return { 'held', string.format('%.0f', r.token), more }
end

local function watch()
  if not redis.call('ZSCORE', W, claim) then redis.call('ZADD', W, now, claim) end
  redis.call('ZADD', V, now + TICKET, claim)
  redis.call('PEXPIRE', W, 4 * TICKET / 1000)
  redis.call('PEXPIRE', V, 4 * TICKET / 1000)
  if not r.w then r.w, dirty = true, true end
end

local function enqueue()
  local limit = tonumber(ARGV[8])
  local waiting = redis.call('ZCARD', Q)
  if waiting >= limit then
    -- The full queue may be full of the dead. Before the new ticket is added:
    -- a sweep after it could take half of it away.
    for _, dead in ipairs(redis.call('ZRANGEBYSCORE', E, '-inf', now)) do drop_ticket(dead) end
    waiting = redis.call('ZCARD', Q)
  end
  if waiting >= limit then return refused('full', limit) end
  r.kind, r.q, dirty = kind, true, true
  if mode == 'p' and r.cap == 0 then r.cap = of end
  -- Never a number that a lost record may have given out before.
  r.ticket = math.max(r.ticket + 1, now)
  redis.call('ZADD', Q, r.ticket, claim)
  redis.call('HSET', T, claim, string.format('%s %d %d %.0f %.0f %s', mode, count, of, now, delay, about))
  local answer = refresh(claim)
  save()
  return answer
end

local gone = finished(claim)
if gone then
  save()
  return gone
end
local held = extend(claim, lease, nil, 0)
if held then
  save()
  return held
end
if r.q and redis.call('ZSCORE', Q, claim) then
  local answer = refresh(claim)
  save()
  return answer
end
if r.kind ~= 'n' and r.kind ~= kind then return refused('kind', r.kind) end
if mode == 'p' then
  local cap = r.kind == 'n' and of or r.cap
  if of ~= cap then return refused('capacity', cap) end
  if count > cap then return refused('large', cap) end
end
if under ~= '-' then return step_down() end
if not r.q and r.closed <= now and fits(mode, count, of) then
  r.kind = kind
  local token = next_token(mode, floor)
  if token == false then return refused('tokens') end
  grant(claim, mode, count, of, token, now + lease, delay, about)
  save()
  return { 'held', token and string.format('%.0f', token) or '-', more }
end
if intent == 'q' then return enqueue() end
if intent == 'w' then watch() end
save()
return { 'busy', more }
