-- Twin of core/sliding_window_log.py. State: first, size, used, stamp, newest, mark; the entries stay in the key.
--
-- The mark of pressure is 0, or 1, or 2 more than the time of the admission that raised it.
--
-- The key holds a string: a header of these six numbers, then the entries, each a stamp and a cost, of which those from
-- `first` up to `size` count; all numbers are doubles of 8 bytes. The state is the header. A step reads only the
-- entries it needs and writes nothing; an entry that it adds follows the header until `save_log` writes both.
local HEADER, ENTRY, CHUNK = 48, 16, 64

local function load_log(key)
  local header = call('GETRANGE', key, '0', '47')
  return #header == HEADER and header
end

-- A function that returns entry `index` of the key, reading ahead in chunks.
local function entries_of(key)
  local chunk, from, to = '', 0, -1
  return function(index)
    if index < from or index > to then
      from = index
      chunk = call('GETRANGE', key, HEADER + ENTRY * index, HEADER + ENTRY * (index + CHUNK) - 1)
      to = index + #chunk / ENTRY - 1
    end
    local stamp, cost = unpack_from('<dd', chunk, (index - from) * ENTRY + 1)
    return stamp, cost
  end
end

-- The header is written last and in one piece: until then nothing is changed that counts. Expires `ttl` ms from now, at
-- `expiry`.
local function save_log(key, state, ttl, expiry)
  local first, size, used, stamp, newest, mark = unpack_from('<dddddd', state)
  local added = state:sub(HEADER + 1)
  local older = size - #added / ENTRY
  if size <= 32 or first * 2 > size then  -- short, or half stale: write anew what counts, in as many bytes as it takes
    local kept = ''
    if older > first then kept = call('GETRANGE', key, HEADER + ENTRY * first, HEADER + ENTRY * older - 1) end
    call('SET', key, pack('<dddddd', 0, size - first, used, stamp, newest, mark) .. kept .. added, 'PXAT', expiry)
  else
    call('PEXPIRE', key, ttl)
    if added ~= '' then call('SETRANGE', key, HEADER + ENTRY * older, added) end
    call('SETRANGE', key, '0', state:sub(1, HEADER))
  end
end

-- The header as it has to be to take out what was admitted at `since`: without a mark that was raised then or later.
local function unmarked(header, since)
  if unpack_from('<d', header, 41) < since + 2 then return header end
  return header:sub(1, 40) .. pack('<d', 0)
end

-- The state after that: if it is marked still, the newest of what is left has raised the mark.
local function marked(state)
  local stamp, _, mark = unpack_from('<ddd', state, 25)
  if mark ~= 1 then return state end
  return state:sub(1, 40) .. pack('<d', stamp + 2) .. state:sub(HEADER + 1)
end

-- What was admitted at `since`, unless that is the newest, is taken out of the entries: found by halving, as they are in
-- order. An entry that comes to nothing is removed, so that there are never more of them than units.
local function taken_out(key, entry, since, cost, limit, quota, first, size, used, stamp, newest, mark, window, now)
  local low, high, added = first, size, ''
  while low < high do
    local middle = (low + high - (low + high) % 2) / 2
    if entry(middle) < since then low = middle + 1 else high = middle end
  end
  local at, units
  if low < size then at, units = entry(low) end
  if at == since then
    local from, kept = HEADER + ENTRY * first, math.max(0, units - cost)
    local run = call('GETRANGE', key, from, HEADER + ENTRY * size - 1)
    local place = ENTRY * (low - first)
    added = run:sub(1, place) .. (kept > 0 and pack('<dd', since, kept) or '') .. run:sub(place + ENTRY + 1)
    first, size, used = 0, #added / ENTRY, used - units + kept
  end
  local remaining, reset, pressure = math.max(0, limit - used), used > 0 and stamp + window - now or 0, nil
  mark, pressure = judged(quota, mark, remaining, -cost)
  return pack('<dddddd', first, size, used, stamp, newest, mark) .. added, 1, remaining, 0, reset, pressure, 0
end

local function sliding_window_log(state, quota, cost, now, key, since)
  local window, limit = quota.window, quota.limit
  local first, size, used, stamp, newest, mark = 0, 0, 0, now, 0, 0
  local entry
  if state then
    first, size, used, stamp, newest, mark = unpack_from('<dddddd', state)
    if stamp > now then
      if stamp - now > window then
        return sliding_window_log(pack('<dddddd', 0, 0, used, now, used, mark), quota, cost, now, key, since)
      end
      return held(stamp - now, sliding_window_log(state, quota, cost, stamp, key, since))
    end
    entry = entries_of(key)
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
  local raised = mark
  if mark > 1 then mark = 1 end
  if since and since ~= stamp then
    return taken_out(key, entry, since, -cost, limit, quota, first, size, used, stamp, newest, mark, window, now)
  elseif since then
    cost = math.max(cost, -newest)
  end
  local after = used + cost
  if after <= limit and cost > 0 then
    local added = ''
    if stamp == now then
      newest = newest + cost
    else
      if newest > 0 then
        added = pack('<dd', stamp, newest)
        size = size + 1
      end
      newest = cost
    end
    local remaining, pressure = limit - after, nil
    mark, pressure = judged(quota, mark, remaining, cost)
    if mark == 1 then mark = raised > 0 and raised or now + 2 end
    return pack('<dddddd', first, size, after, now, newest, mark) .. added, 1, remaining, 0, window, pressure, 0
  end
  if cost <= 0 then
    newest = newest + cost
    while newest <= 0 and size > first do
      size = size - 1
      local at, units = entry(size)
      stamp, newest = at, newest + units
    end
    after = math.max(0, after)
    local remaining, pressure = math.max(0, limit - after), nil
    mark, pressure = judged(quota, mark, remaining, cost)
    local reset = after > 0 and stamp + window - now or 0
    return pack('<dddddd', first, size, after, stamp, math.max(0, newest), mark), 1, remaining, 0, reset, pressure, 0
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
  return state, 0, math.max(0, limit - used), freed_by + window - now, stamp + window - now, 2, 0
end
return sliding_window_log, HEADER, {load = load_log, save = save_log, unmarked = unmarked, marked = marked}
