-- Ends whatever a claim has, and passes the name on.
--
-- ARGV  1 channel prefix   2 claim   3 µs that the name stays closed
--       4 1 if a request of the claim may still be under way: then it is
--         remembered, and never granted again
-- Reply held MORE · queued MORE · nothing MORE

local insist = true
-- @include start.lua

local claim, linger, unsure = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'

-- The common case: the exclusive holder, and nobody near it.
if raw and linger == 0 and not unsure then
  local kept, closed, ends, holder =
    string.match(raw, '^(1 %l %- %d+ %d+ %d+ %d+ (%d+)) (%d+) %d+ %d+ %d+ (%S+) ')
  if holder == claim and tonumber(ends) > now and tonumber(closed) <= now then
    local done = redis.pcall('SET', K, kept .. ' 0 0 0 0 - - ', 'PX', RETENTION)
    -- Out of memory: the long way knows what to do.
    if not done.err then return { 'held', 0 } end
  end
end

-- @include head.lua
-- @include body.lua

local found = 'nothing'
if r.w then
  redis.call('ZREM', W, claim)
  redis.call('ZREM', V, claim)
end
local h = shared(claim)
if (r.claim == claim and r.ends > 0) or h then
  found = 'held'
  if h then drop_shared(claim, h) else vacate() end
  if linger > 0 then r.closed, dirty = math.max(r.closed, now + linger), true end
elseif r.q and redis.call('ZSCORE', Q, claim) then
  found = 'queued'
  drop_ticket(claim)
end
if unsure then remember(claim, now + REMEMBER) end
serve()
save()
return { found, more }
