-- Twin of core/fixed_window.py. State: end, used, mark.
local by_calendar = name == 'fw/calendar'

-- How long the period at `now` still lasts. Two are given, those around the caller's time; should the clocks differ by
-- more, periods are as long as the window.
local function left_of_period(quota, now)
  local start, finish, after = quota.gain, quota.unit, quota.every
  if now >= finish and now < after then return after - now end
  if now >= start and now < finish then return finish - now end
  local nearest = now < start and start or after
  return quota.window - (now - nearest) % quota.window
end

local function fixed_window(state, quota, cost, now, _, since)
  local window, limit = quota.window, quota.limit
  local left, far, used, mark = window - now % window, 2 * window, 0, 0
  if by_calendar then left, far = left_of_period(quota, now), far + 86400000000 end
  local finish = now + left
  if state then
    local counted_until, counted, marked = unpack_from('<ddB', state)
    if counted_until > now then
      used, mark = counted, marked
      if counted_until <= now + far then
        finish, left = counted_until, counted_until - now
      else  -- the clock fell behind by more than a window; by less, it just takes longer
        state = pack('<ddB', finish, used, mark)
      end
    end
  end
  if since then
    local start = finish - window
    if by_calendar then start = finish == quota.unit and quota.gain or finish == quota.every and quota.unit or finish end
    if since < start then cost = 0 end  -- it was charged to a window that is over
  end
  local after = used + cost
  if after <= limit or cost <= 0 then
    if after <= 0 then after, left = 0, 0 end
    local remaining, pressure = limit - after, 0
    if remaining < 0 then remaining = 0 end
    if remaining >= quota.calm then mark = 0 else mark, pressure = judged(quota, mark, remaining, cost) end
    return pack('<ddB', finish, after, mark), 1, remaining, 0, left, pressure, 0
  end
  return state, 0, math.max(0, limit - used), left, left, 2, 0
end
return fixed_window, 17
