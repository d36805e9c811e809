-- Twin of core/token_bucket.py. State: used, at, limit, mark.
local function steady(state, quota, cost, now, _, since)
  local gain, unit, full = quota.gain, quota.unit, quota.full
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
    if written_under ~= quota.limit then
      used = carried_over(used, elapsed, written_under, quota)
      return steady(pack('<dddB', used, now, quota.limit, mark), quota, since and 0 or cost, now)
    end
    if since and quota.queue and (at ~= since or used ~= -cost * unit) then
      cost = 0  -- others may have been given their turn by it
    end
    used = (gain == 1 or elapsed < (2^51 - 2^51 % gain) / gain) and used - elapsed * gain or 0
    if used < 0 then used = 0 end
  end
  local after = used + cost * unit
  if since then after = math.min(used, after + (now - since) * gain) end
  local room = full - after
  if room >= 0 or cost < 0 then
    if after < 0 then after, room = 0, full end
    local remaining, pressure = (room - room % unit) / unit, 0
    if remaining < 0 then remaining = 0 end
    if remaining >= quota.calm then mark = 0 else mark, pressure = judged(quota, mark, remaining, cost) end
    local delay = quota.queue and cost >= 0 and (used + -used % gain) / gain or 0
    state = pack('<dddB', after, now, quota.limit, mark)
    return state, 1, remaining, 0, (after + -after % gain) / gain, pressure, delay
  end
  local left = math.max(0, full - used)
  return state, 0, (left - left % unit) / unit, (-room + room % gain) / gain, (used + -used % gain) / gain, 2, 0
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
      local batch = reduced(written_under, quota.window) * every
      void_at = at + (used + -used % batch) / batch * every
    elseif used > 0 then
      void_at = at + quota.window
    end
    if void_at <= now then
      state, at = false, now
    elseif at < now then
      seen = now - (now - at) % every
    end
    if since then  -- only before the next tick, and if the ticks are surely not the charge's own, or all is its own
      local ticked = since - (since - at) % every
      if seen ~= ticked or (since == ticked and used ~= -cost * quota.unit) then cost = 0 end
      since = seen
    end
  end
  local function wait(us)
    if us == 0 then return 0 end
    local ahead = seen + us - at
    return at - now + ahead + -ahead % every
  end
  local after, allowed, remaining, retry, reset, pressure, delay = steady(state, quota, cost, seen, nil, since)
  return after, allowed, remaining, wait(retry), wait(reset), pressure, delay
end
if name == 'tb/every' then return stepwise end

-- Without refill: full again only when it was not drawn from for a whole window, and so forgotten.
local function one_off(state, quota, cost, now, _, since)
  local used, at, mark = 0, now, 0
  if state then
    local written_under
    used, at, written_under, mark = unpack_from('<dddB', state)
    if written_under > 0 then
      used = carried_over(used, math.max(0, now - at), written_under, quota)
      return one_off(pack('<dddB', used, math.max(at, now), 0, mark), quota, since and 0 or cost, now)
    end
    if now - at >= quota.window then
      used, at, mark = 0, now, 0
    elseif at - now > quota.window then
      return one_off(pack('<dddB', used, now, 0, mark), quota, cost, now, nil, since)
    end
  end
  if since and now - since >= quota.window then cost = 0 end  -- it may have been forgotten meanwhile
  local after = math.max(0, used + cost)
  if after <= quota.full or cost < 0 then
    if cost > 0 then at = math.max(at, now) end
    local remaining, pressure = math.max(0, quota.full - after), nil
    mark, pressure = judged(quota, mark, remaining, cost)
    return pack('<dddB', after, at, 0, mark), 1, remaining, 0, after > 0 and at + quota.window - now or 0, pressure, 0
  end
  local wait = at + quota.window - now
  return state, 0, math.max(0, quota.full - used), wait, wait, 2, 0
end
return one_off
