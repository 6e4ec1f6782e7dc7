-- Keeps a claim alive if it still is what its keeper believes. Never creates.
--
-- ARGV  1 channel prefix   2 claim   3 believed: h(eld), q(ueued)
--       4 its token or - · its ticket   5 lease µs   6 floor of the name's counter
-- Reply held TOKEN|- MORE · queued TICKET AHEAD LOOK MORE · gone CAUSE [REASON]
--
-- A believed place that turns out to be granted is confirmed for the lease.

local insist = true
-- @include start.lua
-- @include head.lua

local claim, lease, floor = ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[6])
local believed = ARGV[3] == 'h' and ARGV[4] or nil

-- The common case: the exclusive holder, and nobody near it.
if r and r.flags == '-' and r.claim == claim and r.ends > now and r.revoked == '-' and believed
  and r.token == tonumber(believed) then
  r.ends = math.max(r.ends, now + lease)
  r.counter = math.max(r.counter, floor)
  write()
  return { 'held', believed, 0 }
end

-- @include body.lua

local answer = extend(claim, lease, believed, floor) or finished(claim)
if not answer then
  local ticket = r.q and redis.call('ZSCORE', Q, claim)
  if ARGV[3] == 'h' then
    answer = { 'gone', (r.ends == 0 and not r.s) and 'expired' or 'taken_over' }
  elseif ticket and tonumber(ticket) == tonumber(ARGV[4]) then
    dirty = true -- the record must outlive the queue
    answer = refresh(claim)
  else
    answer = { 'gone', 'expired' }
  end
end
save()
return answer
