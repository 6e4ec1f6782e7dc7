-- Writes a key and deletes it: whoever may not, or cannot, learns it before
-- the first lock does.
--
-- KEYS[1]  a key nobody else uses      Reply done

redis.call('SET', KEYS[1], '1', 'PX', 1000)
redis.call('DEL', KEYS[1])
return 'done'
