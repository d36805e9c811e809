-- Runs plans, each atomically (a script is): the twin of core/plan.py and the only entry point.
--
-- KEYS   of each plan the keys of its limits, and that of its record if it has one; all keys are in one slot
-- ARGV   [1] the time in microseconds, for tests; empty: this server's
--        then one string per plan, packed without gaps:
--          verb, one letter: c check, p peek, r refund, x reset, o once, u undo, s try out
--          the number of its limits, two bytes, and of its records, 0 or 1, one byte
--          cost, since: doubles
--          for each limit: the name of its step, ended by a zero byte; limit, capacity, window, gain, unit, every,
--          calm, warn, queue, fineness: doubles. With a calendar, when its period begins, when the next one does, and when that
--          is over take the places of gain, unit and every
-- reply  one string: for each plan the time in microseconds, then for each of its limits allowed, remaining,
--        retry_after, reset_after, pressure, delay; integers of 8 bytes. If a plan of several fails
--        all its numbers are -1 (somebody has put something else under its key) or -2 (the user lacks a permission),
--        nothing of it was done, and the others are answered.
--
-- try out is a check if the last check before it in this call was an admission, else a peek
-- once   checks, and keeps the answer as a record; finding one that is recent, it gives that answer and takes nothing.
--        The record is then marked by a byte at its end: more than one request goes by it
-- undo   takes back a check made at the time `since`, and forgets its record; see common.lua. With a record it does so
--        only for the request that made it, and if no other goes by it: otherwise what one of them took back would be
--        taken from the other, or taken back twice
--
-- Every key has a time to live after every operation: until its state means that nothing is used. And a plan that fails
-- has changed nothing that counts: a state is written by one command, after all reads; and where several are written, by
-- more commands than the one that a check of limits without logs needs, all permissions are looked at first. (What else
-- may be refused, memory or a replica's data, is refused up front.)
local time = call('TIME')
local now, least_ms = time[1] * 1000000 + time[2], 0
local clock_ms = (now - now % 1000) / 1000
if ARGV[1] ~= '' then now, least_ms = tonumber(ARGV[1]), 3600000 end

-- Keep the state of a limit for as long as it means something, which is for `reset` from now.
local function save(key, quota, before, after, reset)
  if not after then return end
  local ttl = (reset + -reset % 1000) / 1000 + 1000  -- and a second longer
  if ttl < least_ms then ttl = least_ms end
  if after == before then
    if call('PTTL', key) < ttl - 1000 then call('PEXPIRE', key, ttl) end  -- after a change of refill_every, or without any
    return
  end
  local expiry = format('%d', clock_ms + ttl)
  if quota.log then quota.log.save(key, after, ttl, expiry) else call('SET', key, after, 'PXAT', expiry) end
end

-- Decides what is not as simple as a check of one limit; made when it is needed.
local function decider()
  local RECORD_US, RECORD_MS = 300000000, '300000'
  local vetted = false
  -- Of the limits of a plan: what they hold before and after, for how long that means something, and what they answer,
  -- which follows the time. All are overwritten by the next plan.
  local before, after, resets, answers = {}, {}, {}, {pack('<i8', now)}

  -- Make sure, once, that no write of several will be refused.
  local function vet(key)
    if vetted then return end
    local may = redis.acl_check_cmd
    vetted = may('GET', key) and may('SET', key, '') and may('GETRANGE', key, '0', '0') and may('DEL', key)
      and may('SETRANGE', key, '0', '') and may('PTTL', key) and may('PEXPIRE', key, '1')
    if not vetted then error({err = 'NOPERM a command of this script'}) end
  end

  local function ask(plan, index, units, key, since)
    local quota = plan[index]
    local state, allowed, remaining, retry, reset, pressure, delay =
      quota.step(before[index], quota, units, now, key, since)
    after[index], resets[index] = state, reset
    answers[index + 1] = pack('<i8i8i8i8i8i8', allowed, remaining, retry, reset, pressure, delay)
    return allowed == 1, remaining
  end

  -- What the limit has now, and whether it would admit the cost; takes nothing, but may mend a state (law 8).
  local function look(plan, index, key)
    local _, remaining = ask(plan, index, 0, key)
    after[index] = before[index]
    if remaining < plan.cost then ask(plan, index, plan.cost, key) end
  end

  -- Take the cost from all limits if all admit it, else from none; returns the first that does not.
  local function check(plan, first)
    local count, cost = plan.count, plan.cost
    for refused = 1, count do
      if not ask(plan, refused, cost, KEYS[first + refused]) then
        for index = 1, count do
          if index ~= refused then look(plan, index, KEYS[first + index]) end
        end
        return refused
      end
    end
  end

  -- Do what needs no all-or-nothing.
  local function each(plan, verb, first)
    for index = 1, plan.count do
      local key = KEYS[first + index]
      if verb == 'r' then
        ask(plan, index, -plan.cost, key)
      elseif verb == 'u' and now >= plan.since then
        ask(plan, index, -plan.cost, key, plan.since)
      else
        if verb == 'u' then ask(plan, index, 0, key) else look(plan, index, key) end
        after[index] = before[index]
      end
      if not before[index] then after[index] = false end
    end
  end

  -- The keys of the plan follow KEYS[first].
  local function decided(plan, verb, first)
    local count, refused = plan.count, nil
    for index = 1, count do
      local key, log = KEYS[first + index], plan[index].log
      if verb == 'x' then
        call('DEL', key)
        before[index] = false
      elseif log then
        before[index] = log.load(key)
      else
        before[index] = call('GET', key)
      end
    end
    if verb == 'c' then refused = check(plan, first) else each(plan, verb, first) end
    for index = 1, count do save(KEYS[first + index], plan[index], before[index], after[index], resets[index]) end
    return concat(answers, '', 1, count + 1), not refused
  end

  return function(plan, verb, first)
    local count = plan.count
    local record = plan.records == 1 and KEYS[first + count + 1]
    if record or (count > 1 and (verb ~= 'c' or plan.logs)) then vet(KEYS[first + 1]) end
    if verb == 'o' then
      local recorded, size = call('GET', record), 8 + 48 * count
      local whole = recorded and (#recorded == size or #recorded == size + 1)
      if whole and now - unpack_from('<i8', recorded) < RECORD_US then
        if #recorded == size then call('SET', record, recorded .. '+', 'KEEPTTL') end
        return recorded:sub(1, size)
      end
      local answer, admitted = decided(plan, 'c', first)
      if admitted then call('SET', record, answer, 'PX', RECORD_MS) end
      return answer
    elseif record then
      local recorded = call('GET', record)
      if not recorded or #recorded ~= 8 + 48 * count or unpack_from('<i8', recorded) ~= plan.since then
        return (decided(plan, 'p', first))
      end
      call('DEL', record)
    end
    return decided(plan, verb, first)
  end
end

local decide

-- The answer to one plan, whose keys follow KEYS[first], and, of a check, whether it is an admission.
local function answer(plan, verb, first)
  if verb ~= 'c' or plan.count ~= 1 then
    decide = decide or decider()
    return decide(plan, verb, first)
  end
  local key, quota = KEYS[first + 1], plan[1]
  local before
  if quota.log then before = quota.log.load(key) else before = call('GET', key) end
  local after, allowed, remaining, retry, reset, pressure, delay = quota.step(before, quota, plan.cost, now, key)
  save(key, quota, before, after, reset)
  return pack('<i8i8i8i8i8i8i8', now, allowed, remaining, retry, reset, pressure, delay), allowed == 1
end

local several = #ARGV > 2
local plans, replies, first, admitted = several and {}, several and {}, 0, false
for index = 2, #ARGV do
  local text = ARGV[index]
  local plan = several and plans[text]
  if not plan then
    local verb, count, records, cost, since, at = unpack_from('<c1HBdd', text)
    plan = {false, verb = verb, count = count, records = records, cost = cost, since = since}
    local last, step, log
    for place = 1, count do
      local name, limit, capacity, window, gain, unit, every, calm, warn, queue, fine
      name, limit, capacity, window, gain, unit, every, calm, warn, queue, fine, at =
        unpack_from('<sdddddddddd', text, at)
      if name ~= last then
        last, step, log = name, step_named(name)
      end
      local quota = {
        step = step, limit = limit, capacity = capacity, window = window, gain = gain, unit = unit,
        full = capacity * unit, per = (fine > 0 or limit == 0) and window or 1, low = 4 * fine, calm = calm, warn = warn,
      }
      if every > 1 then quota.every = every end
      if queue == 1 then quota.queue = true end
      if log then quota.log, plan.logs = log, true end
      plan[place] = quota
    end
    if several then plans[text] = plan end
  end
  local verb = plan.verb
  if not several then return (answer(plan, verb, first)) end
  local tried = verb == 's'
  if tried then verb = admitted and 'c' or 'p' end
  local done, reply, passed = pcall(answer, plan, verb, first)
  if not tried then admitted = done and passed end
  if not done then
    local text = tostring(type(reply) == 'table' and reply.err or reply)
    local denied = text:find('NOPERM', 1, true) or text:find('ACL failure', 1, true) or text:find("can't run", 1, true)
    reply = string.rep(pack('<i8', denied and -2 or -1), 1 + 6 * plan.count)
  end
  replies[index - 1] = reply
  first = first + plan.count + plan.records
end
return concat(replies)
