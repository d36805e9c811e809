-- Runs plans, each atomically (a script is): the twin of core/plan.py and the only entry point.
--
-- KEYS   of each plan the keys of its limits, and that of its record if it has one; all keys are in one slot
-- ARGV   [1] the time in microseconds, for tests; empty: this server's
--        then one string per plan, packed without gaps:
--          verb, one letter: c check, p peek, r refund, x reset, o once, u refund a charge, s try out, q find; C and O as c and
--          o, but they may be undone, and b undoes
--          the number of its limits, two bytes, and of its records, 0 or 1, one byte
--          since, a double; of u also until when it may be refunded
--          for each limit: its cost, a double; the name of its step, ended by a zero byte; limit, capacity, window,
--          gain, unit, every, calm, warn, queue, fineness: doubles. With a calendar, when its period begins, when the next one does, and when that
--          is over take the places of gain, unit and every
-- reply  one string: for each plan the time in microseconds, then for each of its limits allowed, remaining,
--        retry_after, reset_after, pressure, delay; integers of 8 bytes. If a plan of several fails
--        all its numbers are -1 (another program wrote to its key) or -2 (the user lacks a permission),
--        nothing of it was done, and the others are answered.
--
-- try out is a check if the last check before it in this call was an admission, else a peek
-- once   checks, and keeps the answer as a record; finding one that is recent, it gives that answer and takes nothing.
--        A byte at the end of the record then counts the requests that go by it beside the one that made it. If the
--        record is of other keys, allowed is 2 and the rest what the limits have now
-- find   q: the answer of once if there is such a record, else zeros
-- u      gives nothing back from that time on. With a record it keeps its answer there until then; finding one, it
--        gives that answer, and nothing back
-- undo   makes it as if a check of this cost at the time `since`, C or O, had never been made, and answers as a peek.
--        With a record it does so for the last of the requests that go by it, and forgets the record
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
-- With `longer` it does not expire sooner than before: so an undo need not know when that was.
local function save(key, quota, before, after, reset, longer)
  if not after then return end
  local ttl = (reset + -reset % 1000) / 1000 + 1000  -- and a second longer
  if ttl < least_ms then ttl = least_ms end
  if longer and before then ttl = math.max(ttl, call('PTTL', key)) end
  if after == before then
    if call('PTTL', key) < ttl - 1000 then call('PEXPIRE', key, ttl) end  -- after a change of refill_every, or without any
    return
  end
  local expiry = format('%d', clock_ms + ttl)
  if quota.log then quota.log.save(key, after, ttl, expiry) else call('SET', key, after, 'PXAT', expiry) end
end

