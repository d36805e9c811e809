-- Twin of core/sliding_window_log.py. State: first, size, used, stamp, newest, mark, and the key that has the entries.
--
-- The key holds a string: a header of these six numbers, then the entries, each a stamp and a cost, of which those from
-- `first` up to `size` count; all numbers are doubles of 8 bytes. A step reads only the entries it needs and writes
-- nothing; an entry that it adds is in state.push until `save_log` writes it.
local HEADER, ENTRY, CHUNK = 48, 16, 64

local function load_log(key)
  local header = redis.call('GETRANGE', key, 0, HEADER - 1)
  if #header < HEADER then return nil end
  local first, size, used, stamp, newest, mark = struct.unpack('<dddddd', header)
  return {first, size, used, stamp, newest, mark, key = key}
end

-- A function that returns entry `index` of the key of `state`, reading ahead in chunks.
local function entries_of(state)
  local chunk, from, to = '', 0, -1
  return function(index)
    if index < from or index > to then
      from = index
      chunk = redis.call('GETRANGE', state.key, HEADER + ENTRY * index, HEADER + ENTRY * (index + CHUNK) - 1)
      to = index + #chunk / ENTRY - 1
    end
    local stamp, cost = struct.unpack('<dd', chunk, (index - from) * ENTRY + 1)
    return stamp, cost
  end
end

local function save_log(key, state)
  local first, size = state[1], state[2]
  local push, pushed = state.push, ''
  if push then pushed = struct.pack('<dd', push[1], push[2]) end
  local older = size - (push and 1 or 0)
  if first * 2 > size then  -- more than half is stale: write anew what counts
    local kept = ''
    if older > first then
      kept = redis.call('GETRANGE', key, HEADER + ENTRY * first, HEADER + ENTRY * older - 1)
    end
    local header = struct.pack('<dddddd', 0, size - first, state[3], state[4], state[5], state[6])
    redis.call('SET', key, header .. kept .. pushed)
  else
    if push then redis.call('SETRANGE', key, HEADER + ENTRY * older, pushed) end
    redis.call('SETRANGE', key, 0, struct.pack('<dddddd', first, size, state[3], state[4], state[5], state[6]))
  end
end

local sliding_window_log
sliding_window_log = function(state, quota, cost, now)
  local window, limit = quota.window, quota.limit
  local first, size, used, stamp, newest, mark = 0, 0, 0, now, 0, 0
  local entry
  if state then
    first, size, used, stamp, newest, mark = unpack(state)
    if stamp > now then
      if stamp - now > window then
        return sliding_window_log({0, 0, used, now, used, mark, key = state.key}, quota, cost, now)
      end
      return held(stamp - now, sliding_window_log(state, quota, cost, stamp))
    end
    entry = entries_of(state)
    local cutoff = now - window
    if stamp <= cutoff then
      first, used, newest = size, 0, 0
    else
      while first < size do
        local at, units = entry(first)
        if at > cutoff then break end
        used = used - units
        first = first + 1
      end
    end
  end
  local key, after = state and state.key, used + cost
  if after <= limit and cost > 0 then
    local push
    if stamp == now then
      newest = newest + cost
    else
      if newest > 0 then
        push = {stamp, newest}
        size = size + 1
      end
      newest = cost
    end
    local remaining, pressure = limit - after, nil
    mark, pressure = judged(quota, mark, remaining, cost)
    return {first, size, after, now, newest, mark, key = key, push = push}, true, remaining, 0, window, pressure, 0
  end
  if cost < 0 or after <= limit then
    newest = newest + cost
    while newest <= 0 and size > first do
      size = size - 1
      local at, units = entry(size)
      stamp, newest = at, newest + units
    end
    after = max(0, after)
    local remaining, pressure = max(0, limit - after), nil
    mark, pressure = judged(quota, mark, remaining, cost)
    local reset = after > 0 and stamp + window - now or 0
    return {first, size, after, stamp, max(0, newest), mark, key = key}, true, remaining, 0, reset, pressure, 0
  end
  local excess, freed_by = after - limit, stamp
  while first < size do
    local at, units = entry(first)
    excess = excess - units
    if excess <= 0 then
      freed_by = at
      break
    end
    first = first + 1
  end
  return state, false, max(0, limit - used), freed_by + window - now, stamp + window - now, THROTTLED, 0
end
steps.swl = sliding_window_log

void_at.swl = function(state, quota)
  return state[3] > 0 and state[4] + quota.window or 0
end
