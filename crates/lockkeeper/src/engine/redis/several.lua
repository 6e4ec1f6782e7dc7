-- Part of the scripts that take several claims, where the short cut has no
-- answer: goes the long way, and keeps the answer, an error too, for this claim.
-- (Redis 6 raises text, later ones a table that is a reply already.)

if not answer then
  local done
  done, answer = pcall(long, K, raw, now, claim, argument)
  if not done and type(answer) ~= 'table' then answer = redis.error_reply(answer) end
end
answers[#answers + 1] = answer
