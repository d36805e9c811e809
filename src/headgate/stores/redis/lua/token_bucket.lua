-- Twin of core/token_bucket.py. State: used, at, limit, mark.

-- The transition of a state, not ahead of the clock, that was written under another limit.
local function changed(step, state, quota, cost, now, since)
  local used, at, written_under, mark = unpack_from('<dddB', state)
  local pressed, elapsed = mark % 2, now - at
  local wait, left_of = rates().wait, rates().left_of
  local gain, per, unit = rates().rate(written_under, quota.window, (mark - pressed) / 2)
  if since then cost = 0 end  -- it may have been charged under yet another limit
  used = left_of(used, gain, per, elapsed)
  if cost < 0 then
    used = math.max(0, used - math.min(-cost, (used + -used % unit) / unit) * unit)
    if gain > 0 then at, elapsed = now, 0 end
  end
  local taken = (used + -used % unit) / unit
  if cost > 0 and cost <= quota.capacity - taken then
    local carried_over = rates().carried(used, unit, quota.unit)
    return step(pack('<dddB', carried_over, now, quota.limit, quota.low + pressed), quota, cost, now)
  end
  local remaining, reset = math.max(0, quota.capacity - taken), wait(used, gain, per, elapsed)
  if cost > 0 then
    return state, 0, remaining, wait(used - (quota.capacity - cost) * unit, gain, per, elapsed), reset, 2, 0
  end
  local marked, pressure = judged(quota, pressed, remaining, cost)
  if cost < 0 then state = pack('<dddB', used, at, written_under, mark - pressed + marked) end
  return state, 1, remaining, 0, reset, pressure, quota.queue and cost == 0 and reset or 0
end

local function steady(state, quota, cost, now, _, since)
  local gain, per, unit, full = quota.gain, quota.per, quota.unit, quota.full
  local used, mark = 0, 0
  if state then
    local at, written_under
    used, at, written_under, mark = unpack_from('<dddB', state)
    local elapsed = now - at
    if elapsed < 0 then
      if elapsed < -quota.window then
        return steady(pack('<dddB', used, now, written_under, mark), quota, cost, now, nil, since)
      end
      return held(-elapsed, steady(state, quota, cost, at, nil, since))
    end
    mark = mark - quota.low
    if written_under ~= quota.limit or mark < 0 or mark > 1 then
      return changed(steady, state, quota, cost, now, since)
    end
    if since and quota.queue and (at ~= since or used ~= -cost * unit) then
      cost = 0  -- others may have been given their turn by it
    end
    if per == 1 then used = used - elapsed * gain else used = rates().left_of(used, gain, per, elapsed) end
    if used < 0 then used = 0 end
  end
  local after = used + cost * unit
  if since then after = math.min(used, after + rates().scaled(now - since, gain, per)) end
  local room = full - after
  if room >= 0 or cost <= 0 then
    if after < 0 then after, room = 0, full end
    local remaining, pressure = (room - room % unit) / unit, 0
    if remaining < 0 then remaining = 0 end
    if remaining >= quota.calm then mark = 0 else mark, pressure = judged(quota, mark, remaining, cost) end
    local delay = quota.queue and cost >= 0 and rates().wait(used, gain, per) or 0
    state = pack('<dddB', after, now, quota.limit, quota.low + mark)
    local reset
    if per == 1 then reset = (after + -after % gain) / gain else reset = rates().wait(after, gain, per) end
    return state, 1, remaining, 0, reset, pressure, delay
  end
  local left = math.max(0, full - used)
  local remaining = (left - left % unit) / unit
  if per == 1 then return state, 0, remaining, (-room + room % gain) / gain, (used + -used % gain) / gain, 2, 0 end
  return state, 0, remaining, rates().wait(-room, gain, per), rates().wait(used, gain, per), 2, 0
end
-- The leaky bucket is the token bucket seen from the other side; see core/leaky_bucket.py.
if name == 'tb' or name == 'lb' then return steady end

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
      local gain, per = rates().rate(written_under, quota.window, (mark - mark % 2) / 2)
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
if name == 'tb/every' then return stepwise end

-- Without refill: full again only when it was not drawn from for a whole window, and so forgotten.
local function one_off(state, quota, cost, now, _, since)
  local used, at, mark = 0, now, 0
  if state then
    local written_under
    used, at, written_under, mark = unpack_from('<dddB', state)
    if at - now > quota.window then
      return one_off(pack('<dddB', used, now, written_under, mark), quota, cost, now, nil, since)
    end
    if written_under > 0 and at > now then
      return held(at - now, changed(one_off, state, quota, cost, at, since))
    elseif written_under > 0 then
      return changed(one_off, state, quota, cost, now, since)
    end
    if now - at >= quota.window then used, at, mark = 0, now, 0 end
  end
  if since and now - since >= quota.window then cost = 0 end  -- it may have been forgotten meanwhile
  local after = math.max(0, used + cost)
  if after <= quota.full or cost <= 0 then
    if cost > 0 then at = math.max(at, now) end
    local remaining, pressure = math.max(0, quota.full - after), nil
    mark, pressure = judged(quota, mark, remaining, cost)
    return pack('<dddB', after, at, 0, mark), 1, remaining, 0, after > 0 and at + quota.window - now or 0, pressure, 0
  end
  local wait = at + quota.window - now
  return state, 0, math.max(0, quota.full - used), wait, wait, 2, 0
end
return one_off
