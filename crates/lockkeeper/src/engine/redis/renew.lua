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

-- The short cuts are for a record that was never closed, with no flag but the
-- queue's, and a live exclusive holder who is not revoked: for that holder, and
-- for a place in the queue behind a head that is alive.
local lease, held = tonumber(ARGV[3]), ARGV[2] == 'h'
local plain = ARGV[4] == '0' and lease <= $HOUR
local ends = string.format('%016.0f', now + lease)

local try, sub, type, answers = redis.pcall, string.sub, type, {}
for i = 5, #ARGV, 2 do
  local K, claim, argument, answer = KEYS[(i - 3) / 2], ARGV[i], ARGV[i + 1]
  local raw = try('GET', K)
  local flags = plain and type(raw) == 'string' and sub(raw, 3, 7)
  if (flags == '---- ' or flags == 'q--- ') and sub(raw, 41, 47) == ' 0 0 0 ' then
    local left = tonumber(sub(raw, 48, 63)) - now
    if left <= 0 then
      -- The name passes on: the long way.
    elseif sub(raw, 64, 65 + #claim) == ' ' .. claim .. ' ' then
      local token = sub(raw, 66 + #claim, 81 + #claim)
      -- Never shortened: what has longer left goes the long way.
      if left <= lease and sub(raw, 82 + #claim, 84 + #claim) == ' - ' and (token == argument or not held) then
        local done = try('SET', K, sub(raw, 1, 47) .. ends .. sub(raw, 64), 'PX', '$LIFE')
        -- Out of memory: the long way knows what to do.
        if not done.err then answer = tonumber(token) end
      end
    elseif not held and flags == 'q--- ' and left <= $HOUR then
      local Q, E = K .. ':q', K .. ':e'
      local ticket, head = try('ZSCORE', Q, claim), try('ZRANGE', Q, 0, 0)[1]
      local alive = head and try('ZSCORE', E, head)
      -- Whatever is strange goes the long way, which says so.
      if type(ticket) == 'string' and tonumber(ticket) == tonumber(argument)
        and type(alive) == 'string' and tonumber(alive) > now then
        -- First what needs no memory: a server that is out of it lets the rest
        -- pass then, and who waits is not sent away.
        try('PEXPIRE', Q, $QUEUE)
        local done = try('ZADD', E, 'GT', now + $TICKET, claim)
        if type(done) ~= 'table' then
          try('PEXPIRE', E, $QUEUE)
          try('PEXPIRE', K .. ':t', $QUEUE)
          local ahead = head == claim and 0 or try('ZRANK', Q, claim)
          answer = { 'queued', string.format('%.0f', tonumber(ticket)), ahead, ahead == 0 and left or -1, 0 }
        end
      end
    end
  end
  -- @include several.lua
end
return #answers == 1 and answers[1] or answers
