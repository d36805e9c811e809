-- Runs plans, each atomically (a script is): the twin of core/plan.py and the only entry point.
--
-- KEYS   the keys of all limits, in the order of ARGV; a plan's keys are in one slot
-- ARGV   [1] the time in microseconds, for tests; empty: this server's
--        then for each plan: verb (c check, p peek, r refund, x reset), cost, number of limits,
--        and for each of its limits: algorithm, limit, capacity, window, gain, unit, every, queue, calm, warn
-- reply  for each limit six integers: allowed, remaining, retry_after, reset_after, pressure, delay (all 0 for reset)
--
-- Every key has a time to live after every operation: until its state means that nothing is used.
local LIMIT_FIELDS, PLAN_FIELDS = 10, 3
local MARGIN_MS = 1000  -- state outlives its use by this much

local now, testing = tonumber(ARGV[1]), true
if not now then
  local time = redis.call('TIME')
  now, testing = time[1] * 1000000 + time[2], false
end

local function read_limit(key, at)
  local quota = {
    limit = tonumber(ARGV[at + 1]), capacity = tonumber(ARGV[at + 2]), window = tonumber(ARGV[at + 3]),
    gain = tonumber(ARGV[at + 4]), unit = tonumber(ARGV[at + 5]), every = tonumber(ARGV[at + 6]),
    queue = ARGV[at + 7] == '1', calm = tonumber(ARGV[at + 8]), warn = tonumber(ARGV[at + 9]),
  }
  local limit = {key = key, kind = ARGV[at], quota = quota, step = steps[ARGV[at]]}
  if limit.kind == 'swl' then
    limit.before = load_log(key)
  else
    local text = redis.call('GET', key)
    if text then
      limit.before = {}
      for number in string.gmatch(text, '%d+') do limit.before[#limit.before + 1] = tonumber(number) end
    end
  end
  return limit
end

local function ask(limit, cost)
  local answer = {limit.step(limit.before, limit.quota, cost, now)}
  limit.after = answer[1]
  limit.answer = {answer[2] and 1 or 0, answer[3], answer[4], answer[5], answer[6], answer[7]}
  return answer[2]
end

-- What the limit has now, and whether it would admit `cost`; takes nothing, but may mend a state (law 8).
local function look(limit, cost)
  ask(limit, 0)
  limit.after = limit.before
  if limit.answer[2] < cost then ask(limit, cost) end
end

-- Numbers are written with all their digits: tostring() would keep fourteen.
local function save(limit)
  local state, key = limit.after, limit.key
  if not state then return end
  local ttl = ceil((void_at[limit.kind](state, limit.quota) - now) / 1000) + MARGIN_MS
  if testing then ttl = max(ttl, 3600000) end
  if ttl <= 0 then
    redis.call('DEL', key)
  elseif state == limit.before then
    if redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, ttl) end
  elseif limit.kind == 'swl' then
    save_log(key, state)
    redis.call('PEXPIRE', key, ttl)
  else
    local digits = {}
    for index, number in ipairs(state) do digits[index] = string.format('%.0f', number) end
    redis.call('SET', key, table.concat(digits, ' '), 'PX', ttl)
  end
end

local verbs = {}

function verbs.c(limits, cost)
  local admitted = true
  for _, limit in ipairs(limits) do
    if not ask(limit, cost) then
      admitted = false
      break
    end
  end
  if not admitted then
    for _, limit in ipairs(limits) do look(limit, cost) end
  end
end

function verbs.p(limits, cost)
  for _, limit in ipairs(limits) do
    look(limit, cost)
    limit.after = limit.before
  end
end

function verbs.r(limits, cost)
  for _, limit in ipairs(limits) do
    ask(limit, -cost)
    if not limit.before then limit.after = nil end
  end
end

function verbs.x(limits)
  for _, limit in ipairs(limits) do
    redis.call('DEL', limit.key)
    limit.answer = {0, 0, 0, 0, 0, 0}
  end
end

local reply, at, key_index = {}, 2, 1
while at <= #ARGV do
  local verb, cost, count = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  at = at + PLAN_FIELDS
  local limits = {}
  for index = 1, count do
    limits[index] = read_limit(KEYS[key_index], at)
    key_index, at = key_index + 1, at + LIMIT_FIELDS
  end
  verbs[verb](limits, cost)
  for _, limit in ipairs(limits) do
    save(limit)
    for _, number in ipairs(limit.answer) do reply[#reply + 1] = number end
  end
end
return reply
