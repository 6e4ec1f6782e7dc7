-- Part of every script, its start: the server's time and the record as text.
--
-- KEYS[1]  the record, PREFIX{NAME}; the other keys of the name start with it
--          (see body.lua) and share its hash tag, so they share its slot
--
-- A script runs alone on the server, so whatever it reads stays true until it
-- ends: that is all the atomicity there is, and all that is needed.
--
-- Numbers: microseconds of this century fit a double exactly, but `..` and
-- tostring() would print them as 1.76e+15. Only %.0f, command arguments and
-- integer replies are exact.

local K = KEYS[1]
local RETENTION = 86400000 -- ms that an idle name is remembered: its tokens, kind and capacity
local TICKET = 2000000 -- µs that a place in the queue lives unrefreshed
local REMEMBER = 60000000 -- µs that a finished claim is remembered
local LARGEST = 9007199254740991 -- the largest token that a double can count to

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local raw = redis.call('GET', K)
