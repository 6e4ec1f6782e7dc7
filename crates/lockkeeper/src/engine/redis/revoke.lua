-- Takes a grant from its owner, if it still is the one meant.
--
-- ARGV  1 channel prefix   2 claim   3 its token or -   4 how: o(rderly), n(ow)   5 reason
-- Reply held MORE · nothing MORE
--
-- Orderly, it can only not be renewed any more: the name passes on when its
-- owner lets go or its lease ends. Now, the name is free at once.

local insist = true
-- @include start.lua
local K = KEYS[1]
local raw = redis.pcall('GET', K)
-- @include head.lua
-- @include body.lua

local claim, how, reason = ARGV[2], ARGV[4], ARGV[5]
local held = r.claim == claim and r.ends > 0
local h = not held and shared(claim)
local token = held and format('%.0f', r.token) or h and h.token
if token ~= ARGV[3] then
  save()
  return { 'nothing', more }
end
if how == 'o' then
  if held then
    r.revoked, dirty = 'r' .. reason, true
  else
    h.revoked = 'r' .. reason
    keep_shared(claim, h)
  end
else
  local ends = held and r.ends or tonumber(call('ZSCORE', L, claim) or 0)
  if held then vacate() else drop_shared(claim, h) end
  -- Its owner must hear "broken" whenever it asks, and a late request of it
  -- must not be granted.
  remember(claim, math.max(ends, now + $REMEMBER), reason)
end
push(claim, 'b ' .. claim .. ' ' .. reason)
serve()
save()
return { 'held', more }
