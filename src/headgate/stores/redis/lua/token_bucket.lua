-- Twin of core/token_bucket.py. State: used, at, limit, mark.
local steady
steady = function(state, quota, cost, now)
  local used, mark = 0, 0
  if state then
    local at, written_under = state[2], state[3]
    used, mark = state[1], state[4]
    local elapsed = now - at
    if elapsed < 0 then
      if elapsed < -quota.window then return steady({used, now, written_under, mark}, quota, cost, now) end
      return held(-elapsed, steady(state, quota, cost, at))
    end
    if written_under ~= quota.limit then
      used = carried_over(used, elapsed, written_under, quota)
      return steady({used, now, quota.limit, mark}, quota, cost, now)
    end
    used = elapsed < floor(EXACT / quota.gain) and max(0, used - elapsed * quota.gain) or 0
  end
  local full, gain, unit = quota.capacity * quota.unit, quota.gain, quota.unit
  local after = used + cost * unit
  local room = full - after
  if room >= 0 or cost < 0 then
    if after < 0 then after, room = 0, full end
    local remaining = max(0, floor(room / unit))
    local delay = quota.queue and cost >= 0 and ceil(used / gain) or 0
    local pressure
    mark, pressure = judged(quota, mark, remaining, cost)
    return {after, now, quota.limit, mark}, true, remaining, 0, ceil(after / gain), pressure, delay
  end
  return state, false, max(0, floor((full - used) / unit)), ceil(-room / gain), ceil(used / gain), THROTTLED, 0
end

-- Refills in steps of `quota.every`: the steady one, seen through a clock that ticks once per step from `at` on.
local stepwise
stepwise = function(state, quota, cost, now)
  local every, seen, at = quota.every, now, now
  if state then
    at = state[2]
    if at - now > quota.window then return stepwise({state[1], now, state[3], state[4]}, quota, cost, now) end
    if void_at.tb(state, quota) <= now then
      state, at = nil, now
    elseif at < now then
      seen = now - (now - at) % every
    end
  end
  local function wait(us)
    if us == 0 then return 0 end
    return at - now + ceil((seen + us - at) / every) * every
  end
  local after, allowed, remaining, retry, reset, pressure, delay = steady(state, quota, cost, seen)
  return after, allowed, remaining, wait(retry), wait(reset), pressure, delay
end

-- Without refill: full again only when it was not drawn from for a whole window, and so forgotten.
local one_off
one_off = function(state, quota, cost, now)
  local used, at, mark = 0, now, 0
  if state then
    used, at, mark = state[1], state[2], state[4]
    if state[3] > 0 then
      used = carried_over(used, max(0, now - at), state[3], quota)
      return one_off({used, max(at, now), 0, mark}, quota, cost, now)
    end
    if now - at >= quota.window then
      used, at, mark = 0, now, 0
    elseif at - now > quota.window then
      return one_off({used, now, 0, mark}, quota, cost, now)
    end
  end
  local after = max(0, used + cost)
  if after <= quota.capacity or cost < 0 then
    if cost > 0 then at = max(at, now) end
    local remaining, pressure = max(0, quota.capacity - after), nil
    mark, pressure = judged(quota, mark, remaining, cost)
    return {after, at, 0, mark}, true, remaining, 0, after > 0 and at + quota.window - now or 0, pressure, 0
  end
  local wait = at + quota.window - now
  return state, false, max(0, quota.capacity - used), wait, wait, THROTTLED, 0
end

steps.tb = function(state, quota, cost, now)
  if quota.limit == 0 then return one_off(state, quota, cost, now) end
  if quota.every > 1 then return stepwise(state, quota, cost, now) end
  return steady(state, quota, cost, now)
end

void_at.tb = function(state, quota)
  local used, at, written_under = state[1], state[2], state[3]
  if used == 0 then return at end
  if written_under == 0 then return at + quota.window end
  local gain = reduced(written_under, quota.window)
  return at + ceil(used / (gain * quota.every)) * quota.every
end

-- The leaky bucket is the token bucket seen from the other side; see core/leaky_bucket.py.
steps.lb, void_at.lb = steps.tb, void_at.tb
