-- Keeps each of some claims alive if it still is what its keeper believes.
-- Never creates.
--
-- ARGV  1 channel prefix   2 believed: h(eld), q(ueued)   3 lease µs   4 floor of the names' counters
--       5… for each record its claim, and the claim's token (in 16 digits) or -, or its ticket
-- Reply of one claim, or a list with the reply of each
--       TOKEN, a number: held, and nothing is left to be served
--       held TOKEN|- MORE · queued TICKET AHEAD LOOK MORE · gone CAUSE [REASON]
--
-- A believed place that turns out to be granted is confirmed for the lease.

local function long(K, raw, now, claim, number)
  local insist = true
  -- @include head.lua
  -- @include body.lua

  local lease, floor = tonumber(ARGV[3]), tonumber(ARGV[4])
  local believed = ARGV[2] == 'h' and number or nil
  local answer = extend(claim, lease, believed, floor) or finished(claim)
  if not answer then
    local ticket = r.q and call('ZSCORE', Q, claim)
    if believed then
      answer = { 'gone', (r.ends == 0 and not r.s) and 'expired' or 'taken_over' }
    elseif ticket and tonumber(ticket) == tonumber(number) then
      dirty = true -- the record must outlive the queue
      answer = refresh(claim)
    else
      answer = { 'gone', 'expired' }
    end
  end
  save()
  return answer
end

-- @include start.lua

-- The short cut is for the exclusive holder, not revoked, of a record with no
-- flags, never closed.
local lease = tonumber(ARGV[3])
local plain = ARGV[2] == 'h' and ARGV[4] == '0' and lease <= $HOUR
local ends = string.format('%016.0f', now + lease)

local try, sub, type, answers = redis.pcall, string.sub, type, {}
for i = 5, #ARGV, 2 do
  local K, claim, argument, answer = KEYS[(i - 3) / 2], ARGV[i], ARGV[i + 1]
  local raw = try('GET', K)
  if plain and type(raw) == 'string' and sub(raw, 3, 7) == '---- ' and sub(raw, 41, 47) == ' 0 0 0 ' then
    local holder = ' ' .. claim .. ' ' .. argument .. ' - '
    local left = sub(raw, 64, 63 + #holder) == holder and tonumber(sub(raw, 48, 63)) - now or 0
    -- Never shortened: what has longer left goes the long way.
    if left > 0 and left <= lease then
      local done = try('SET', K, sub(raw, 1, 47) .. ends .. sub(raw, 64), 'PX', '$LIFE')
      -- Out of memory: the long way knows what to do.
      if not done.err then answer = tonumber(argument) end
    end
  end
  -- @include several.lua
end
return #answers == 1 and answers[1] or answers
