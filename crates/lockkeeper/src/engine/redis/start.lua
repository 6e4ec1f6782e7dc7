-- Part of every script: the server's clock.
--
-- KEYS     records, PREFIX{NAME}: one per claim where a script takes several.
--          The other keys of a name start with it (see body.lua) and share its
--          hash tag, so they share its slot
-- ARGV[1]  the prefix of push channels, see body.lua
--
-- A script runs alone on the server, so whatever it reads stays true until it
-- ends: that is all the atomicity there is, and all that is needed.
--
-- Numbers: microseconds of this century fit a double exactly, but `..` and
-- tostring() would print them as 1.76e+15. Only %.0f, command arguments and
-- integer replies are exact.
--
-- scripts.rs puts in the constants:
--   $TICKET     µs that a place in the queue lives unrefreshed
--   $QUEUE      ms that the keys of a queue live after the last sign of anybody in it
--   $REMEMBER   µs that a finished claim is remembered
--   $RETENTION  ms that an idle name is remembered: its tokens, kind and capacity
--   $HOUR       an hour in µs: leases up to it let the record live for $LIFE
--   $LIFE       ms, $RETENTION and an hour: a constant, since printing costs time
--   $LARGEST    the largest token that a double can count to
--
-- What is common is quick, in each script, by a short cut: it looks at the
-- record alone and declares no function that refers to anything around it,
-- because the server would make all of that anew for every call.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
