-- Asks once for each of some claims that want the same; never waits.
--
-- ARGV  1 channel prefix   2 mode: x, w, r, p   3 intent: t(ry), w(atch), q(ueue)
--       4 lease µs         5 lock delay µs      6 most waiters
--       7 permits          8 capacity           9 floor of the token
--       10 claim they step down from, or -      11 about
--       12… the claims, one per record
-- Reply of one claim, or a list with the reply of each
--       TOKEN, a number: held, and nothing is left to be served
--       held TOKEN|- MORE · queued TICKET AHEAD LOOK MORE · busy MORE · gone CAUSE [REASON]
--       refused WHY [NUMBER]
--
-- Sent again with the same claim it finds the grant or the ticket and renews it.

local function long(K, raw, now, claim)
  local insist = false
  -- @include head.lua
  -- @include body.lua

  local mode, intent, lease, delay = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
  local count, of, floor = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
  local under, about = ARGV[10], ARGV[11]
  local kind = mode == 'x' and 'm' or mode == 'p' and 's' or 'r'

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
    return { 'held', format('%.0f', r.token), more }
  end

  local function watch()
    if not call('ZSCORE', W, claim) then call('ZADD', W, now, claim) end
    call('ZADD', V, now + $TICKET, claim)
    call('PEXPIRE', W, $QUEUE)
    call('PEXPIRE', V, $QUEUE)
    if not r.w then r.w, dirty = true, true end
  end

  local function enqueue()
    local limit = tonumber(ARGV[6])
    local waiting = call('ZCARD', Q)
    if waiting >= limit then
      -- The full queue may be full of the dead. Before the new ticket is added:
      -- a sweep after it could take half of it away.
      for _, dead in ipairs(call('ZRANGEBYSCORE', E, '-inf', now)) do drop_ticket(dead) end
      waiting = call('ZCARD', Q)
    end
    if waiting >= limit then return refused('full', limit) end
    r.kind, r.q, dirty = kind, true, true
    if mode == 'p' and r.cap == 0 then r.cap = of end
    -- Never a number that a lost record may have given out before.
    r.ticket = math.max(r.ticket + 1, now)
    call('ZADD', Q, r.ticket, claim)
    call('HSET', T, claim, format('%s %d %d %.0f %.0f %s', mode, count, of, now, delay, about))
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
  if r.q and call('ZSCORE', Q, claim) then
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
    return { 'held', token and format('%.0f', token) or '-', more }
  end
  if intent == 'q' then return enqueue() end
  if intent == 'w' then watch() end
  save()
  return { 'busy', more }
end

-- @include start.lua
local try, sub, type = redis.pcall, string.sub, type

-- The short cuts are for claims of one holder, and for a record that is not
-- closed. Nobody in it and no flags: granted, with a token by the clock.
local mode, lease, free = ARGV[2], tonumber(ARGV[4]), nil
if ARGV[9] == '0' and ARGV[10] == '-' and lease <= $HOUR then
  free = mode == 'x' and '2m---- ' or mode == 'w' and '2r---- '
end
-- A live holder, and no flag but the queue's: a new ticket, unless the head of
-- the queue is dead.
local line = free and ARGV[3] == 'q' and sub(free, 1, 2) .. 'q--- '
-- The record to be written is BEFORE ticket … BETWEEN claim AFTER.
local before, between, after
if free then
  local stamp = string.format('%016.0f', now)
  before = free .. stamp
  between = string.format(' %016.0f ', now + lease)
  after = ' ' .. stamp .. ' - ' .. stamp .. ' ' .. ARGV[5] .. ' ' .. ARGV[11]
end

local answers = {}
for i = 12, #ARGV do
  local K, claim, argument, answer = KEYS[i - 11], ARGV[i]
  local raw = try('GET', K)
  local start = free and type(raw) == 'string' and sub(raw, 1, 7)
  if start and start == free and #raw == 46 and sub(raw, 41) == ' 0 0 0' and tonumber(sub(raw, 8, 23)) < now then
    local text = before .. sub(raw, 24) .. between .. claim .. after
    local done = try('SET', K, text, 'PX', '$LIFE')
    answer = done.err and done or now
  elseif line and (start == line or start == free) and sub(raw, 41, 47) == ' 0 0 0 '
    and sub(raw, 64, 65 + #claim) ~= ' ' .. claim .. ' ' then
    local left = tonumber(sub(raw, 48, 63)) - now
    local Q, E, waiting, alive = K .. ':q', K .. ':e', 0, true
    if start == line then
      waiting = try('ZCARD', Q)
      if waiting ~= 0 then
        local head = try('ZRANGE', Q, 0, 0)[1]
        local ends = head and try('ZSCORE', E, head)
        alive = type(ends) == 'string' and tonumber(ends) > now
      end
    end
    -- Whatever is strange goes the long way, which says so.
    if alive and left > 0 and left <= $HOUR and waiting < tonumber(ARGV[6]) then
      -- Never a number that a lost record may have given out before.
      local ticket = math.max(tonumber(sub(raw, 25, 40)) + 1, now)
      local done = try('ZADD', Q, 'NX', ticket, claim)
      if type(done) == 'table' then
        answer = done
      elseif done == 1 then
        local T = K .. ':t'
        local details = try('HSET', T, claim,
          string.format('%s %s %s %.0f %s %s', mode, ARGV[7], ARGV[8], now, ARGV[5], ARGV[11]))
        local life = try('ZADD', E, now + $TICKET, claim)
        -- Not by the beats alone: in a lively queue nobody waits for long
        -- enough to beat, and it is never empty.
        if waiting == 0 or try('PTTL', Q) < $QUEUE / 2 then
          try('PEXPIRE', Q, $QUEUE)
          try('PEXPIRE', E, $QUEUE)
          try('PEXPIRE', T, $QUEUE)
        end
        if type(details) == 'table' or type(life) == 'table' then
          try('ZREM', Q, claim)
          answer = type(details) == 'table' and details or life
        else
          try('SET', K, line .. sub(raw, 8, 24) .. string.format('%016.0f', ticket) .. sub(raw, 41), 'PX', '$LIFE')
          answer = { 'queued', string.format('%.0f', ticket), waiting, waiting == 0 and left or -1, 0 }
        end
      end
    end
  end
  -- @include several.lua
end
return #answers == 1 and answers[1] or answers
