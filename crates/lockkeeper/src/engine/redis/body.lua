-- What the scripts have in common: ending leases, serving the queue, granting.
-- It follows lockkeeper's model step by step (src/model/claims.rs).
--
-- ARGV[1]  the prefix of push channels; a claim's first 32 characters, its
--          keeper's id, complete it. With a hash tag in it, the channels are
--          those of a cluster's slot.
--
-- Keys beside the record, all with a time to live, all gone when empty:
--   :q :e :t   the queue: claim -> ticket, claim -> end of its life, claim -> details
--   :l :h      shared holders: claim -> end of its lease, claim -> details
--   :x :y      finished claims: claim -> until when, claim -> why it was broken
--   :w :v      watchers: claim -> order of arrival, claim -> end of the wish
--   :d :c      the latch or fence; keepers to tell of its changes -> end of the wish

local CHANNEL = ARGV[1]
local PUBLISH = string.find(CHANNEL, '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
local Q, E, T = K .. ':q', K .. ':e', K .. ':t'
local L, H = K .. ':l', K .. ':h'
local X, Y = K .. ':x', K .. ':y'
local W, V = K .. ':w', K .. ':v'
local D, C = K .. ':d', K .. ':c'
local dirty = false -- whether the record must be written
local last -- an instant up to which the record must live
local more = 0 -- 1 if there was more to serve than one call should

if r then
  -- A flag says "look there", and may be set in vain, but never missing.
  for flag in string.gmatch(r.flags, '%l') do r[flag] = true end
else
  r = {
    kind = 'n', flags = '----', counter = 0, ticket = 0, cap = 0, used = 0, closed = 0, ends = 0,
    since = 0, delay = 0, token = 0, claim = '-', revoked = '-', about = '',
  }
  -- Without a record anything may be left of the rest.
  if call('EXISTS', Q, L, X, W, D) > 0 then
    r.q, r.s, r.x, r.w = true, true, true, true
    if call('EXISTS', D) > 0 then r.kind = call('HEXISTS', D, 'highest') > 0 and 'f' or 'l' end
    for _, key in ipairs({ H, T }) do
      for _, text in ipairs(call('HVALS', key)) do
        local mode, count = match(text, '^(%l) (%d+) ')
        r.kind = mode == 'x' and 'm' or mode == 'p' and 's' or 'r'
        if key == H then r.used = r.used + tonumber(count) end
        if mode == 'p' then r.cap = math.max(r.cap, tonumber(match(text, '^%l %d+ (%d+)'))) end
      end
    end
  end
end

local function save()
  if not dirty then return end
  r.flags = (r.q and 'q' or '-') .. (r.s and 's' or '-') .. (r.w and 'w' or '-') .. (r.x and 'x' or '-')
  write(last)
end

-- Tells a claim's keeper.
local function push(claim, text)
  call(PUBLISH, CHANNEL .. string.sub(claim, 1, 32), text)
end

-- Lets a key live until `ends`, and a little longer; never shortens.
local function live(key, ends)
  local ms = (ends - now) / 1000 + 10000
  if call('PTTL', key) < ms then
    call('PEXPIRE', key, format('%.0f', ms))
  end
end

local function vacate()
  r.ends, r.since, r.delay, r.token, r.claim, r.revoked, r.about = 0, 0, 0, 0, '-', '-', ''
  dirty = true
end

-- The details of a shared holder.
local function shared(claim)
  local text = r.s and call('HGET', H, claim)
  if not text then return nil end
  local mode, count, of, token, since, delay, revoked, about =
    match(text, '^(%l) (%d+) (%d+) (%S+) (%d+) (%d+) (%S+) (.*)$')
  return {
    mode = mode, count = tonumber(count), of = of, token = token, since = since,
    delay = tonumber(delay), revoked = revoked, about = about,
  }
end

local function keep_shared(claim, h)
  call('HSET', H, claim, table.concat(
    { h.mode, h.count, h.of, h.token, h.since, format('%.0f', h.delay), h.revoked, h.about }, ' '))
end

local function drop_shared(claim, h)
  call('ZREM', L, claim)
  call('HDEL', H, claim)
  r.used = r.used - h.count
  dirty = true
  if call('EXISTS', L) == 0 then
    r.s, r.used = nil, 0
  end
end

-- Lets a shared holder's lease end at `ends`.
local function lease_shared(claim, ends, delay)
  call('ZADD', L, ends, claim)
  live(L, ends + delay)
  live(H, ends + delay)
  last = math.max(last or 0, ends + delay)
end

-- Tells those who watch the latch, the capacity or the fence.
local function changed()
  dirty = true
  for _, keeper in ipairs(call('ZRANGEBYSCORE', C, now, '+inf')) do
    push(keeper, 'c ' .. K)
  end
  call('DEL', C)
end

-- Does what time has done to holders, to finished claims and to a latch.
local function expire()
  if r.ends > 0 and r.ends <= now then
    -- Counted from the end of the lease, not from whenever somebody noticed.
    if r.delay > 0 then r.closed = math.max(r.closed, r.ends + r.delay) end
    vacate()
  end
  if r.s then
    local over = call('ZRANGEBYSCORE', L, '-inf', now, 'WITHSCORES')
    for i = 1, #over, 2 do
      local h = shared(over[i]) or { count = 0, delay = 0 }
      if h.delay > 0 then r.closed = math.max(r.closed, tonumber(over[i + 1]) + h.delay) end
      drop_shared(over[i], h)
    end
    if #over == 0 and call('EXISTS', L) == 0 then
      r.s, r.used, dirty = nil, 0, true
    end
  end
  if r.x then
    local over = call('ZRANGEBYSCORE', X, '-inf', now, 'LIMIT', 0, 100)
    if #over > 0 then
      call('ZREM', X, unpack(over))
      call('HDEL', Y, unpack(over))
    end
    if call('EXISTS', X) == 0 then r.x, dirty = nil, true end
  end
  if r.kind == 'l' then
    -- The name is free for anything once its latch is over.
    local ends = call('HGET', D, 'ends')
    if not ends or tonumber(ends) <= now then
      call('DEL', D)
      r.kind = 'n'
      changed()
    end
  end
end

local function drop_ticket(claim)
  call('ZREM', Q, claim)
  call('ZREM', E, claim)
  call('HDEL', T, claim)
end

-- Whether a claim in this mode can hold beside those who do.
local function fits(mode, count, of)
  if mode == 'p' then
    return r.used + count <= math.max(r.cap, r.kind == 'n' and of or 0)
  elseif mode == 'r' then
    return r.ends == 0
  end
  return r.ends == 0 and not r.s
end

-- A token above all before it; nil for a mode that has none, false at the end.
local function next_token(mode, floor)
  if mode == 'r' or mode == 'p' then return nil end
  local token = math.max(r.counter + 1, now, floor)
  if token > $LARGEST then return false end
  r.counter = token
  return token
end

local function grant(claim, mode, count, of, token, ends, delay, about)
  dirty = true
  if mode == 'x' or mode == 'w' then
    r.claim, r.token, r.ends, r.since, r.delay = claim, token, ends, now, delay
    r.revoked, r.about = '-', about
    return
  end
  if mode == 'p' and r.cap == 0 then r.cap = of end
  r.s = true
  r.used = r.used + count
  lease_shared(claim, ends, delay)
  keep_shared(claim, {
    mode = mode, count = count, of = of, token = token and format('%.0f', token) or '-',
    since = format('%.0f', now), delay = delay, revoked = '-', about = about,
  })
end

-- Tells one watcher that asking again is worth it.
local function nudge()
  while r.w do
    local claim = call('ZRANGE', W, 0, 0)[1]
    if not claim then
      r.w, dirty = nil, true
      return
    end
    local ends = call('ZSCORE', V, claim)
    call('ZREM', W, claim)
    call('ZREM', V, claim)
    if ends and tonumber(ends) > now then
      push(claim, 'n ' .. claim)
      return
    end
  end
end

-- Passes the name to the first live tickets that fit. What is passed on is a
-- short grant: it lasts as long as the ticket would have, until confirmed.
local function serve()
  local steps = 0
  while r.q do
    local head = call('ZRANGE', Q, 0, 0, 'WITHSCORES')
    local claim = head[1]
    if not claim then
      r.q, dirty = nil, true
      break
    end
    steps = steps + 1
    if steps > 250 then
      more = 1
      return
    end
    local ends = tonumber(call('ZSCORE', E, claim) or 0)
    local text = ends > now and call('HGET', T, claim)
    if not text then
      drop_ticket(claim)
    else
      local mode, count, of, delay, about =
        match(text, '^(%l) (%d+) (%d+) %d+ (%d+) (.*)$')
      count, of = tonumber(count), tonumber(of)
      if r.closed > now or not fits(mode, count, of) then return end
      local token = next_token(mode, 0)
      if token == false then return end
      drop_ticket(claim)
      push(claim, format('h %s %.0f %s', claim, tonumber(head[2]),
        token and format('%.0f', token) or '-'))
      grant(claim, mode, count, of, token, ends, tonumber(delay), about)
    end
  end
  if r.w and r.ends == 0 and not r.s and r.closed <= now then nudge() end
end

-- Why a claim is finished, as an answer; nil if it is not.
local function finished(claim)
  local ends = r.x and call('ZSCORE', X, claim)
  if not ends or tonumber(ends) <= now then return nil end
  local reason = call('HGET', Y, claim)
  return reason and { 'gone', 'broken', reason } or { 'gone', 'expired' }
end

-- Remembers a claim that is over; the first cause is the true one.
local function remember(claim, ends, reason)
  local known = call('ZSCORE', X, claim)
  if known then
    ends = math.max(ends, tonumber(known))
  elseif reason then
    call('HSET', Y, claim, reason)
  end
  call('ZADD', X, ends, claim)
  live(X, ends)
  live(Y, ends)
  if not r.x then r.x, dirty = true, true end
end

-- Makes a live grant a full lease again; never shortens it. Answers nil for a
-- claim that holds nothing.
local function extend(claim, lease, believed, floor)
  local held = r.claim == claim and r.ends > 0
  local h = not held and shared(claim)
  if not held and not h then return nil end
  local token = held and format('%.0f', r.token) or h.token
  -- As numbers, if they are: they may be written with zeros in front.
  if believed and (tonumber(believed) or believed) ~= (tonumber(token) or token) then
    return { 'gone', 'taken_over' }
  end
  if floor > r.counter then r.counter, dirty = floor, true end
  local revoked = held and r.revoked or h and h.revoked
  if revoked ~= '-' then return { 'gone', 'broken', string.sub(revoked, 2) } end
  if held then
    r.ends = math.max(r.ends, now + lease)
  else
    local ends = tonumber(call('ZSCORE', L, claim) or 0)
    lease_shared(claim, math.max(ends, now + lease), h.delay)
  end
  dirty = true
  return { 'held', token, more }
end

-- The answer to a claim that waits: its ticket, how many are ahead, and for
-- the first in line in how many µs a lease or a closed time ends (or -1).
local function queued(claim)
  local ahead = call('ZRANK', Q, claim)
  local look = -1
  if ahead == 0 then
    local soonest = r.ends > 0 and r.ends or nil
    local first = r.s and call('ZRANGE', L, 0, 0, 'WITHSCORES')[2]
    if first then soonest = math.min(soonest or $LARGEST, tonumber(first)) end
    look = math.max(0, (soonest or r.closed) - now)
  end
  return { 'queued', format('%.0f', tonumber(call('ZSCORE', Q, claim))), ahead, look, more }
end

-- Gives a ticket its full life.
local function refresh(claim)
  local ends = tonumber(call('ZSCORE', E, claim) or 0)
  -- First what needs no memory: a server that is out of it lets the rest pass.
  call('PEXPIRE', Q, $QUEUE)
  call('ZADD', E, math.max(ends, now + $TICKET), claim)
  call('PEXPIRE', E, $QUEUE)
  call('PEXPIRE', T, $QUEUE)
  return queued(claim)
end

expire()
serve()
