-- Ends whatever each of some claims has, and passes the names on.
--
-- ARGV  1 channel prefix   2 µs that the names stay closed
--       3 1 if a request of the claims may still be under way: then they are
--         remembered, and never granted again; else 0
--       4… the claims, one per record
-- Reply of one claim, or a list with the reply of each
--       1: held, and nothing is left to be served
--       held MORE · queued MORE · nothing MORE

local function long(K, raw, now, claim)
  local insist = true
  -- @include head.lua
  -- @include body.lua

  local linger, unsure = tonumber(ARGV[2]), ARGV[3] == '1'
  local found = 'nothing'
  if r.w then
    call('ZREM', W, claim)
    call('ZREM', V, claim)
  end
  local h = shared(claim)
  if (r.claim == claim and r.ends > 0) or h then
    found = 'held'
    if h then drop_shared(claim, h) else vacate() end
    if linger > 0 then r.closed, dirty = math.max(r.closed, now + linger), true end
  elseif r.q and call('ZSCORE', Q, claim) then
    found = 'queued'
    drop_ticket(claim)
  end
  if unsure then remember(claim, now + $REMEMBER) end
  serve()
  save()
  return { found, more }
end

-- @include start.lua

-- The short cuts are for the exclusive holder of a record that was never
-- closed. Without flags, the record keeps its time to live, which counts from
-- the end of the lease that ends here. With a queue and no other flag, the name
-- is passed to the head if that is alive and wants to be alone.
local plain = ARGV[2] == '0' and ARGV[3] == '0'

local try, sub, type, answers = redis.pcall, string.sub, type, {}
for i = 4, #ARGV do
  local K, claim, argument, answer = KEYS[i - 3], ARGV[i]
  local raw = try('GET', K)
  local flags = plain and type(raw) == 'string' and sub(raw, 3, 7)
  if flags and sub(raw, 41, 47) == ' 0 0 0 ' and sub(raw, 64, 65 + #claim) == ' ' .. claim .. ' '
    and tonumber(sub(raw, 48, 63)) > now then
    if flags == '---- ' then
      local done = try('SET', K, sub(raw, 1, 46), 'KEEPTTL')
      -- Out of memory: the long way knows what to do.
      if not done.err then answer = 1 end
    elseif flags == 'q--- ' then
      local Q, E, T = K .. ':q', K .. ':e', K .. ':t'
      local head = try('ZRANGE', Q, 0, 0, 'WITHSCORES')
      local heir = head[1]
      local ends = heir and try('ZSCORE', E, heir)
      ends = type(ends) == 'string' and tonumber(ends) or 0
      local text, delay, about = ends > now and try('HGET', T, heir)
      if type(text) == 'string' then
        delay, about = string.match(text, '^[xw] %d+ %d+ %d+ (%d+) (.*)$')
      end
      local token = math.max(tonumber(sub(raw, 8, 23)) + 1, now)
      if delay and ends - now <= $HOUR and token <= $LARGEST then
        local stamp = string.format('%016.0f', token)
        try('ZREM', Q, heir)
        try('ZREM', E, heir)
        try('HDEL', T, heir)
        -- A short grant: it lasts as long as the ticket would have.
        try('SET', K, sub(raw, 1, 7) .. stamp .. sub(raw, 24, 47)
          .. string.format('%016.0f %s %s - %016.0f ', ends, heir, stamp, now)
          .. delay .. ' ' .. about, 'PX', '$LIFE')
        try(string.find(ARGV[1], '{', 1, true) and 'SPUBLISH' or 'PUBLISH', ARGV[1] .. sub(heir, 1, 32),
          string.format('h %s %.0f %.0f', heir, tonumber(head[2]), token))
        answer = 1
      end
    end
  end
  -- @include several.lua
end
return #answers == 1 and answers[1] or answers
