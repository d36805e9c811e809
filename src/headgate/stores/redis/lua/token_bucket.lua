-- Twin of core/token_bucket.py. State: used, at, limit, mark.

-- The transition of any state, whatever limit it was written under, and of any cost.
local function any_state(state, quota, cost, now, _, since)
  local limit, window, capacity = quota.limit, quota.window, quota.capacity
  local used, at, written_under, mark = 0, now, limit, quota.low
  if state then used, at, written_under, mark = unpack_from('<dddB', state) end
  if at > now then
    if at > now + window then
      return any_state(pack('<dddB', used, now, written_under, mark), quota, cost, now, nil, since)
    end
    return held(at - now, any_state(state, quota, cost, at, nil, since))
  end
  local wait, elapsed = rates().wait, now - at
  local gain, per, unit = rates().rate(written_under, window, (mark - mark % 4) / 4)
  local level = rates().left_of(used, gain, per, elapsed)
  if level == 0 then
    used, at, elapsed, written_under, mark = 0, now, 0, limit, quota.low
    gain, per, unit = quota.gain, quota.per, quota.unit
  end
  local pressed, carried = mark % 2, mark % 4 >= 2 and 2 or 0
  if written_under ~= limit or mark - mark % 4 ~= quota.low then carried = 2 end
  if since then
    local alone = at == since and used == -cost * unit
    if carried > 0 or (quota.queue and not alone) or (limit == 0 and now - since >= window) then cost = 0 end
  end
  if cost < 0 then
    if since then
      level = math.min(level, level + cost * unit + rates().scaled(now - since, gain, per))
    else
      level = level + math.max(cost, -(level + -level % unit) / unit) * unit
    end
    level = math.max(0, level)
    used = level
    if gain > 0 or level == 0 then at, elapsed = now, 0 end
  end
  local taken = (level + -level % unit) / unit
  if cost > 0 and cost <= capacity - taken then
    local before = rates().carried(level, unit, quota.unit)
    local after = before + cost * quota.unit
    local remaining = capacity - (after + -after % quota.unit) / quota.unit
    local marked, pressure = judged(quota, pressed, remaining, cost)
    local delay = 0
    if quota.queue then delay = carried > 0 and wait(before, quota.gain, quota.per) or wait(used, gain, per) - elapsed end
    local written = pack('<dddB', after, now, limit, quota.low + carried + marked)
    return written, 1, remaining, 0, wait(after, quota.gain, quota.per), pressure, delay
  end
  local remaining, reset = math.max(0, capacity - taken), wait(used, gain, per) - elapsed
  if cost > 0 then
    return state, 0, remaining, wait(used - (capacity - cost) * unit, gain, per) - elapsed, reset, 2, 0
  end
  local marked, pressure = judged(quota, pressed, remaining, cost)
  if cost < 0 or level == 0 then state = pack('<dddB', used, at, written_under, mark - pressed + marked) end
  return state, 1, remaining, 0, reset, pressure, quota.queue and cost == 0 and reset or 0
end
if name == 'tb/once' then return any_state, 25 end

-- What is usual: an exact rate, and a state written under it.
local function steady(state, quota, cost, now, _, since)
  local gain, unit, full = quota.gain, quota.unit, quota.full
  if cost < 0 or quota.per > 1 then return any_state(state, quota, cost, now, nil, since) end
  local used, mark = 0, 0
  if state then
    local at, written_under
    used, at, written_under, mark = unpack_from('<dddB', state)
    local elapsed = now - at
    if elapsed < 0 or written_under ~= quota.limit or mark > 1 then
      return any_state(state, quota, cost, now, nil, since)
    end
    used = used - elapsed * gain
    if used < 0 then used = 0 end
  end
  local after = used + cost * unit
  local room = full - after
  if room >= 0 or cost == 0 then
    local remaining, pressure = (room - room % unit) / unit, 0
    if remaining < 0 then remaining = 0 end
    if remaining >= quota.calm then mark = 0 else mark, pressure = judged(quota, mark, remaining, cost) end
    local delay = quota.queue and (used + -used % gain) / gain or 0
    return pack('<dddB', after, now, quota.limit, mark), 1, remaining, 0, (after + -after % gain) / gain, pressure, delay
  end
  local left = math.max(0, full - used)
  return state, 0, (left - left % unit) / unit, (-room + room % gain) / gain, (used + -used % gain) / gain, 2, 0
end
-- The leaky bucket is the token bucket seen from the other side; see core/leaky_bucket.py.
if name == 'tb' or name == 'lb' then return steady, 25 end

-- Refills in steps of `quota.every`: the steady one, seen through a clock that ticks once per step from `at` on.
local function stepwise(state, quota, cost, now, _, since)
  local every, seen, at = quota.every, now, now
  if state then
    local used, written_under, mark
    used, at, written_under, mark = unpack_from('<dddB', state)
    if at - now > quota.window then
      return stepwise(pack('<dddB', used, now, written_under, mark), quota, cost, now, nil, since)
    end
    local void_at = at
    if used > 0 and written_under > 0 then
      local gain, per = rates().rate(written_under, quota.window, (mark - mark % 4) / 4)
      local until_void = rates().wait(used, gain, per)
      void_at = at + until_void + -until_void % every
    elseif used > 0 then
      void_at = at + quota.window
    end
    if void_at <= now then
      state, at = false, now
    elseif written_under == 0 then  -- a one-off allowance comes back whole
      return steady(state, quota, cost, now, nil, since)
    elseif at < now then
      seen = now - (now - at) % every
    end
    if since then  -- only before the next step, and if the steps are surely not the charge's own, or all is its own
      local ticked = since - (since - at) % every
      local alone = since == at and used == -cost * quota.unit
      if not alone and (seen ~= ticked or since == ticked) then cost = 0 end
      since = seen
    end
  end
  local function ticks(us)
    if us == 0 then return 0 end
    local ahead = seen + us - at
    return at - now + ahead + -ahead % every
  end
  local after, allowed, remaining, retry, reset, pressure, delay = steady(state, quota, cost, seen, nil, since)
  return after, allowed, remaining, ticks(retry), ticks(reset), pressure, delay
end
return stepwise, 25
