-- Tells everything about a name, and changes nothing.
--
-- Reply nothing for an unknown name; otherwise
--   NOW RECORD [CLAIM DETAILS]… of :h  [CLAIM END]… of :l  [CLAIM TICKET]… of :q
--   [CLAIM END]… of :e  [CLAIM DETAILS]… of :t  [LEFT ID END HIGHEST] of :d
-- Whoever reads it leaves out what is over by NOW.

local K = KEYS[1]
local raw = redis.call('GET', K)
if not raw then return {} end
local time = redis.call('TIME')
local none = {}
local kind, flags = string.match(raw, '^2(%l)([%-qswx]+) ')
if not kind then return redis.error_reply('FOREIGN the key holds something else') end
local s = string.find(flags, 's', 1, true)
local q = string.find(flags, 'q', 1, true)
local d = kind == 'l' or kind == 'f'
return {
  string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2])),
  raw,
  s and redis.call('HGETALL', K .. ':h') or none,
  s and redis.call('ZRANGE', K .. ':l', 0, -1, 'WITHSCORES') or none,
  q and redis.call('ZRANGE', K .. ':q', 0, -1, 'WITHSCORES') or none,
  q and redis.call('ZRANGE', K .. ':e', 0, -1, 'WITHSCORES') or none,
  q and redis.call('HGETALL', K .. ':t') or none,
  d and redis.call('HMGET', K .. ':d', 'left', 'id', 'ends', 'highest') or none,
}
