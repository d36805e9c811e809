-- Twin of core/sliding_window_counter.py. State: end, current, previous, mark.
local function sliding_window_counter(state, quota, cost, now, _, since)
  local window, limit, grain = quota.window, quota.limit, quota.every or 1
  local grains = math.max(1, (window - window % grain) / grain)
  local current, previous, mark = 0, 0, 0
  local left = window - now % window
  local finish = now + left
  if state then
    local counted_until
    counted_until, current, previous, mark = unpack_from('<dddB', state)
    if counted_until <= now then
      previous = counted_until > now - window and current or 0
      current = 0
    else
      finish, left = counted_until, counted_until - now
      if left > 2 * window then
        local pulled = pack('<dddB', now + window - now % window, current + previous, 0, mark)
        return sliding_window_counter(pulled, quota, cost, now, nil, since)
      elseif left > window then
        return held(left - window, sliding_window_counter(state, quota, cost, finish - window, nil, since))
      end
    end
  end
  local overlap = math.min(grains, (left + -left % grain) / grain)
  if cost < 0 then
    if not since then
      current = current + cost
      if current < 0 then previous, current = math.max(0, previous + current), 0 end
    elseif since >= finish - window then
      current = math.max(0, current + cost)
    elseif since >= finish - 2 * window then
      previous = math.max(0, previous + cost)
    end
  else
    current = current + cost
  end
  local spare = (limit - current) * grains
  local room = spare - previous * overlap
  if room >= 0 or cost <= 0 then
    local remaining, pressure = math.max(0, (room - room % grains) / grains), 0
    if remaining >= quota.calm then mark = 0 else mark, pressure = judged(quota, mark, remaining, cost) end
    local reset = current > 0 and left + window or previous > 0 and left or 0
    return pack('<dddB', finish, current, previous, mark), 1, remaining, 0, reset, pressure, 0
  end
  current = current - cost
  local now_left = math.max(0, room + cost * grains)
  local retry
  if spare >= 0 then
    retry = left - (spare - spare % previous) / previous * grain
  else
    local others = (limit - cost) * grains
    retry = left + window - (others - others % current) / current * grain
  end
  local reset = current > 0 and left + window or left
  return state, 0, (now_left - now_left % grains) / grains, retry, reset, 2, 0
end
return sliding_window_counter, 25
