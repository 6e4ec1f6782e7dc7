-- Works on a number that is no claim: latch, capacity, fence.
--
-- ARGV  1 channel prefix   2 operation   3… its arguments:
--   look KIND KEEPER|-          the keeper is told of the next change
--   set COUNT KEEP_µs ID        unless closed; the same id sets once
--   count ID                    once per id
--   remove
--   capacity TO
--   fence TOKEN                 twenty digits, compared as text: tokens of other
--                               engines exceed what a double can hold
-- Reply absent · latch LEFT ID · capacity N · fence TOKEN · refused kind KIND

local insist = false
-- @include start.lua
local K = KEYS[1]
local raw = redis.pcall('GET', K)
-- @include head.lua
-- Before the rest: the end of a latch that this very look notices is told too.
if ARGV[2] == 'look' and ARGV[4] ~= '-' then
  call('ZADD', K .. ':c', now + 4 * $TICKET, ARGV[4])
  call('PEXPIRE', K .. ':c', 8 * $TICKET / 1000)
end
-- @include body.lua

local op = ARGV[2]
local kind = op == 'look' and ARGV[3] or op == 'capacity' and 's' or op == 'fence' and 'f' or 'l'

local function number()
  if kind == 's' then return { 'capacity', r.cap } end
  if kind == 'f' then return { 'fence', call('HGET', D, 'highest') } end
  local left = call('HGET', D, 'left')
  if not left then return { 'absent' } end
  return { 'latch', tonumber(left), call('HGET', D, 'id') }
end

local function set_latch(count, keep, id)
  local left = call('HGET', D, 'left')
  if left and (tonumber(left) > 0 or call('HGET', D, 'id') == id) then return end
  -- Not in vain: after any write a server that is out of memory lets all pass.
  if left then call('DEL', D) end
  call('HSET', D, 'left', count, 'id', id, 'keep', keep, 'ends', now + tonumber(keep))
  live(D, now + tonumber(keep))
  last = now + tonumber(keep)
  changed()
end

local function count_down(id)
  local left = tonumber(call('HGET', D, 'left'))
  if left == 0 or call('HSETNX', D, 'by:' .. id, '1') == 0 then return end
  local ends = now + tonumber(call('HGET', D, 'keep'))
  call('HSET', D, 'left', left - 1, 'ends', ends)
  live(D, ends)
  last = ends
  changed()
end

local function set_capacity(to)
  if r.cap == to then return end
  r.cap = to
  -- A ticket for more permits than there are would block the queue for ever;
  -- its keeper asks again and is told the new capacity.
  for _, claim in ipairs(call('ZRANGE', Q, 0, -1)) do
    local count = match(call('HGET', T, claim) or '', '^%l (%d+) ')
    if count and tonumber(count) > to then
      drop_ticket(claim)
      push(claim, 'e ' .. claim)
    end
  end
  serve()
  changed()
end

if r.kind ~= 'n' and r.kind ~= kind then
  save()
  return { 'refused', 'kind', r.kind }
end
if r.kind == 'n' and (op == 'look' or op == 'count' or op == 'remove') then
  save()
  return { 'absent' }
end
if r.kind == 'n' then r.kind, dirty = kind, true end
if op == 'set' then
  set_latch(ARGV[3], ARGV[4], ARGV[5])
elseif op == 'count' then
  count_down(ARGV[3])
elseif op == 'remove' then
  call('DEL', D)
  r.kind = 'n'
  changed()
elseif op == 'capacity' then
  set_capacity(tonumber(ARGV[3]))
elseif op == 'fence' then
  local highest = call('HGET', D, 'highest')
  if not highest or ARGV[3] > highest then call('HSET', D, 'highest', ARGV[3]) end
end
save()
return number()