-- The quota that is packed at a byte of a text, and where the next one begins. Of a bucket: `full` is its capacity in
-- fractions, of which `unit` make one unit of cost and `gain` come back in `per` us; `low` is the mark of a state that
-- counts as finely, without its two lowest bits (see core/token_bucket.py).
local last, step, size, log
local function quota_at(text, at)
  local name, limit, capacity, window, gain, unit, every, calm, warn, queue, fine
  name, limit, capacity, window, gain, unit, every, calm, warn, queue, fine, at =
    unpack_from('<sdddddddddd', text, at)
  if name ~= last then
    last, step, size, log = name, step_named(name)
  end
  local quota = {
    step = step, size = size, log = log, limit = limit, capacity = capacity, window = window, gain = gain, unit = unit,
    full = capacity * unit, per = (fine > 0 or limit == 0) and window or 1, low = 4 * fine, calm = calm, warn = warn,
  }
  if every > 1 then quota.every = every end
  if queue == 1 then quota.queue = true end
  return quota, at
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

  -- The journal of a key that holds a string follows the state. It has the checks of the last two seconds and what was
  -- there before them, so that any of them can be undone: by making the others again, each by the quota that it was made
  -- by. Its parts: the number of those quotas, a byte; whether anything was there before, a byte; when the journal began,
  -- and when the last check was made that became part of the state before, 0 for none, doubles; that state; the quotas
  -- as they came; and of each check the time, a double, the cost, four bytes, and which of the quotas, a byte. A cost
  -- below zero was undone, but others queue behind it, whose turn depends on it. What else changes the state ends
  -- the journal.
  local ENTRY, KEPT_US, LONGEST, MOST_QUOTAS = 13, 2000000, 64 * 13, 8

  -- The state before the checks of a journal, those checks, their quotas, and the two times; nil if there is none.
  local function journal_of(size, held)
    if not held or #held == size then return end
    local count, based = held:byte(size + 1, size + 2)
    if count == 0 then return end
    local begun, folded = unpack_from('<dd', held, size + 3)
    local first = size + 19 + based * size
    local quotas, at = {}, first
    for place = 1, count do
      local from = at
      quotas[place], at = quota_at(held, at)
      quotas[place].text = held:sub(from, at - 1)
    end
    return based == 1 and held:sub(size + 19, first - 1), held:sub(at), quotas, begun, folded
  end

  local function place_of(quota, quotas)
    for place = 1, #quotas do
      if quotas[place].text == quota.text then return place end
    end
  end

  -- The state after the checks of a journal up to the byte `last`.
  local function replayed(state, checks, quotas, last)
    for at = 1, last, ENTRY do
      local when, cost, place = unpack_from('<di4B', checks, at)
      local quota = quotas[place]
      state = quota.step(state, quota, math.abs(cost), when)
    end
    return state
  end

  local function joined(state, base, checks, quotas, begun, folded)
    if checks == '' and now - folded >= KEPT_US then return state end
    local texts = {}
    for place = 1, #quotas do texts[place] = quotas[place].text end
    return state .. pack('<BBdd', #quotas, base and 1 or 0, begun, folded) .. (base or '') .. concat(texts) .. checks
  end

  -- The state after a check, with its journal if that check, or a recent one before it, may be undone.
  local function noted(quota, held, state, cost, undoable)
    local base, checks, quotas, begun, folded = journal_of(quota.size, held)
    if not checks then
      if not undoable then return state end
      base, checks, quotas, begun, folded = held and held:sub(1, quota.size), '', {}, now, 0
    end
    local place, old = place_of(quota, quotas), 0
    local most = (place or #quotas < MOST_QUOTAS) and LONGEST or 0
    while old < #checks do
      local when = unpack_from('<d', checks, old + 1)
      if #checks - old < most and now - when < KEPT_US then break end
      old, folded = old + ENTRY, when
    end
    base, checks = replayed(base, checks, quotas, old), checks:sub(old + 1)
    if checks == '' then
      if not undoable and now - folded >= KEPT_US then return state end
      quotas, place = {}, nil
    end
    if not place then
      place = #quotas + 1
      quotas[place] = quota
    end
    return joined(state, base, checks .. pack('<di4B', now, cost, place), quotas, begun, folded)
  end

  -- Where in a journal a check is that is to be undone: the last of those that are alike. In a queue it is the first of
  -- them, as each has its turn, and so it stays until the others are undone as well.
  local function entry_of(quota, checks, place, cost, since)
    local found
    for at = 1, #checks, ENTRY do
      local when, units, made_by = unpack_from('<di4B', checks, at)
      if when == since and units == cost and made_by == place then
        found = at
        if quota.queue then return found end
      end
    end
    return found
  end

  -- What a key holds once a check is undone; what it holds now if the journal does not know that check. If it knows only
  -- that it was made, then what surely still counted of it when the others began is taken back.
  local function undone(quota, held, cost, since, key)
    local base, checks, quotas, begun, folded = journal_of(quota.size, held)
    if not checks then return held end
    local place = place_of(quota, quotas)
    local at = place and entry_of(quota, checks, place, cost, since)
    if at then
      local instead = quota.queue and pack('<di4B', since, -cost, place) or ''
      checks = checks:sub(1, at - 1) .. instead .. checks:sub(at + ENTRY)
      while checks ~= '' and unpack_from('<i4', checks, #checks - 4) < 0 do checks = checks:sub(1, -1 - ENTRY) end
    elseif begun <= since and since <= folded and folded <= now then
      base = quota.step(base, quota, -cost, folded, key, since)
    else
      return held
    end
    return joined(replayed(base, checks, quotas, #checks), base, checks, quotas, begun, folded)
  end

  local function take(plan, index, units, key, since)
    local quota = plan[index]
    local state, allowed, remaining, retry, reset, pressure, delay =
      quota.step(before[index], quota, units, now, key, since)
    after[index], resets[index] = state, reset
    answers[index + 1] = pack('<i8i8i8i8i8i8', allowed, remaining, retry, reset, pressure, delay)
    return allowed == 1, remaining
  end

  -- What the limit has now, and whether it would admit the cost; takes nothing, but may mend a state (law 8).
  local function look(plan, index, key)
    local cost, _, remaining = plan[index].cost, take(plan, index, 0, key)
    after[index] = before[index]
    if remaining < cost then take(plan, index, cost, key) end
  end

  -- Take its cost from each limit if all admit theirs, else from none; returns the first that does not.
  local function check(plan, first)
    local count = plan.count
    for refused = 1, count do
      if not take(plan, refused, plan[refused].cost, KEYS[first + refused]) then
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
      local key, quota = KEYS[first + index], plan[index]
      if verb == 'r' then
        take(plan, index, -quota.cost, key)
      elseif verb == 'b' then
        local held = before[index]
        if quota.log then
          if held and now >= plan.since then
            before[index] = quota.log.unmarked(held, plan.since)
            take(plan, index, -quota.cost, key, plan.since)
            save(key, quota, held, quota.log.marked(after[index]), resets[index], true)
            held = quota.log.load(key)
            before[index] = held
          end
        else
          before[index] = undone(quota, held, quota.cost, plan.since, key)
        end
        look(plan, index, key)
        if held and not before[index] then call('DEL', key) end
        before[index] = held
      elseif verb == 'u' and now >= plan.since and (plan.last == 0 or now < plan.last) then
        take(plan, index, -quota.cost, key, plan.since)
      else
        if verb == 'u' or verb == 'q' then take(plan, index, 0, key) else look(plan, index, key) end
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
    local undoable, longer = plan.undoable, plan.undoable or verb == 'b'
    for index = 1, count do
      local quota, held, state = plan[index], before[index], after[index]
      if verb == 'c' and not refused and not quota.log and (undoable or (held and #held > quota.size)) then
        state = noted(quota, held, state, quota.cost, undoable)
      end
      save(KEYS[first + index], quota, held, state, resets[index], longer)
    end
    return concat(answers, '', 1, count + 1), not refused
  end

  return function(plan, verb, first)
    local count = plan.count
    local record = plan.records == 1 and KEYS[first + count + 1]
    if record or (count > 1 and (verb ~= 'c' or plan.logs)) then vet(KEYS[first + 1]) end
    if verb == 'o' or verb == 'q' then
      local recorded, size = call('GET', record), 48 + 48 * count
      local keys = redis.sha1hex(concat(KEYS, ' ', first + 1, first + count))
      if recorded and now - unpack_from('<i8', recorded) < RECORD_US then
        if recorded:sub(size - 39, size) ~= keys then
          decided(plan, 'q', first)
          for index = 1, count do answers[index + 1] = pack('<i8', 2) .. answers[index + 1]:sub(9) end
          return concat(answers, '', 1, count + 1)
        end
        local others = (recorded:byte(size + 1) or 0) + 1
        if verb == 'o' and others < 256 then
          call('SET', record, recorded:sub(1, size) .. string.char(others), 'KEEPTTL')
        end
        return recorded:sub(1, size - 40)
      end
      if verb == 'q' then return string.rep(pack('<i8', 0), 1 + 6 * count) end
      local answer, admitted = decided(plan, 'c', first)
      if admitted then call('SET', record, answer .. keys, 'PX', RECORD_MS) end
      return answer
    elseif verb == 'u' and record then
      if now >= plan.last then return (decided(plan, 'u', first)) end
      local recorded = call('GET', record)
      if recorded and #recorded == 8 + 48 * count then return recorded end
      local answer = decided(plan, 'u', first)
      call('SET', record, answer, 'PX', format('%d', math.max(least_ms, math.ceil((plan.last - now) / 1000))))
      return answer
    elseif record then
      local recorded, size = call('GET', record), 48 + 48 * count
      if not recorded or #recorded < size or unpack_from('<i8', recorded) ~= plan.since then
        return (decided(plan, 'p', first))
      end
      local others = recorded:byte(size + 1) or 0
      if others > 0 then
        local left = others < 255 and string.char(others - 1) or '\255'  -- so many that they are not counted any more
        call('SET', record, recorded:sub(1, size) .. left, 'KEEPTTL')
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
  local key, quota = KEYS[first + 1], plan[1]
  local before
  local simple = verb == 'c' and plan.count == 1 and not plan.undoable
  if simple then
    if quota.log then before = quota.log.load(key) else before = call('GET', key) end
    simple = not before or #before == quota.size
  end
  if not simple then
    decide = decide or decider()
    return decide(plan, verb, first)
  end
  local after, allowed, remaining, retry, reset, pressure, delay = quota.step(before, quota, quota.cost, now, key)
  save(key, quota, before, after, reset)
  return pack('<i8i8i8i8i8i8i8', now, allowed, remaining, retry, reset, pressure, delay), allowed == 1
end

local several = #ARGV > 2
local plans, replies, first, admitted = several and {}, several and {}, 0, false
for index = 2, #ARGV do
  local text = ARGV[index]
  local plan = several and plans[text]
  if not plan then
    local verb, count, records, since, at = unpack_from('<c1HBd', text)
    plan = {false, verb = verb:lower(), count = count, records = records, since = since}
    plan.undoable = verb ~= plan.verb
    if verb == 'u' then plan.last, at = unpack_from('<d', text, at) end
    for place = 1, count do
      local cost, from = unpack_from('<d', text, at)
      local quota, following = quota_at(text, from)
      quota.cost, quota.text, at = cost, text:sub(from, following - 1), following
      if quota.log then plan.logs = true end
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
